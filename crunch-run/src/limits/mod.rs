//! Limits that the kernel does not enforce: measures usage, warns near the limit and reports when
//! it is exceeded.
//!
//! `attempt/limits_of_record.rs` makes a container's limits from its record: those of its mounts,
//! and that of the writable layer of its own root. `usage_monitor` compares them with `disk_usage`,
//! and `attempt/wait_for_command.rs` stops the container.

mod deleted_files;
mod directory_limit;
mod disk_usage;
mod usage_limit;
mod usage_monitor;
mod walk_schedule;
mod watchdog;

pub use directory_limit::{DirectoryLimit, Measure};
pub use disk_usage::{Usage, usage};
pub use usage_limit::{LimitExceeded, Resource, UsageLimit};
pub use usage_monitor::UsageMonitor;
pub use watchdog::Watchdog;
