//! The `dispatch` command as a program, against the embedded server in this process.

mod collections;
mod completion;
mod demand;
mod files;
mod fixture;
mod images;
mod jobs;
mod live_logs;
mod many_jobs;
mod mistakes;
mod refusals;
mod submit;
mod up;
mod users;
