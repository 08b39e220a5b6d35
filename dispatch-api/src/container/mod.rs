//! Containers and container requests: rules (pure functions), then changes in a transaction.

pub mod constraints;
pub mod cost;
pub mod create;
pub mod finalize;
pub mod follow_up;
pub mod image;
pub mod job_number;
pub mod lifecycle;
pub mod mounts;
pub mod ports;
pub mod priority;
pub mod request;
pub mod request_logs;
pub mod retry;
pub mod reuse;
pub mod state;
