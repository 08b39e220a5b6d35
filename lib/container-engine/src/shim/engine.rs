//! The engine of all runtimes that work inside a shim: prepares images in the node cache, starts a
//! shim for each container, and removes what killed attempts left.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cgroup::{Cgroup, Layout};
use futures_util::future::BoxFuture;
use host_state::private_dir;
use node_cache::image::{Image, ImageSource, ImageStore};
use rustix::thread::{CapabilitySet, capabilities};

use super::client::ShimContainer;
use super::protocol::CreateSpec;
use super::read_only_program::ReadOnlyProgram;
use super::runtime::Runtime;
use super::spec_checks::{check_argument_lengths, check_binds};
use super::state_file::{self, ShimProcess, StateFile};
use super::{cgroups, limits};
use crate::gpu::GpuAccess;
use crate::{Container, ContainerSpec, Engine, EngineError, Limits, Recovered, Unenforced};

#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that is re-executed as the shim: by default this one.
    pub program: PathBuf,
    /// Directory of the state files. One beside it is used where another user has taken its name.
    pub run_dir: PathBuf,
    /// Whether containers of an ordinary user get control groups in a delegated one, if there is
    /// one.
    pub delegated_group: bool,
    /// Whether root's containers get users of their own, in a user namespace, where that works.
    pub user_namespace: bool,
}

/// Independent of TMPDIR, because every attempt of this user on this node must use the same
/// directory.
fn default_run_dir() -> PathBuf {
    let user = rustix::process::geteuid();
    match user.is_root() {
        true => "/run/crunch-run".into(),
        false => format!("/tmp/crunch-run-{user}").into(),
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            run_dir: default_run_dir(),
            delegated_group: false,
            user_namespace: false,
        }
    }
}

impl Settings {
    /// Whether containers of this ordinary user get control groups.
    fn has_delegated_group(&self) -> bool {
        let layout = self.delegated_group.then(Layout::of_this_process);
        matches!(layout, Some(Ok(layout)) if cgroups::is_delegated(&layout))
    }
}

/// Whether this process may mount without a user namespace. Root inside most containers may not.
pub fn can_mount() -> bool {
    let held = capabilities(None).map(|held| held.effective);
    rustix::process::geteuid().is_root()
        && held.is_ok_and(|held| held.contains(CapabilitySet::SYS_ADMIN))
}

/// The engine's part of the shim: the runtime that creates the container in the sandbox.
pub trait ShimRuntime: Send + Sync {
    fn name(&self) -> &'static str;

    /// The runtime, as it is on this node now.
    fn find(&self) -> Result<Runtime, EngineError>;

    /// Whether it can run anything on this node.
    fn check(&self) -> Result<(), EngineError> {
        self.find().map(drop)
    }

    /// False if containers get a user namespace, and a control group only in a delegated one.
    fn is_privileged(&self) -> bool;

    /// The limits that do not hold. `delegated`: containers get control groups in a delegated one.
    fn unenforced_limits(
        &self,
        limits: &Limits,
        gpus: Option<&GpuAccess>,
        delegated: bool,
    ) -> Vec<Unenforced>;
}

/// An engine whose containers each have a shim.
#[derive(Debug, Clone)]
pub struct ShimEngine<R> {
    pub(crate) runtime: R,
    pub(crate) settings: Settings,
    pub(crate) store: ImageStore,
}

