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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, GroupMemory, Processes, SharedKills};
use crate::image::{Image, ImageSource};
pub use error::{EngineError, StartError};
use gpu::GpuAccess;

/// Something that can run containers on this machine.
pub trait Engine: Send + Sync {
    /// The word people use for it in configuration and logs.
    fn name(&self) -> &'static str;

    /// Whether it can run anything here at all; the error is the sentence to show.
    fn check(&self) -> Result<(), EngineError>;

    /// Whether the service that it speaks to can run containers as it is set up. The error says what to
    /// change.
    fn check_service(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Every requested limit or protection that this engine cannot enforce on this machine. The
    /// engine then runs without that limit.
    fn unenforceable<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>>;

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

    /// Gives what a container named `name` left in `dir` to this user, where containers of this engine
    /// may leave files of others. True if there were any. `image` is one that the engine has.
    fn give_files<'a>(
        &'a self,
        _name: &'a str,
        _image: Option<&'a Image>,
        _dir: &'a Path,
    ) -> BoxFuture<'a, Result<bool, EngineError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// How somebody else finds this engine again.
    fn note(&self) -> EngineNote {
        EngineNote {
            name: self.name().to_owned(),
            socket: None,
        }
    }
}

/// A limit or protection that an engine does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforced {
    pub sentence: String,
    /// The scheduler's control group has a limit in its place, so this is no warning.
    pub is_covered: bool,
}

impl From<String> for Unenforced {
    fn from(sentence: String) -> Self {
        Self {
            sentence,
            is_covered: false,
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
    /// The job's control group, where the kills and the peak are its and not the container's own.
    #[serde(default)]
    pub job_group: Option<GroupMemory>,
    /// Highest resident memory of one process, in bytes, where the kernel keeps no peak of all.
    #[serde(default)]
    pub largest_process: Option<u64>,
    /// Of its own control group, at the end.
    #[serde(default)]
    pub processes: Processes,
}

impl Exit {
    /// With what the kernel counted in a control group that the container shares with its job. A
    /// kill there was one of this container if its command was killed, or if nothing else runs there.
    pub fn with_job_group(self, found: Option<SharedKills>) -> Self {
        let was_killed = self.status.code() == 128 + libc::SIGKILL;
        match found {
            Some(found) if was_killed || found.is_alone => Self {
                oom_killed: true,
                oom_kills: found.kills,
                peak_memory: found.memory.peak,
                job_group: Some(found.memory),
                ..self
            },
            _ => self,
        }
    }
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
