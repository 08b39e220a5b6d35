//! Limits that the kernel does not enforce: measures usage, warns near the limit and reports when
//! it is exceeded.

mod deleted_files;
mod disk;
mod usage_limit;
mod usage_monitor;
mod watchdog;

pub use disk::{Usage, usage};
pub use usage_limit::{LimitEvent, LimitExceeded, Resource, UsageLimit};
pub use usage_monitor::{DiskLimit, Measure, UsageMonitor};
pub use watchdog::Watchdog;
