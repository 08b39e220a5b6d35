//! Submission: submit descriptions, and condor_submit with its failures.

pub mod admin_lines;
pub mod batch;
pub mod bisect;
pub mod description;
pub mod gpus;
pub mod line_syntax;
pub mod macros;
pub mod partition_question;
pub mod quoting;
pub mod reserved_keys;
pub mod restart_and_hold_policy;
pub mod suspect_groups;
pub mod test_job;
