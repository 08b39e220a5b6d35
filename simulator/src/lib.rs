//! The real dispatcher engine in a simulated world: an API server, schedulers, executors, users and a clock, all in
//! one thread, driven by one seed. Faults are drawn from the seed too; a seed that fails fails again, step by step.
//!
//! What is simulated stands behind the two seams of [`dispatch_core`]: [`dispatch_core::Api`] ([`api`], over the
//! rules of [`server`]) and [`dispatch_core::Scheduler`] ([`cluster`], whose jobs are [`executor`]s). Everything else,
//! loop, plan and actions, is what runs at a site. [`world`] keeps the state and watches over what must always hold;
//! [`story`] tells what happens in one seed, and what must hold at its end.

pub mod api;
pub mod cluster;
pub mod executor;
pub mod faults;
pub mod server;
pub mod story;
pub mod world;

pub use faults::Broken;
pub use story::{Options, Outcome, run};
