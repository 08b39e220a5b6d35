//! The traits of an engine and of a container, and the values that only they exchange.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cgroup::Cgroup;
use futures_util::future::BoxFuture;
use node_cache::image::{Image, ImageSource};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::exit::Exit;
use crate::gpu::GpuAccess;
use crate::shim::RuntimeProcesses;
use crate::spec::{Bind, Confinement, ContainerUsers, Limits, Network};

/// Something that can run containers on this machine.
pub trait Engine: Send + Sync {
    /// Name in configuration and logs.
    fn name(&self) -> &'static str;

    /// Checks whether the engine can run containers on this node; the error says why not.
    fn check(&self) -> Result<(), EngineError>;

    /// Checks whether the engine's service can run containers with its present configuration; the
    /// error says what to change.
    fn check_service(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The requested limits and protections that this engine cannot enforce on this node. The
    /// container runs without them.
    fn unenforced_limits<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>>;

    /// Prepares the image, from the node cache if it has it.
    fn prepare_image(&self, source: ImageSource) -> BoxFuture<'_, Result<Image, EngineError>>;

    /// Creates the container without starting its command. The sources of binds must exist. Errors
    /// of the command are found here.
    fn create<'a>(
        &'a self,
        image: &'a Image,
        spec: ContainerSpec,
    ) -> BoxFuture<'a, Result<Arc<dyn Container>, EngineError>>;

    /// Finds and removes what an earlier, killed attempt at this container left on this node.
    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>>;

    /// Makes this user the owner of files that container `name` left in `dir` under other users.
    /// Returns whether there were any. `image` is an image that the engine has.
    fn give_files<'a>(
        &'a self,
        _name: &'a str,
        _image: Option<&'a Image>,
        _dir: &'a Path,
    ) -> BoxFuture<'a, Result<bool, EngineError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Reference by which another process finds this engine again.
    fn engine_ref(&self) -> EngineRef {
        EngineRef {
            name: self.name().to_owned(),
            socket: None,
        }
    }
}

/// A limit or protection that an engine does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforced {
    pub sentence: String,
    /// How far limits of the scheduler's control group replace it.
    pub cover: LimitCover,
    /// The limits that nothing enforces, not even the scheduler's control group.
    pub missing: Vec<LimitKind>,
}

/// A limit on what a container takes of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    Memory,
    Cpus,
    Processes,
}

/// How far limits of the scheduler's control group replace those of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitCover {
    /// Not at all: the container can take what it wants.
    Nothing,
    /// Either memory or CPUs are limited.
    Partial,
    /// Memory and CPUs are limited.
    Full,
}

impl Unenforced {
    /// A limit that nothing enforces.
    pub fn limit(kind: LimitKind, sentence: String) -> Self {
        Self {
            missing: vec![kind],
            ..Self::from(sentence)
        }
    }
}

impl From<String> for Unenforced {
    fn from(sentence: String) -> Self {
        Self {
            sentence,
            cover: LimitCover::Nothing,
            missing: Vec::new(),
        }
    }
}

/// Reference to the engine of a container, for the process that cleans up after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRef {
    pub name: String,
    /// Socket of a service. The other engines share one directory of state files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

/// One created container. All verbs may be called from several tasks and are safe to cancel.
/// Dropping it without `remove` kills the container and removes its traces.
pub trait Container: Send + Sync {
    fn start(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Pid of the container's first process on this node.
    fn pid(&self) -> Option<u32>;

    /// Which of the container's processes are the runtime's, if any are.
    fn runtime_processes(&self) -> RuntimeProcesses {
        RuntimeProcesses::default()
    }

    /// Which users of the node its users are, where crunch-run decides that for root.
    fn users(&self) -> Option<ContainerUsers> {
        None
    }

    /// The control group that accounts the container; readable until `remove`.
    fn cgroup(&self) -> Option<Cgroup>;

    /// Directories that the writable layer of the container's own root may be in. Empty where a
    /// service has it.
    fn writable_layers(&self) -> &[PathBuf] {
        &[]
    }

    fn wait(&self) -> BoxFuture<'_, Result<Exit, EngineError>>;

    /// TERM to the container's processes, and KILL to all of them after `grace`.
    /// Returns when none is left; `wait` then returns the exit status of the first process.
    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Paths of files that the command left in the container's own root, outside of its mounts: at
    /// most `limit` of those for which `wanted` is true. For a container that has ended; empty if
    /// they cannot be listed.
    fn files_in_root(&self, wanted: fn(&str) -> bool, limit: usize) -> BoxFuture<'_, Vec<String>>;

    /// Kills what still runs and removes the container's cgroup, mounts and state.
    fn remove(&self) -> BoxFuture<'_, Result<(), EngineError>>;
}

/// Specification of a container.
#[derive(Debug)]
pub struct ContainerSpec {
    /// The container's uuid.
    pub name: String,
    /// Arguments given to the image's ENTRYPOINT; empty means the image's CMD.
    pub command: Vec<String>,
    /// None, "" and "." mean the image's WORKDIR.
    pub cwd: Option<String>,
    /// Overrides the image's ENV.
    pub environment: BTreeMap<String, String>,
    pub binds: Vec<Bind>,
    pub network: Network,
    pub limits: Limits,
    pub gpus: Option<GpuAccess>,
    pub confinement: Confinement,
    /// A directory of this attempt alone, mode 0700. The engine uses one sub-directory and removes
    /// it with the container.
    pub scratch: PathBuf,
    pub stdio: Stdio,
}

#[derive(Debug)]
pub struct Stdio {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// What `recover` removed, as text for the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    pub removed: Vec<String>,
}
