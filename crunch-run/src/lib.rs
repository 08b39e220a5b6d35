//! The executor of one container: engine, image, limits and statistics.

pub mod cgroup;
pub mod engine;
pub mod image;
pub mod mounts;
pub mod output;
pub mod stats;
