//! The engines docker and podman: containers by a daemon's API over a socket of this node.

pub(crate) mod chown;
mod container;
mod create;
mod errors;
mod image;
mod owner;
mod recover;
mod runtime_check;
mod socket;
mod stdio;
mod wait;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ResourcesUlimits, SystemInfo};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker};
use futures_util::future::BoxFuture;
use tokio::net::unix::UCred;
use tokio::sync::OnceCell;

pub use self::socket::socket;

use self::container::DockerContainer;
use self::create::ContainerDetails;
use super::gpu::{self, GpuAccess};
use super::shim::limits::check as check_limits;
use super::shim::spec_checks::check_argument_lengths;
use super::shim::spec_checks::check_binds;
use super::{
    Container, ContainerSpec, Engine, EngineError, EngineRef, Limits, Recovered, Unenforced,
};
use node_cache::image::{Image, ImageSource};

/// Timeout of an ordinary request to the daemon.
const REQUEST_TIMEOUT_SECONDS: u64 = 60;
/// API version of every podman. It is not queried: podman needs 0.4 s to report its version.
const PODMAN_API_VERSION: &ClientVersion = &ClientVersion {
    major_version: 1,
    minor_version: 40,
};

/// Docker or Podman.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Docker,
    Podman,
}

impl Flavour {
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

#[derive(Debug)]
pub struct DockerEngine {
    flavour: Flavour,
    socket: PathBuf,
    /// Directory of the lock that processes loading images share.
    lock_dir: PathBuf,
    client: OnceCell<Docker>,
    /// The daemon's information. Requested early, since podman needs 0.2 s.
    info: Arc<OnceCell<SystemInfo>>,
}

impl DockerEngine {
    pub fn new(flavour: Flavour, socket: PathBuf, lock_dir: PathBuf) -> Self {
        Self {
            flavour,
            socket,
            lock_dir,
            client: OnceCell::new(),
            info: Arc::default(),
        }
    }

    /// A client of the daemon; docker's uses the newest API version that the daemon supports.
    async fn client(&self) -> Result<&Docker, EngineError> {
        self.client
            .get_or_try_init(async || {
                let path = self.socket.to_string_lossy();
                let connect =
                    |version| Docker::connect_with_unix(&path, REQUEST_TIMEOUT_SECONDS, version);
                let docker = match self.flavour {
                    Flavour::Docker => connect(API_DEFAULT_VERSION)?.negotiate_version().await?,
                    Flavour::Podman => connect(PODMAN_API_VERSION)?,
                };
                let (daemon, info) = (docker.clone(), self.info.clone());
                tokio::spawn(async move {
                    // On an error, `info` requests it again.
                    let _ = info.get_or_try_init(|| daemon.info()).await;
                });
                Ok(docker)
            })
            .await
            .map_err(|error| self.failed("it does not report its API version", error))
    }

    async fn info(&self) -> Result<&SystemInfo, EngineError> {
        let client = self.client().await?;
        let info = self.info.get_or_try_init(|| client.info()).await;
        info.map_err(|error| self.failed("it does not report its capabilities", error))
    }

    fn failed(&self, what: &str, error: Error) -> EngineError {
        let (name, socket) = (self.flavour.name(), self.socket.display());
        EngineError::io(
            format!("{name} at {socket}: {what}"),
            io::Error::other(error),
        )
    }

    async fn create_container(
        &self,
        image: &Image,
        spec: ContainerSpec,
    ) -> Result<Arc<dyn Container>, EngineError> {
        check_binds(&spec)?;
        check_argument_lengths(&spec)?;
        check_limits(&spec.limits)?;
        let client = self.client().await?;
        let stdin_is_given = !stdio::is_null(&spec.stdio.stdin);
        let details = ContainerDetails {
            image,
            gpus: self.gpus(spec.gpus.as_ref()).await,
            stdin_is_given,
            ulimits: self.ulimits().await,
            seccomp: create::seccomp_option(self.flavour, &spec).map_err(|error| {
                EngineError::io("the filter of system calls cannot be written", error)
            })?,
        };
        let name = create::name(&spec.name);
        let body = create::body(&spec, details);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let context = errors::ErrorContext::new(image, &spec);
        let created = client
            .create_container(Some(options), body)
            .await
            .map_err(|error| match context.user_error(&error) {
                Some(user_error) => user_error.into(),
                None => self.failed(&format!("container {} cannot be created", spec.name), error),
            })?;
        let container =
            DockerContainer::new(client.clone(), self.flavour, created.id, spec.name, context);
        let prepared = async {
            container.check_accounts().await?;
            container.attach(spec.stdio, stdin_is_given).await
        };
        if let Err(error) = prepared.await {
            // Not left to a task of `drop`: this program may end before that does.
            if let Err(why) = container.remove().await {
                tracing::warn!(error = %why, "a container of the daemon stays on this node");
            }
            return Err(error);
        }
        Ok(Arc::new(container))
    }

