//! What a container needs and where it may run: `runtime_constraints` and `scheduling_parameters`.

use serde::{Deserialize, Serialize};

use crate::records::{Extra, lenient};

/// `runtime_constraints`. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeConstraints {
    /// Memory for the container's own processes.
    #[serde(default, deserialize_with = "lenient")]
    pub ram: u64,
    /// CPUs; 0 is allowed and means "a share of one".
    #[serde(default, deserialize_with = "lenient")]
    pub vcpus: u32,
    /// Memory for the Keep cache, on top of `ram`.
    #[serde(default, deserialize_with = "lenient")]
    pub keep_cache_ram: u64,
    /// Disk for the Keep cache.
    #[serde(default, deserialize_with = "lenient")]
    pub keep_cache_disk: u64,
    /// The container talks to the API, and so needs network and a token.
    #[serde(default, rename = "API", deserialize_with = "lenient")]
    pub api: bool,
    /// GPUs.
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
    /// How many.
    #[serde(default, deserialize_with = "lenient")]
    pub device_count: u32,
    /// Lowest driver version, `X.Y`.
    #[serde(default, deserialize_with = "lenient")]
    pub driver_version: String,
    /// Accepted hardware (compute capability or gfx target).
    #[serde(default, deserialize_with = "lenient")]
    pub hardware_target: Vec<String>,
    /// Bytes of memory on each.
    #[serde(default, deserialize_with = "lenient")]
    pub vram: u64,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `scheduling_parameters`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulingParameters {
    /// Slurm partitions the requester wants.
    #[serde(default, deserialize_with = "lenient")]
    pub partitions: Vec<String>,
    /// May run on a preemptible node.
    #[serde(default, deserialize_with = "lenient")]
    pub preemptible: bool,
    /// Seconds after its start when the container is to be stopped; 0 is no limit.
    #[serde(default, deserialize_with = "lenient")]
    pub max_run_time: u64,
    /// It is a workflow runner that waits for children.
    #[serde(default, deserialize_with = "lenient")]
    pub supervisor: bool,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
