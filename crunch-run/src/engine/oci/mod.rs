//! An external OCI runtime (crun, runc) by command, on the same image store, keeper and description as the
//! built-in engine. For root with control groups; for an ordinary user in a user namespace.
//!
//! The keeper mounts the root file system, in a user namespace of its own where it has to: the kernel lets every
//! user mount an overlay there, so neither fuse nor a copy is needed. Under it the *holder* is the first process
//! of a pid namespace and runs the runtime. However keeper or holder die, the kernel ends everything in that
//! namespace, so that no container outlives crunch-run.
//!
//! A user namespace without subordinate ids has one user. In the container that is root, or with crun whoever
//! the image names; runc insists on a root, so an image's USER is root there.

mod build;
mod bundle;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub(in crate::engine) use self::build::build;
pub(in crate::engine) use self::bundle::Bundle;
use super::kept::protocol::Runtime;
use super::kept::{Keeping, Settings, limits, may_mount};
use super::{
    Container, ContainerSpec, Engine, EngineError, GpuAccess, Limits, Recovered, Unenforced,
};
use crate::image::{Image, ImageSource, ImageStore};

const NAME: &str = "oci";
/// Looked for where none is named.
const PROGRAMS: [&str; 2] = ["crun", "runc"];

/// What the runtimes' command lines differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    Crun,
    Runc,
    Other,
}

impl Dialect {
    /// From what `--version` prints.
    fn of(version: &str) -> Self {
        match version.split_whitespace().next() {
            Some("crun") => Self::Crun,
            Some("runc") => Self::Runc,
            _ => Self::Other,
        }
    }
}

/// A runtime on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub path: PathBuf,
    pub dialect: Dialect,
}

#[derive(Debug, Clone)]
pub struct OciEngine {
    keeping: Keeping,
    program: Option<PathBuf>,
    privileged: bool,
}

impl OciEngine {
    /// `program` is a path, or a name to be found in PATH; without it crun, or else runc.
    pub fn new(store: ImageStore, settings: Settings, program: Option<PathBuf>) -> Self {
        Self {
            keeping: Keeping { settings, store },
            program,
            privileged: may_mount(),
        }
    }

    fn find(&self) -> Result<Program, EngineError> {
        let unavailable = |reason: String| EngineError::Unavailable {
            engine: NAME,
            reason,
        };
        let path = match &self.program {
            Some(program) => which::which(program)
                .map_err(|_| unavailable(format!("{} is not a program here", program.display())))?,
            None => PROGRAMS
                .iter()
                .find_map(|name| which::which(name).ok())
                .ok_or_else(|| unavailable("neither crun nor runc is installed".to_owned()))?,
        };
        let asked = Command::new(&path).arg("--version").output();
        let answer = asked
            .map_err(|error| unavailable(format!("{} cannot be run: {error}", path.display())))?;
        if !answer.status.success() {
            return Err(unavailable(format!(
                "{} --version fails: {}",
                path.display(),
                String::from_utf8_lossy(&answer.stderr).trim()
            )));
        }
        let dialect = Dialect::of(&String::from_utf8_lossy(&answer.stdout));
        Ok(Program { path, dialect })
    }
}

impl Engine for OciEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn check(&self) -> Result<(), EngineError> {
        self.find().map(drop)
    }

    fn unenforceable<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>> {
        let sentences = match self.privileged {
            true => limits::unenforceable_here(limits, gpus),
            false => limits::unenforceable_at_all(limits, gpus, limits::NO_GROUPS),
        };
        Box::pin(std::future::ready(sentences))
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
            let runtime = Runtime::Oci(self.find()?);
            self.keeping
                .create(image, spec, runtime, self.privileged)
                .await
        })
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        Box::pin(self.keeping.recover(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_their_version() {
        for (text, expected) in [
            ("crun version 1.8.1\ncommit: f8a0", Dialect::Crun),
            ("runc version 1.1.5+ds1\nspec: 1.0.2-dev", Dialect::Runc),
            ("youki version 0.5", Dialect::Other),
            ("", Dialect::Other),
        ] {
            assert_eq!(Dialect::of(text), expected, "{text}");
        }
    }
}
