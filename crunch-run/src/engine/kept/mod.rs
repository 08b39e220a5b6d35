//! Containers kept by a small single-threaded process of ours (the keeper), one for each: it sets the scene
//! (namespaces, control group, root file system), has a runtime make the container in it, watches it, and takes
//! all of it down when it is told to or when crunch-run is gone. What the engines built on it share is here.

mod flatten;
pub mod groups;
mod handle;
pub mod held;
pub mod holder;
mod keeper;
pub mod limits;
pub mod look;
pub mod members;
mod process;
pub mod protocol;
mod record;
mod rootfs;
pub mod scene;
pub mod spec;
mod user;

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::thread::{CapabilitySet, capabilities};

use self::handle::KeptContainer;
pub use self::keeper::{First, Said};
pub use self::process::variable;
use self::protocol::{KEEPER_ARGUMENT, Plan, Runtime};
use self::record::{Keeper, Record};
pub use self::user::Identity;
use super::docker::files::helper;
use super::{Container, ContainerSpec, EngineError, Recovered, StartError};
use crate::cgroup::{Cgroup, Layout};
use crate::image::{Image, ImageSource, ImageStore};

/// Becomes the process that keeps one container, or that a container of another program lives under, or that gives
/// a container's files away, and never returns, if this process was started to be that. Must be called before any thread exists.
pub fn helper_main_if_asked() {
    let asked = std::env::args_os().nth(1);
    let ended = if asked.as_deref() == Some(OsStr::new(KEEPER_ARGUMENT)) {
        keeper::keep()
    } else if asked.as_deref() == Some(OsStr::new(holder::HOLDER_ARGUMENT)) {
        holder::hold()
    } else if asked.as_deref() == Some(OsStr::new(helper::ARGUMENT)) {
        let dir = std::env::args_os().nth(2).unwrap_or_default();
        helper::give(Path::new(&dir))
    } else {
        return;
    };
    std::process::exit(i32::from(ended.is_err()));
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that becomes the keeper: this one.
    pub program: PathBuf,
    /// Where each existing container has a note.
    pub run_dir: PathBuf,
}

/// The same for every attempt of this user on this node, whatever its TMPDIR.
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
        }
    }
}

/// Whether this is root with root's powers, who needs no user namespace. Root inside of most containers is not.
pub fn may_mount() -> bool {
    let held = capabilities(None).map(|held| held.effective);
    rustix::process::geteuid().is_root()
        && held.is_ok_and(|held| held.contains(CapabilitySet::SYS_ADMIN))
}

/// What an engine with a keeper is made of.
#[derive(Debug, Clone)]
pub struct Keeping {
    pub settings: Settings,
    pub store: ImageStore,
}

impl Keeping {
    pub async fn prepare_image(&self, source: ImageSource) -> Result<Image, EngineError> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.prepare(source))
            .await
            .map_err(|error| EngineError::Io {
                what: "loading the image was interrupted".to_owned(),
                source: io::Error::other(error),
            })?
            .map_err(EngineError::from)
    }

    /// Without privilege the container gets a user namespace instead of a control group.
    pub async fn create(
        &self,
        image: &Image,
        spec: ContainerSpec,
        runtime: Runtime,
        privileged: bool,
    ) -> Result<Arc<dyn Container>, EngineError> {
        check_binds(&spec)?;
        check_strings(&spec)?;
        limits::check(&spec.limits)?;
        let attempt = format!("{:08x}", fastrand::u32(..));
        let leaf = record::leaf(&spec.name, &attempt);
        let dir = spec.scratch.join(format!("container-{attempt}"));
        let spare_dir = self.store.dir().join("work").join(&leaf);
        let record_path = self.settings.run_dir.join(&leaf);
        let layout = Layout::of_this_process().map_err(|source| EngineError::Io {
            what: "the control groups of this process cannot be read".to_owned(),
            source,
        })?;
        let group = match privileged {
            true => layout.container_group(&leaf),
            false => Cgroup::default(),
        };
        let dirs = vec![dir.clone(), spare_dir.clone()];
        let path = record_path.clone();
        let note = move |keeper| {
            // With a control group, the group says what runs.
            let keeper = Keeper::of_process(keeper).filter(|_| !privileged);
            Record {
                group,
                dirs,
                keeper,
            }
            .write(&path)
            .map_err(|source| EngineError::Io {
                what: format!("the note {} cannot be written", path.display()),
                source,
            })
        };
        let plan = Plan {
            name: spec.name,
            runtime,
            privileged,
            leaf,
            image: image.config.clone(),
            layers: image.layers.clone(),
            command: spec.command,
            cwd: spec.cwd,
            environment: spec.environment,
            binds: spec.binds,
            network: spec.network,
            limits: spec.limits,
            gpus: spec.gpus.unwrap_or_default(),
            dir,
            spare_dir,
            record: record_path,
        };
        let container =
            KeptContainer::create(&self.settings.program, plan, spec.stdio, note).await?;
        Ok(Arc::new(container))
    }

    pub async fn recover(&self, name: &str) -> Result<Recovered, EngineError> {
        let what = format!("what an earlier attempt at container {name} left cannot be removed");
        let (run_dir, name) = (self.settings.run_dir.clone(), name.to_owned());
        let removed = tokio::task::spawn_blocking(move || record::recover(&run_dir, &name))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|source| EngineError::Io { what, source })?;
        Ok(Recovered { removed })
    }
}

pub(in crate::engine) fn check_binds(spec: &ContainerSpec) -> Result<(), StartError> {
    for bind in &spec.binds {
        let plain = bind.target.is_absolute()
            && bind.target != Path::new("/")
            && bind
                .target
                .components()
                .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        if !plain {
            return Err(StartError::BadBindTarget {
                target: bind.target.clone(),
            });
        }
        if let Err(error) = std::fs::metadata(&bind.host)
            && error.kind() == io::ErrorKind::NotFound
        {
            return Err(StartError::BindSourceMissing {
                host: bind.host.clone(),
                target: bind.target.clone(),
            });
        }
    }
    Ok(())
}

/// The kernel takes no argument or variable longer than 32 pages. Runtimes find that out when it is too late to say so.
pub(in crate::engine) fn check_strings(spec: &ContainerSpec) -> Result<(), StartError> {
    let most = 32 * procfs::page_size() as usize;
    // Each has a zero byte at its end.
    let mut arguments = spec.command.iter().map(|argument| argument.len() + 1);
    let mut variables = spec
        .environment
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2);
    if arguments.any(|length| length > most) || variables.any(|length| length > most) {
        return Err(StartError::ArgumentsTooLong {
            resolved: spec.command.first().cloned().unwrap_or_default(),
        });
    }
    Ok(())
}