impl<R: ShimRuntime> ShimEngine<R> {
    async fn prepare(&self, source: ImageSource) -> Result<Image, EngineError> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.prepare(source))
            .await
            .map_err(|error| {
                EngineError::io("loading the image was interrupted", io::Error::other(error))
            })?
            .map_err(EngineError::from)
    }

    /// Starts a shim that creates the container.
    async fn create_container(
        &self,
        image: &Image,
        spec: ContainerSpec,
    ) -> Result<Arc<dyn Container>, EngineError> {
        let (runtime, privileged) = (self.runtime.find()?, self.runtime.is_privileged());
        check_binds(&spec)?;
        check_argument_lengths(&spec)?;
        limits::check(&spec.limits)?;
        let attempt = format!("{:08x}", fastrand::u32(..));
        let cgroup_name = state_file::cgroup_name(&spec.name, &attempt);
        let scratch = spec.scratch.clone();
        let dir = spec.scratch.join(format!("container-{attempt}"));
        let spare_dir = self.store.dir().join("work").join(&cgroup_name);
        let run_dir = private_dir::create_beside(&self.settings.run_dir)
            .map_err(|error| EngineError::io("the state of containers cannot be kept", error))?;
        let state_path = run_dir.join(&cgroup_name);
        let mounts_dir = state_file::mounts_dir(&run_dir, &cgroup_name);
        let layout = Layout::of_this_process().map_err(|error| {
            EngineError::io("the control groups of this process cannot be read", error)
        })?;
        let delegated = !privileged && self.settings.has_delegated_group();
        let group = match privileged || delegated {
            true => layout.container_group(&cgroup_name),
            false => Cgroup::default(),
        };
        let own_group = group.clone();
        let dirs = vec![dir.clone(), spare_dir.clone()];
        let path = state_path.clone();
        let write_state_file = move |shim| {
            // The control group of a privileged container lists the processes.
            let shim = ShimProcess::of_process(shim).filter(|_| !privileged);
            let written = StateFile { group, dirs, shim }.write(&path);
            written.map_err(|error| {
                let path = path.display();
                EngineError::io(format!("the state file {path} cannot be written"), error)
            })
        };
        let create_spec = CreateSpec {
            name: spec.name,
            runtime,
            privileged,
            user_namespace: privileged && self.settings.user_namespace,
            delegated,
            cgroup_name,
            image: image.config.clone(),
            layers: image.layers.clone(),
            command: spec.command,
            cwd: spec.cwd,
            environment: spec.environment,
            binds: spec.binds,
            network: spec.network,
            limits: spec.limits,
            gpus: spec.gpus.unwrap_or_default(),
            confinement: spec.confinement,
            dir,
            spare_dir,
            mounts_dir,
            state_file: state_path,
        };
        let program = self.read_only_program(scratch).await?;
        let container = ShimContainer::create(
            &program,
            create_spec,
            own_group,
            spec.stdio,
            write_state_file,
        )
        .await?;
        Ok(Arc::new(container))
    }

    async fn read_only_program(&self, scratch: PathBuf) -> Result<ReadOnlyProgram, EngineError> {
        let program = self.settings.program.clone();
        // The cache may be full, or nothing may be executed there.
        let dirs = [self.store.dir().join("work"), scratch];
        let opened = tokio::task::spawn_blocking(move || ReadOnlyProgram::open(&program, &dirs));
        let opened = opened.await.map_err(io::Error::other).flatten();
        opened.map_err(|error| {
            EngineError::io(
                "this program cannot be protected from its containers",
                error,
            )
        })
    }

    async fn remove_leftovers(&self, name: &str) -> Result<Recovered, EngineError> {
        let what = format!("what an earlier attempt at container {name} left cannot be removed");
        let (run_dir, name) = (self.settings.run_dir.clone(), name.to_owned());
        let removed =
            tokio::task::spawn_blocking(move || state_file::remove_leftovers(&run_dir, &name))
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)))
                .map_err(|error| EngineError::io(what, error))?;
        Ok(Recovered { removed })
    }
}

impl<R: ShimRuntime> Engine for ShimEngine<R> {
    fn name(&self) -> &'static str {
        self.runtime.name()
    }

    fn check(&self) -> Result<(), EngineError> {
        self.runtime.check()
    }

    fn unenforced_limits<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>> {
        let delegated = !self.runtime.is_privileged() && self.settings.has_delegated_group();
        let unenforced = self.runtime.unenforced_limits(limits, gpus, delegated);
        Box::pin(std::future::ready(unenforced))
    }

    fn prepare_image(&self, source: ImageSource) -> BoxFuture<'_, Result<Image, EngineError>> {
        Box::pin(self.prepare(source))
    }

    fn create<'a>(
        &'a self,
        image: &'a Image,
        spec: ContainerSpec,
    ) -> BoxFuture<'a, Result<Arc<dyn Container>, EngineError>> {
        Box::pin(self.create_container(image, spec))
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        Box::pin(self.remove_leftovers(name))
    }
}
