//! Limits that no kernel keeps for us: how much was used, when to warn, and when it is too much.

mod disk;
mod gauge;
mod watch;
mod watchdog;

pub use disk::{Usage, usage};
pub use gauge::{Gauge, Overrun, Resource, Seen};
pub use watch::{Allowance, DiskAllowance, Measure};
pub use watchdog::Watchdog;
