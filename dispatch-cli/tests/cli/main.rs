//! The `dispatch` command as people use it, against the embedded server in this process.

mod demand;
mod files;
mod images;
mod jobs;
mod live_logs;
mod mistakes;
mod refusals;
mod submit;
mod up;
mod world;
