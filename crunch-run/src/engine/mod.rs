//! The seam between crunch-run and whatever runs the container: a few verbs and plain data.

pub mod apptainer;
pub mod builtin;
pub mod choose;
pub mod docker;
pub mod error;
pub mod gpu;
pub mod kept;
pub mod oci;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Processes};
use crate::image::{Image, ImageSource};
pub use error::{EngineError, StartError};
use gpu::GpuAccess;

/// Something that can run containers on this machine.
pub trait Engine: Send + Sync {
    /// The word people use for it in configuration and logs.
    fn name(&self) -> &'static str;

    /// Whether it can run anything here at all; the error is the sentence to show.
    fn check(&self) -> Result<(), EngineError>;

    /// One sentence for every requested limit or protection that this engine cannot enforce on
    /// this machine. The caller refuses or warns; the engine then runs without that limit.
    fn unenforceable<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<String>>;

    /// Makes the image usable, from the node cache if it is there.
    fn prepare_image(&self, source: ImageSource) -> BoxFuture<'_, Result<Image, EngineError>>;

    /// Builds the container without starting its command. Mounts that are to be bound must be
    /// in place. What can be wrong with the command is found here.
    fn create<'a>(
        &'a self,
        image: &'a Image,
        spec: ContainerSpec,
    ) -> BoxFuture<'a, Result<Arc<dyn Container>, EngineError>>;

    /// Finds and removes whatever an earlier, killed attempt at this container left on this node.
    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>>;

    /// How somebody else finds this engine again.
    fn note(&self) -> EngineNote {
        EngineNote {
            name: self.name().to_owned(),
            socket: None,
        }
    }
}

/// Which engine ran a container, for whoever tidies up after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineNote {
    pub name: String,
    /// Where a service listens; the others keep their notes of what exists in one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

/// One created container. All verbs may be called from several tasks and are safe to cancel.
/// Dropping it without `remove` kills the container and removes its traces.
pub trait Container: Send + Sync {
    fn start(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// The pid of the container's first process, as this machine sees it.
    fn pid(&self) -> Option<u32>;

    /// Where the container's resources are accounted; readable until `remove`.
    fn cgroup(&self) -> Option<Cgroup>;

    fn wait(&self) -> BoxFuture<'_, Result<Exit, EngineError>>;

    /// TERM to the container's processes, and KILL to all of them after `grace`.
    /// Returns when none is left; `wait` then tells how the first process ended.
    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Kills what still runs and removes the container's cgroup, mounts and state.
    fn remove(&self) -> BoxFuture<'_, Result<(), EngineError>>;
}

/// What to run and with what.
#[derive(Debug)]
pub struct ContainerSpec {
    /// The container's uuid.
    pub name: String,
    /// Arguments given to the image's ENTRYPOINT; empty means the image's CMD.
    pub command: Vec<String>,
    /// None, "" and "." mean the image's WORKDIR.
    pub cwd: Option<String>,
    /// Laid over the image's ENV.
    pub environment: BTreeMap<String, String>,
    pub binds: Vec<Bind>,
    pub network: Network,
    pub limits: Limits,
    pub gpus: Option<GpuAccess>,
    /// A directory only this attempt uses, mode 0700; the engine keeps its things in one
    /// sub-directory of it and removes that with the container.
    pub scratch: PathBuf,
    pub stdio: Stdio,
}

#[derive(Debug)]
pub struct Stdio {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time per wall time, as a quota.
    pub vcpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// None means the engine's own default.
    pub pids: Option<u64>,
    /// Concrete CPUs, like "0,2-3".
    pub cpuset: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuStack {
    Cuda,
    Rocm,
}

/// The GPUs the scheduler gave to this container, by the ids it used: index, UUID, or a full CDI name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuGrant {
    pub stack: GpuStack,
    pub ids: Vec<String>,
}

/// How the container's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub status: ExitStatus,
    /// The kernel's out-of-memory killer took a process of this container, whatever `status` says.
    /// Read from the cgroup, never concluded from a status of 137.
    pub oom_killed: bool,
    /// How many times it did.
    pub oom_kills: u64,
    /// The highest memory use the kernel saw, in bytes.
    pub peak_memory: Option<u64>,
    /// Of its own control group, at the end.
    #[serde(default)]
    pub processes: Processes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// From what the kernel says of a process that ended.
    pub fn of(status: rustix::process::WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Code(status.exit_status().unwrap_or(255)),
        }
    }

    /// The number a container record carries: the exit code, or 128 + the signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// What `recover` found, in words for the log; empty when there was nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    pub removed: Vec<String>,
}
