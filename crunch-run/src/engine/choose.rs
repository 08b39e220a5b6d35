//! Which engine to use. With `auto`, the first that really runs a container of this user on this node:
//!
//! - root: built-in, oci, podman, docker, apptainer, singularity;
//! - an ordinary user: apptainer, singularity, oci, podman, docker.
//!
//! Those before the chosen one are named with the reason why they were not. A service (podman, docker) runs only
//! images that it was given, so it is asked what it can do instead.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::apptainer::{ApptainerEngine, Variant};
use super::builtin::BuiltinEngine;
use super::docker::{DockerEngine, Flavour, socket};
use super::kept::Settings;
use super::oci::OciEngine;
use super::{
    Bind, ContainerSpec, Engine, EngineError, EngineNote, Exit, ExitStatus, Limits, Network, Stdio,
};
use crate::flags::EngineChoice;
use crate::image::{Image, ImageConfig, ImageStore};

const FOR_ROOT: &[EngineChoice] = &[
    EngineChoice::Builtin,
    EngineChoice::Oci,
    EngineChoice::Podman,
    EngineChoice::Docker,
    EngineChoice::Apptainer,
    EngineChoice::Singularity,
];
const FOR_USERS: &[EngineChoice] = &[
    EngineChoice::Apptainer,
    EngineChoice::Singularity,
    EngineChoice::Oci,
    EngineChoice::Podman,
    EngineChoice::Docker,
];
/// A trial takes some 50 ms where nothing is wrong. A machine that stands still for a while is no fault of the engine.
const TRIAL_PATIENCE: Duration = Duration::from_secs(60);
/// Enough of the node to run its own `true`.
const TRIAL_DIRS: [&str; 5] = ["/bin", "/lib", "/lib32", "/lib64", "/usr"];

pub struct Chosen {
    pub engine: Box<dyn Engine>,
    /// A sentence for each that comes before it and does not work.
    pub passed_over: Vec<String>,
}

/// What engines are made of.
pub struct Makers {
    pub store: ImageStore,
    pub oci_runtime: Option<PathBuf>,
    /// Where the docker or podman service listens; else the environment and the usual places tell.
    pub docker_socket: Option<PathBuf>,
}

impl Makers {
    fn make(&self, choice: EngineChoice) -> Result<Box<dyn Engine>, EngineError> {
        let (store, settings) = (self.store.clone(), Settings::default());
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

    /// The engine of a run that is gone, as far as `recover` needs it: what is no service has one place for its notes.
    pub fn noted(&self, note: &EngineNote) -> Box<dyn Engine> {
        let flavour = match note.name == Flavour::Podman.name() {
            true => Flavour::Podman,
            false => Flavour::Docker,
        };
        match &note.socket {
            Some(socket) => Box::new(self.service_at(flavour, socket.clone())),
            None => Box::new(BuiltinEngine::new(self.store.clone(), Settings::default())),
        }
    }

    fn service(&self, flavour: Flavour) -> Result<DockerEngine, EngineError> {
        let env = |name: &str| std::env::var(name).ok();
        let socket = match &self.docker_socket {
            Some(path) => path.clone(),
            None => {
                socket(flavour, env, Path::exists).map_err(|error| EngineError::Unavailable {
                    engine: flavour.name(),
                    reason: error.to_string(),
                })?
            }
        };
        Ok(self.service_at(flavour, socket))
    }

    fn service_at(&self, flavour: Flavour, socket: PathBuf) -> DockerEngine {
        // Every engine keeps its locks or layers there.
        let locks = self.store.dir().to_owned();
        DockerEngine::new(flavour, socket, locks)
    }
}

/// `scratch` is where a trial container may be made.
pub async fn choose(
    choice: EngineChoice,
    makers: &Makers,
    scratch: &Path,
) -> Result<Chosen, EngineError> {
    let mut passed_over = Vec::new();
    if choice != EngineChoice::Auto {
        let engine = makers.make(choice)?;
        engine.check()?;
        engine.check_service().await?;
        return Ok(Chosen {
            engine,
            passed_over,
        });
    }
    for candidate in order(choice, makers) {
        match try_out(candidate, makers, scratch).await {
            Ok(engine) => {
                return Ok(Chosen {
                    engine,
                    passed_over,
                });
            }
            Err(error) => passed_over.push(error.to_string()),
        }
    }
    Err(EngineError::None {
        reasons: passed_over,
    })
}

/// Which engines a choice stands for, best first.
pub fn order(choice: EngineChoice, makers: &Makers) -> Vec<EngineChoice> {
    match choice {
        EngineChoice::Auto => candidates(
            rustix::process::geteuid().is_root(),
            makers.oci_runtime.is_some(),
        )
        .to_vec(),
        one => vec![one],
    }
}

/// The engine, if it really works here.
pub async fn try_out(
    choice: EngineChoice,
    makers: &Makers,
    scratch: &Path,
) -> Result<Box<dyn Engine>, EngineError> {
    let engine = makers.make(choice)?;
    let is_service = matches!(choice, EngineChoice::Docker | EngineChoice::Podman);
    let tried = match is_service {
        true => match engine.check() {
            Ok(()) => engine.check_service().await,
            failed => failed,
        },
        false => works(&*engine, scratch).await,
    };
    match tried {
        Ok(()) => Ok(engine),
        Err(error @ EngineError::Unavailable { .. }) => Err(error),
        Err(error) => Err(EngineError::Unavailable {
            engine: engine.name(),
            reason: error.to_string(),
        }),
    }
}

/// Who names an OCI runtime wants it used.
fn candidates(is_root: bool, names_oci_runtime: bool) -> &'static [EngineChoice] {
    match (names_oci_runtime, is_root) {
        (true, _) => &[EngineChoice::Oci],
        (false, true) => FOR_ROOT,
        (false, false) => FOR_USERS,
    }
}

async fn works(engine: &dyn Engine, scratch: &Path) -> Result<(), EngineError> {
    engine.check()?;
    let exit = tokio::time::timeout(TRIAL_PATIENCE, trial(engine, scratch))
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
    EngineError::Io {
        what: "a trial container failed".to_owned(),
        source,
    }
}

/// Runs the node's own `true` in an otherwise empty container.
async fn trial(engine: &dyn Engine, scratch: &Path) -> Result<Exit, EngineError> {
    let null = || {
        File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(failed)
    };
    let spec = ContainerSpec {
        name: format!("trial-{}-{}", engine.name(), std::process::id()),
        command: vec!["/bin/true".to_owned()],
        cwd: None,
        environment: BTreeMap::new(),
        binds: TRIAL_DIRS
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
        scratch: scratch.to_owned(),
        stdio: Stdio {
            stdin: null()?.into(),
            stdout: null()?.into(),
            stderr: null()?.into(),
        },
    };
    let image = Image::elsewhere("trial".to_owned(), ImageConfig::default());
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
            candidates(true, false).first(),
            Some(&EngineChoice::Builtin)
        );
        assert_eq!(
            candidates(false, false).first(),
            Some(&EngineChoice::Apptainer)
        );
        // It needs root.
        assert!(!candidates(false, false).contains(&EngineChoice::Builtin));
        for is_root in [true, false] {
            assert_eq!(candidates(is_root, true), [EngineChoice::Oci]);
        }
    }
}
