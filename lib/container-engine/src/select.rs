//! Selects the engine. With `auto`, it is the first that really runs a container of this user on
//! this node:
//!
//! - root: built-in, oci, podman, docker, apptainer, singularity;
//! - an ordinary user: apptainer, singularity, oci, podman, docker.
//!
//! Each skipped engine is reported with the reason. A service (podman, docker) runs only images
//! that it has, so it is queried instead of probed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::apptainer::{ApptainerEngine, Variant};
use super::builtin::BuiltinEngine;
use super::docker::{DockerEngine, Flavour, socket};
use super::oci::OciEngine;
use super::shim::Settings;
use super::{
    Bind, Confinement, ContainerSpec, Engine, EngineError, EngineRef, Exit, ExitStatus, Limits,
    Network, Stdio,
};
use crate::EngineChoice;
use node_cache::image::{Image, ImageConfig, ImageStore};

const ROOT_ORDER: &[EngineChoice] = &[
    EngineChoice::Builtin,
    EngineChoice::Oci,
    EngineChoice::Podman,
    EngineChoice::Docker,
    EngineChoice::Apptainer,
    EngineChoice::Singularity,
];
const USER_ORDER: &[EngineChoice] = &[
    EngineChoice::Apptainer,
    EngineChoice::Singularity,
    EngineChoice::Oci,
    EngineChoice::Podman,
    EngineChoice::Docker,
];
/// Timeout of a probe, which takes about 50 ms. Long, because a slow machine does not mean a broken
/// engine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// Directories of the node that its own `true` needs.
const PROBE_DIRS: [&str; 5] = ["/bin", "/lib", "/lib32", "/lib64", "/usr"];

pub struct Selection {
    pub engine: Box<dyn Engine>,
    /// A sentence for each preferred engine that does not work.
    pub skipped: Vec<String>,
}

/// Creates engines with the settings of this run.
pub struct EngineFactory {
    pub store: ImageStore,
    pub oci_runtime: Option<PathBuf>,
    /// Socket of the docker or podman service. The default is the environment's, else the usual
    /// one.
    pub docker_socket: Option<PathBuf>,
    /// Whether containers of an ordinary user get control groups in a delegated one.
    pub delegated_group: bool,
    /// Whether root's containers get users of their own, where that works.
    pub user_namespace: bool,
}

impl EngineFactory {
    fn create(&self, choice: EngineChoice) -> Result<Box<dyn Engine>, EngineError> {
        let store = self.store.clone();
        let settings = Settings {
            delegated_group: self.delegated_group,
            user_namespace: self.user_namespace,
            ..Settings::default()
        };
        Ok(match choice {
            EngineChoice::Docker => Box::new(self.service(Flavour::Docker)?),
            EngineChoice::Podman => Box::new(self.service(Flavour::Podman)?),
            EngineChoice::Auto | EngineChoice::Builtin => {
                Box::new(BuiltinEngine::new(store, settings))
            }
            EngineChoice::Oci => {
                Box::new(OciEngine::new(store, settings, self.oci_runtime.clone()))
            }
            EngineChoice::Apptainer => {
                Box::new(ApptainerEngine::new(store, settings, Variant::Apptainer))
            }
            EngineChoice::Singularity => {
                Box::new(ApptainerEngine::new(store, settings, Variant::Singularity))
            }
        })
    }

    /// The engine of a dead run, as far as `recover` needs it. All engines with a shim share their
    /// state files, so one of them serves for all.
    pub fn for_recovery(&self, reference: &EngineRef) -> Box<dyn Engine> {
        let flavour = match reference.name == Flavour::Podman.name() {
            true => Flavour::Podman,
            false => Flavour::Docker,
        };
        match &reference.socket {
            Some(socket) => Box::new(self.service_at(flavour, socket.clone())),
            None => Box::new(BuiltinEngine::new(self.store.clone(), Settings::default())),
        }
    }

    fn service(&self, flavour: Flavour) -> Result<DockerEngine, EngineError> {
        let env = |name: &str| std::env::var(name).ok();
        let socket = match &self.docker_socket {
            Some(path) => path.clone(),
            None => socket(flavour, env, Path::exists)
                .map_err(|error| EngineError::unavailable(flavour.name(), error.to_string()))?,
        };
        Ok(self.service_at(flavour, socket))
    }

    fn service_at(&self, flavour: Flavour, socket: PathBuf) -> DockerEngine {
        // Every engine has its locks or layers there.
        let locks = self.store.dir().to_owned();
        DockerEngine::new(flavour, socket, locks)
    }
}

