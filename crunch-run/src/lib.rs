//! The executor of one container: inputs, image, engine, limits, statistics, logs, output.

pub mod broken_node;
pub mod cache;
pub mod cgroup;
pub mod check;
pub mod detach;
pub mod engine;
pub mod errand;
pub mod exit;
pub mod flags;
pub mod gpus;
pub mod image;
pub mod job_dir;
mod leavings;
pub mod limits;
pub mod lock_file;
pub mod logs;
pub mod mounts;
pub mod output;
pub mod registry;
pub mod resume;
pub mod run;
pub mod signals;
pub mod stats;
pub mod status;
pub mod stdin_config;
pub mod verdict;