    async fn ulimits(&self) -> Option<Vec<ResourcesUlimits>> {
        if self.flavour == Flavour::Docker {
            return None;
        }
        let service = self.service().await?.pid()?;
        let service = procfs::process::Process::new(service).ok()?;
        Some(create::limits_of(&service.limits().ok()?))
    }

    /// The process that serves the socket.
    async fn service(&self) -> Option<UCred> {
        let peer = tokio::net::UnixStream::connect(&self.socket).await.ok()?;
        peer.peer_cred().ok()
    }

    async fn gpus<'a>(&self, access: Option<&'a GpuAccess>) -> create::Gpus<'a> {
        let info = match (self.flavour, access) {
            (Flavour::Docker, Some(_)) => self.info().await.ok(),
            // Podman's Docker API accepts only device nodes.
            (Flavour::Podman, _) | (_, None) => None,
        };
        let dirs = info.and_then(|info| info.cdi_spec_dirs.as_deref());
        create::Gpus::of(access, dirs.unwrap_or_default())
    }
}

impl Engine for DockerEngine {
    fn name(&self) -> &'static str {
        self.flavour.name()
    }

    fn check(&self) -> Result<(), EngineError> {
        UnixStream::connect(&self.socket)
            .map(drop)
            .map_err(|error| {
                let reason = socket::advice(self.flavour, &self.socket, &error);
                EngineError::unavailable(self.flavour.name(), reason)
            })
    }

    fn check_service(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            // Podman answers slowly, so it is queried only where the answer matters.
            if self.flavour == Flavour::Docker || !runtime_check::has_hybrid_controllers() {
                return Ok(());
            }
            let runtime = self.info().await?.default_runtime.as_deref();
            match runtime.and_then(runtime_check::incompatibility) {
                Some(reason) => Err(EngineError::unavailable(self.flavour.name(), reason)),
                None => Ok(()),
            }
        })
    }

    fn unenforced_limits<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>> {
        Box::pin(async move {
            let mut all = match self.info().await {
                Ok(info) => {
                    let service = self.service().await;
                    let is_ordinary_user = service.is_some_and(|user| user.uid() != 0);
                    create::unenforced_limits(self.flavour, limits, info, is_ordinary_user)
                }
                Err(error) => {
                    vec![format!("which limits it enforces is not known: {error}").into()]
                }
            };
            if let create::Gpus::Nodes(access) = self.gpus(gpus).await
                && access.hooks.is_some()
            {
                all.push(gpu::hooks_not_run(self.flavour.name()).into());
            }
            all
        })
    }

    fn prepare_image(&self, source: ImageSource) -> BoxFuture<'_, Result<Image, EngineError>> {
        Box::pin(async move {
            let client = self.client().await?;
            image::prepare(client, self.flavour, &self.lock_dir, source).await
        })
    }

    fn create<'a>(
        &'a self,
        image: &'a Image,
        spec: ContainerSpec,
    ) -> BoxFuture<'a, Result<Arc<dyn Container>, EngineError>> {
        Box::pin(self.create_container(image, spec))
    }

    fn give_files<'a>(
        &'a self,
        name: &'a str,
        image: Option<&'a Image>,
        dir: &'a Path,
    ) -> BoxFuture<'a, Result<bool, EngineError>> {
        Box::pin(self.take_over_files(name, image.map(|image| image.id.as_str()), dir))
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        Box::pin(self.remove_leftovers(name))
    }

    fn engine_ref(&self) -> EngineRef {
        EngineRef {
            name: self.flavour.name().to_owned(),
            socket: Some(self.socket.clone()),
        }
    }
}

/// Time limit of a step of the daemon that normally takes a moment.
const DAEMON_STEP_TIMEOUT: Duration = Duration::from_secs(60);
