//! Queries: the queue, the history and the pool, and what their answers mean.

pub mod better_analyze;
pub mod condor_q;
pub mod exit_query;
pub mod exit_record;
pub mod match_analysis;
pub mod partition_slots;
pub mod pending_reason;
pub mod queue;
pub mod slot_class_cache;
pub mod slot_classes;
