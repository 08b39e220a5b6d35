//! The `dispatch` command as people use it, against the embedded server in this process.

mod demand;
mod files;
mod images;
mod jobs;
mod mistakes;
mod submit;
mod up;
mod world;
