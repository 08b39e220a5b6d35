//! The client beside servers of these tests: an API server and Keep services that answer, refuse
//! and fail.

mod container_logs;
mod https;
mod keep_client;
mod keep_files;
mod listing;
mod refusals;
