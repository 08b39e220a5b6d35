//! Everything the dispatcher publishes: audit lines, metrics and health.

pub mod alike_lines;
pub mod audit;
pub mod health;
mod metrics;
mod state_durations;
