//! Resource requests of containers: `runtime_constraints` and `scheduling_parameters`.

use serde::{Deserialize, Serialize};

use crate::records::attributes::{Extra, lenient};

/// `runtime_constraints`. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeConstraints {
    /// Memory for the container's own processes.
    #[serde(default, deserialize_with = "lenient")]
    pub ram: u64,
    /// Number of CPUs; 0 is allowed and means a share of one.
    #[serde(default, deserialize_with = "lenient")]
    pub vcpus: u32,
    /// Memory for the Keep cache, on top of `ram`.
    #[serde(default, deserialize_with = "lenient")]
    pub keep_cache_ram: u64,
    /// Disk for the Keep cache.
    #[serde(default, deserialize_with = "lenient")]
    pub keep_cache_disk: u64,
    /// Whether the container uses the API, and so needs network and a token.
    #[serde(default, rename = "API", deserialize_with = "lenient")]
    pub api: bool,
    #[serde(default, deserialize_with = "lenient")]
    pub gpu: Gpu,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `runtime_constraints.gpu`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// `cuda`, `rocm`, or empty for none.
    #[serde(default, deserialize_with = "lenient")]
    pub stack: String,
    /// Number of GPUs.
    #[serde(default, deserialize_with = "lenient")]
    pub device_count: u32,
    /// Lowest driver version, `X.Y`.
    #[serde(default, deserialize_with = "lenient")]
    pub driver_version: String,
    /// Accepted hardware (compute capability or gfx target).
    #[serde(default, deserialize_with = "lenient")]
    pub hardware_target: Vec<String>,
    /// Memory of each GPU, in bytes.
    #[serde(default, deserialize_with = "lenient")]
    pub vram: u64,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `scheduling_parameters`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulingParameters {
    /// Requested Slurm partitions.
    #[serde(default, deserialize_with = "lenient")]
    pub partitions: Vec<String>,
    /// Whether it can run on a preemptible node.
    #[serde(default, deserialize_with = "lenient")]
    pub preemptible: bool,
    /// Maximum run time in seconds; 0 means no limit.
    #[serde(default, deserialize_with = "lenient")]
    pub max_run_time: u64,
    /// Whether it is a workflow runner that waits for children.
    #[serde(default, deserialize_with = "lenient")]
    pub supervisor: bool,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
