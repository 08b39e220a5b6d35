//! The dispatcher engine: observe → plan → act.
//!
//! Here is its heart: what is known ([`world`]), what is known of a container's job ([`presence`]), and what
//! follows from it ([`plan`]). All three are values and pure functions; nothing in them waits, reads a clock or
//! talks to anybody.

pub mod plan;
pub mod presence;
pub mod world;

pub use plan::{Action, Policy, Reason, plan};
pub use presence::Presence;
pub use world::World;
