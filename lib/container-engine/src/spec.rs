//! Parts of a container's specification, as plain values.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::seccomp::Seccomp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub host: PathBuf,
    pub target: PathBuf,
    pub writable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Only a loopback interface.
    None,
    /// The node's own network.
    Host,
}

/// What the site lets a container do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Confinement {
    pub seccomp: Seccomp,
    pub capabilities: Capabilities,
}

/// Which users of the node the users of a container are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerUsers {
    /// Those with the same numbers; `reason` says why, where others were wanted.
    OfNode { reason: Option<String> },
    /// Others, in a user namespace of the container's own.
    Own {
        /// The user of the node that is the container's root.
        root: u32,
    },
}

impl Default for ContainerUsers {
    fn default() -> Self {
        Self::OfNode { reason: None }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time per wall time, as a quota.
    pub vcpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// `None` means the engine's default.
    pub pids: Option<u64>,
    /// Concrete CPUs, like "0,2-3".
    pub cpuset: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum GpuStack {
    Cuda,
    Rocm,
}

/// The GPUs that the scheduler granted, by its ids: index, UUID, or full CDI name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuGrant {
    pub stack: GpuStack,
    pub ids: Vec<String>,
}