/// Selects an engine; `scratch` is a directory for probe containers.
pub async fn select(
    choice: EngineChoice,
    factory: &EngineFactory,
    scratch: &Path,
) -> Result<Selection, EngineError> {
    let mut skipped = Vec::new();
    if choice != EngineChoice::Auto {
        let engine = factory.create(choice)?;
        engine.check()?;
        engine.check_service().await?;
        return Ok(Selection { engine, skipped });
    }
    for candidate in candidates(choice, factory) {
        match probe(candidate, factory, scratch).await {
            Ok(engine) => {
                return Ok(Selection { engine, skipped });
            }
            Err(error) => skipped.push(error.to_string()),
        }
    }
    Err(EngineError::None { reasons: skipped })
}

/// The engines that a choice stands for, best first.
pub fn candidates(choice: EngineChoice, factory: &EngineFactory) -> Vec<EngineChoice> {
    match choice {
        EngineChoice::Auto => preference(
            rustix::process::geteuid().is_root(),
            factory.oci_runtime.is_some(),
        )
        .to_vec(),
        one => vec![one],
    }
}

/// The engine, if it works on this node.
pub async fn probe(
    choice: EngineChoice,
    factory: &EngineFactory,
    scratch: &Path,
) -> Result<Box<dyn Engine>, EngineError> {
    let engine = factory.create(choice)?;
    let is_service = matches!(choice, EngineChoice::Docker | EngineChoice::Podman);
    let outcome = match engine.check() {
        Ok(()) if is_service => engine.check_service().await,
        Ok(()) => probe_container(&*engine, scratch).await,
        failed => failed,
    };
    match outcome {
        Ok(()) => Ok(engine),
        Err(error @ EngineError::Unavailable { .. }) => Err(error),
        Err(error) => Err(EngineError::unavailable(engine.name(), error.to_string())),
    }
}

/// The engines in order of preference. A configured OCI runtime is the only one.
fn preference(is_root: bool, names_oci_runtime: bool) -> &'static [EngineChoice] {
    match (names_oci_runtime, is_root) {
        (true, _) => &[EngineChoice::Oci],
        (false, true) => ROOT_ORDER,
        (false, false) => USER_ORDER,
    }
}

async fn probe_container(engine: &dyn Engine, scratch: &Path) -> Result<(), EngineError> {
    let exit = tokio::time::timeout(PROBE_TIMEOUT, run_true(engine, scratch))
        .await
        .unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))?;
    match exit.status {
        ExitStatus::Code(0) => Ok(()),
        status => Err(failed(io::Error::other(format!(
            "/bin/true ended with status {}",
            status.code()
        )))),
    }
}

fn failed(source: io::Error) -> EngineError {
    EngineError::io("a probe container failed", source)
}

/// Runs the node's own `true` in an otherwise empty container.
async fn run_true(engine: &dyn Engine, scratch: &Path) -> Result<Exit, EngineError> {
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = OwnedFd::from(null.map_err(failed)?);
    let spec = ContainerSpec {
        name: format!("probe-{}-{}", engine.name(), std::process::id()),
        command: vec!["/bin/true".to_owned()],
        cwd: None,
        environment: BTreeMap::new(),
        binds: PROBE_DIRS
            .iter()
            .filter(|dir| Path::new(dir).exists())
            .map(|dir| Bind {
                host: dir.into(),
                target: dir.into(),
                writable: false,
            })
            .collect(),
        network: Network::None,
        limits: Limits::default(),
        gpus: None,
        confinement: Confinement::default(),
        scratch: scratch.to_owned(),
        stdio: Stdio {
            stdin: null.try_clone().map_err(failed)?,
            stdout: null.try_clone().map_err(failed)?,
            stderr: null,
        },
    };
    let image = Image::in_engine_store("probe".to_owned(), ImageConfig::default());
    let container = engine.create(&image, spec).await?;
    let ended = match container.start().await {
        Ok(()) => container.wait().await,
        Err(error) => Err(error),
    };
    container.remove().await?;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_depends_on_who_asks() {
        assert_eq!(
            preference(true, false).first(),
            Some(&EngineChoice::Builtin)
        );
        assert_eq!(
            preference(false, false).first(),
            Some(&EngineChoice::Apptainer)
        );
        // The builtin engine needs root.
        assert!(!preference(false, false).contains(&EngineChoice::Builtin));
        for is_root in [true, false] {
            assert_eq!(preference(is_root, true), [EngineChoice::Oci]);
        }
    }
}
