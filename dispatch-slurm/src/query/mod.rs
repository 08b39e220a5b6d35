//! Queries with `squeue`, `sacct`, `scontrol show` and `sinfo`, and parsers of their output.

pub mod accounting;
pub mod coalesce;
pub mod ended_job;
pub mod exit_query;
pub mod exit_record;
pub mod node_class_cache;
pub mod node_classes;
pub mod partition_times;
pub mod pending_reason;
pub mod sinfo;
pub mod squeue;
