//! Docker, and podman's service that speaks the same API: containers over a socket of this machine.

mod create;
pub mod files;
mod follow;
mod handle;
mod image;
mod messages;
mod owner;
mod recover;
mod runtime;
mod socket;
mod stdio;

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
use tokio::sync::OnceCell;

pub use self::socket::{SocketError, socket};

use self::create::Facts;
use self::handle::DockerContainer;
use super::gpu::{self, GpuAccess};
use super::kept::check_binds;
use super::kept::check_strings;
use super::kept::limits::check as check_limits;
use super::{
    Container, ContainerSpec, Engine, EngineError, EngineNote, Limits, Recovered, Unenforced,
};
use crate::image::{Image, ImageSource};

/// How long the daemon may take to answer an ordinary question.
const ANSWER_SECONDS: u64 = 60;
/// Every podman speaks this. It is not asked: it takes 0.4 s to name its version, since it looks its helpers up.
const PODMANS_VERSION: &ClientVersion = &ClientVersion {
    major_version: 1,
    minor_version: 40,
};

/// Which of the two it is.
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
    /// Where processes that load images find each other.
    lock_dir: PathBuf,
    client: OnceCell<Docker>,
    /// What the daemon says of itself: asked for at once, since podman takes 0.2 s.
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

    /// The daemon, with docker in the newest version of the API that it knows.
    async fn client(&self) -> Result<&Docker, EngineError> {
        self.client
            .get_or_try_init(async || {
                let path = self.socket.to_string_lossy();
                let connect = |version| Docker::connect_with_unix(&path, ANSWER_SECONDS, version);
                let docker = match self.flavour {
                    Flavour::Docker => connect(API_DEFAULT_VERSION)?.negotiate_version().await?,
                    Flavour::Podman => connect(PODMANS_VERSION)?,
                };
                let (asked, info) = (docker.clone(), self.info.clone());
                tokio::spawn(async move {
                    // Who needs it asks again.
                    let _ = info.get_or_try_init(|| asked.info()).await;
                });
                Ok(docker)
            })
            .await
            .map_err(|error| self.failed("it does not say what it speaks", error))
    }

    async fn info(&self) -> Result<&SystemInfo, EngineError> {
        let client = self.client().await?;
        let info = self.info.get_or_try_init(|| client.info()).await;
        info.map_err(|error| self.failed("it does not say what it can do", error))
    }

    fn failed(&self, what: &str, error: Error) -> EngineError {
        EngineError::Io {
            what: format!(
                "{} at {}: {what}",
                self.flavour.name(),
                self.socket.display()
            ),
            source: io::Error::other(error),
        }
    }

    async fn create_container(
        &self,
        image: &Image,
        spec: ContainerSpec,
    ) -> Result<Arc<dyn Container>, EngineError> {
        check_binds(&spec)?;
        check_strings(&spec)?;
        check_limits(&spec.limits)?;
        let client = self.client().await?;
        let stdin_is_given = !stdio::is_null(&spec.stdio.stdin);
        let facts = Facts {
            image,
            gpus: self.gpus(spec.gpus.as_ref()).await,
            stdin_is_given,
            ulimits: self.ulimits().await,
        };
        let name = create::name(&spec.name);
        let body = create::body(&spec, facts);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let about = messages::About::new(image, &spec);
        let created = client
            .create_container(Some(options), body)
            .await
            .map_err(|error| match about.mistake(&error) {
                Some(mistake) => mistake.into(),
                None => self.failed(&format!("container {} cannot be created", spec.name), error),
            })?;
        let container =
            DockerContainer::new(client.clone(), self.flavour, created.id, spec.name, about);
        container.attach(spec.stdio, stdin_is_given).await?;
        Ok(Arc::new(container))
    }

    async fn ulimits(&self) -> Option<Vec<ResourcesUlimits>> {
        if self.flavour == Flavour::Docker {
            return None;
        }
        let peer = tokio::net::UnixStream::connect(&self.socket).await.ok()?;
        let service = peer.peer_cred().ok()?.pid()?;
        let service = procfs::process::Process::new(service).ok()?;
        Some(create::limits_of(&service.limits().ok()?))
    }

    async fn gpus<'a>(&self, access: Option<&'a GpuAccess>) -> create::Gpus<'a> {
        let info = match (self.flavour, access) {
            (Flavour::Docker, Some(_)) => self.info().await.ok(),
            // Its Docker-compatible interface takes only device nodes.
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
            .map_err(|error| EngineError::Unavailable {
                engine: self.flavour.name(),
                reason: socket::advice(self.flavour, &self.socket, &error),
            })
    }

    fn check_service(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            // Podman takes its time to answer, so it is asked only where the answer matters.
            if self.flavour == Flavour::Docker || !runtime::has_hybrid_controllers() {
                return Ok(());
            }
            let runtime = self.info().await?.default_runtime.as_deref();
            match runtime.and_then(runtime::problem) {
                Some(reason) => Err(EngineError::Unavailable {
                    engine: self.flavour.name(),
                    reason,
                }),
                None => Ok(()),
            }
        })
    }

    fn unenforceable<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>> {
        Box::pin(async move {
            let mut sentences = match self.info().await {
                Ok(info) => create::unenforceable(self.flavour, limits, info),
                Err(error) => vec![format!("which limits it enforces is not known: {error}")],
            };
            if let create::Gpus::Nodes(access) = self.gpus(gpus).await
                && access.hooks.is_some()
            {
                sentences.push(gpu::hooks_are_left_out(self.flavour.name()));
            }
            sentences.into_iter().map(Unenforced::from).collect()
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
        Box::pin(self.files_given(name, image.map(|image| image.id.as_str()), dir))
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        Box::pin(self.remove_left_overs(name))
    }

    fn note(&self) -> EngineNote {
        EngineNote {
            name: self.flavour.name().to_owned(),
            socket: Some(self.socket.clone()),
        }
    }
}

/// How long something that should be done in a moment may take.
const PATIENCE: Duration = Duration::from_secs(60);
