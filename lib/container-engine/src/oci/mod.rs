//! The engine of an external OCI runtime (crun, runc), with the image store, shim and specification
//! of the built-in engine. Root gets control groups, and users of the container's own; an ordinary
//! user gets a user namespace with one user.
//!
//! The shim mounts the root file system, in a user namespace of its own where it has to: the kernel
//! lets every user mount an overlay there, so neither fuse nor a copy is needed. Below it `pid1` is
//! the first process of a pid namespace and runs the runtime. However shim or pid 1 die, the kernel
//! ends everything in that namespace, so that no container outlives crunch-run.
//!
//! A user namespace without subordinate ids has one user. In the container that is root, or with
//! crun the image's user. runc requires root, so an image's USER is root there.

mod build;

use std::path::PathBuf;

pub(crate) use self::build::build;
use super::shim::runtime::{Dialect, OciProgram, Runtime};
use super::shim::{Settings, ShimEngine, ShimRuntime, can_mount, limits};
use super::{EngineError, Limits, Unenforced};
use crate::command::version_of;
use crate::gpu::GpuAccess;
use node_cache::image::ImageStore;

const NAME: &str = "oci";
/// Programs that are tried if none is configured.
const PROGRAMS: [&str; 2] = ["crun", "runc"];

/// The engine of an OCI runtime on this node.
pub type OciEngine = ShimEngine<OciRuntime>;

/// crun or runc, by command.
#[derive(Debug, Clone)]
pub struct OciRuntime {
    program: Option<PathBuf>,
    privileged: bool,
}

impl OciEngine {
    /// `program` is a path, or a name to be found in PATH. The default is crun, else runc.
    pub fn new(store: ImageStore, settings: Settings, program: Option<PathBuf>) -> Self {
        let runtime = OciRuntime {
            program,
            privileged: can_mount(),
        };
        Self {
            runtime,
            settings,
            store,
        }
    }
}

impl ShimRuntime for OciRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn find(&self) -> Result<Runtime, EngineError> {
        let unavailable = |reason: String| EngineError::unavailable(NAME, reason);
        let path = match &self.program {
            Some(program) => which::which(program)
                .map_err(|_| unavailable(format!("{} is not a program here", program.display())))?,
            None => PROGRAMS
                .iter()
                .find_map(|name| which::which(name).ok())
                .ok_or_else(|| unavailable("neither crun nor runc is installed".to_owned()))?,
        };
        let dialect = Dialect::of(&version_of(&path).map_err(unavailable)?);
        Ok(Runtime::Oci(OciProgram { path, dialect }))
    }

    fn is_privileged(&self) -> bool {
        self.privileged
    }

    fn unenforced_limits(
        &self,
        limits: &Limits,
        gpus: Option<&GpuAccess>,
        delegated: bool,
    ) -> Vec<Unenforced> {
        limits::unenforced_by_group(limits, gpus, self.privileged || delegated)
    }
}
