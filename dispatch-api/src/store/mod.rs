//! Writes: transactions, the writer thread, the audit log and the revocation of tokens.

pub mod audit_log;
pub mod cluster_config;
pub mod fair_queue;
pub mod follow_up_progress;
pub mod quota;
pub mod revocation;
pub mod transaction;
pub mod unique_name;
pub mod writer;
