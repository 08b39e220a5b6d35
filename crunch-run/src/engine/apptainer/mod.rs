//! Apptainer and Singularity by command. They run the image's layers as the keeper has mounted them, with nothing
//! converted: inside the keeper's namespaces a root directory is all they need, and it is writable.
//!
//! What they cannot do: the container's user is always the one crunch-run runs as, HOME is his, variables of their
//! own are in the environment, and a signal that ends the command is told as the exit code 128 + its number.

mod build;
mod dev;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub(in crate::engine) use self::build::build;
use super::kept::protocol::Runtime;
use super::kept::{Keeping, Settings, limits, may_mount};
use super::{Container, ContainerSpec, Engine, EngineError, Limits, Recovered, Unenforced};
use crate::engine::gpu::{self, GpuAccess};
use crate::image::{Image, ImageSource, ImageStore};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    Apptainer,
    Singularity,
}

impl Variant {
    pub fn name(self) -> &'static str {
        match self {
            Self::Apptainer => "apptainer",
            Self::Singularity => "singularity",
        }
    }

    /// What the names of its own variables begin with.
    fn prefix(self) -> &'static str {
        match self {
            Self::Apptainer => "APPTAINER",
            Self::Singularity => "SINGULARITY",
        }
    }
}

/// Whether this is one of the processes it keeps beside the command, or the one that holds its namespaces for us.
pub(in crate::engine) fn is_own(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe"));
    match program(&pid.to_string()) {
        Ok(path) if program("self").is_ok_and(|own| own == path) => true,
        Ok(path) => path
            .file_name()
            .is_some_and(|name| name == "starter" || name == "starter-suid"),
        // One that runs with more rights than ours keeps that to itself.
        Err(_) => std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| matches!(name.trim_end(), "starter" | "starter-suid" | "appinit")),
    }
}

/// One of them on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub path: PathBuf,
    pub variant: Variant,
    /// Where it looks for its own helpers.
    pub search_path: String,
}

#[derive(Debug, Clone)]
pub struct ApptainerEngine {
    keeping: Keeping,
    variant: Variant,
    privileged: bool,
}

impl ApptainerEngine {
    pub fn new(store: ImageStore, settings: Settings, variant: Variant) -> Self {
        Self {
            keeping: Keeping { settings, store },
            variant,
            privileged: may_mount(),
        }
    }

    fn find(&self) -> Result<Program, EngineError> {
        let name = self.variant.name();
        let unavailable = |reason: String| EngineError::Unavailable {
            engine: name,
            reason,
        };
        let path = which::which(name).map_err(|_| unavailable(format!("{name} is not in PATH")))?;
        let asked = Command::new(&path).arg("--version").output();
        match asked {
            Ok(answer) if answer.status.success() => Ok(Program {
                path,
                variant: self.variant,
                search_path: std::env::var("PATH").unwrap_or_default(),
            }),
            Ok(answer) => Err(unavailable(format!(
                "{} --version fails: {}",
                path.display(),
                String::from_utf8_lossy(&answer.stderr).trim()
            ))),
            Err(error) => Err(unavailable(format!(
                "{} cannot be run: {error}",
                path.display()
            ))),
        }
    }

    /// What no control group of ours holds.
    fn lacks(&self, limits: &Limits, gpus: Option<&GpuAccess>) -> Vec<Unenforced> {
        if !self.privileged {
            let mut sentences = limits::unenforceable_at_all(limits, gpus, limits::NO_GROUPS);
            let hooks = hooks_are_left_out(gpus, self.variant.name());
            sentences.extend(hooks.map(Unenforced::from));
            return sentences;
        }
        let why = format!("the {} engine sets none", self.variant.name());
        let mut sentences = limits::unenforceable_at_all(limits, gpus, &why);
        let unmasked = format!(
            "with {} run by root, the container is not kept from changing the node's settings in /proc and /sys",
            self.variant.name()
        );
        sentences.push(unmasked.into());
        let hooks = hooks_are_left_out(gpus, self.variant.name());
        sentences.extend(hooks.map(Unenforced::from));
        sentences
    }
}

/// Said where the vendor's specification has hooks, which only an OCI runtime runs.
fn hooks_are_left_out(gpus: Option<&GpuAccess>, engine: &str) -> Option<String> {
    gpus?
        .hooks
        .is_some()
        .then(|| gpu::hooks_are_left_out(engine))
}

impl Engine for ApptainerEngine {
    fn name(&self) -> &'static str {
        self.variant.name()
    }

    fn check(&self) -> Result<(), EngineError> {
        self.find().map(drop)
    }

    fn unenforceable<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>> {
        Box::pin(std::future::ready(self.lacks(limits, gpus)))
    }

    fn prepare_image(&self, source: ImageSource) -> BoxFuture<'_, Result<Image, EngineError>> {
        Box::pin(self.keeping.prepare_image(source))
    }

    fn create<'a>(
        &'a self,
        image: &'a Image,
        spec: ContainerSpec,
    ) -> BoxFuture<'a, Result<Arc<dyn Container>, EngineError>> {
        Box::pin(async move {
            let runtime = Runtime::Apptainer(self.find()?);
            self.keeping
                .create(image, spec, runtime, self.privileged)
                .await
        })
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        Box::pin(self.keeping.recover(name))
    }
}
