//! Runs the dispatcher's real controller in a simulated world: an API server, schedulers,
//! executors, users and a clock, all in one thread. One seed drives everything, faults included, so
//! a seed that fails can be repeated step by step.
//!
//! The simulation implements the two seams of [`dispatch_core`]: [`dispatch_core::Api`] in [`api`],
//! with the rules of [`server`], and [`dispatch_core::Scheduler`] in [`cluster`], whose jobs are
//! [`executor`]s. All other code is what runs at a site. [`state`] holds the simulated world and
//! checks what must always hold. [`scenario`] runs one seed and checks its end state.

pub mod api;
mod call_fate;
pub mod cluster;
pub mod executor;
mod executor_calls;
pub mod faults;
pub mod listing;
pub mod scenario;
pub mod server;
pub mod state;

pub use faults::SeededBug;
pub use scenario::{Options, Outcome, run};
