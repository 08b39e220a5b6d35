//! Everything the dispatcher publishes: audit lines, metrics and health.

pub mod audit;
pub mod metrics_and_health;
