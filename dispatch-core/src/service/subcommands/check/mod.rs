//! The checks that dispatchers share.

mod api;
mod machine;
pub mod probe_job;
mod queue;

pub use api::{GATEWAY_KEY_REMEDY, gateway_key_fault, run as api};
pub use machine::{OWNER_MAP, Remedies, commands, directory, owner_map_fault, set_up};
pub use preflight::{Finding, Level, Report};
pub use queue::{QueueRemedies, run as queue};
