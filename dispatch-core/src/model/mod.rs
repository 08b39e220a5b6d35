//! The values that the dispatcher works with. Nothing in this module does I/O.

pub mod attempt_token;
pub mod charge_class;
pub mod container_record;
pub mod container_view;
pub mod decision;
pub mod exit_cause;
pub mod instance_types;
pub mod job_presence;
pub mod outcome;
pub mod owner;
pub mod pending_order;
pub mod reason;
pub mod resources;
pub mod scheduling;
pub mod snapshot;
pub mod staging_allowance;
pub mod task;
pub mod turns;
pub mod world;
