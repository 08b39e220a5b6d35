//! The engine of Apptainer and Singularity. They run the image's layers as the shim mounted them,
//! without conversion: inside the shim's namespaces they need only a writable root directory.
//!
//! Limits of these programs: the container's user and HOME are always those of crunch-run, the
//! environment has variables of their own, and a fatal signal becomes exit code 128 + its number.

mod build;
mod dev;

pub(crate) use self::build::build;
pub use super::shim::runtime::Variant;
use super::shim::runtime::{ApptainerProgram, Runtime};
use super::shim::{Settings, ShimEngine, ShimRuntime, can_mount, limits};
use super::{EngineError, Limits, Unenforced};
use crate::command::version_of;
use crate::gpu::{self, GpuAccess};
use node_cache::image::ImageStore;

/// The engine of Apptainer or Singularity on this node.
pub type ApptainerEngine = ShimEngine<ApptainerRuntime>;

/// Apptainer or Singularity, by command.
#[derive(Debug, Clone)]
pub struct ApptainerRuntime {
    variant: Variant,
    privileged: bool,
}

impl ApptainerEngine {
    pub fn new(store: ImageStore, settings: Settings, variant: Variant) -> Self {
        let runtime = ApptainerRuntime {
            variant,
            privileged: can_mount(),
        };
        Self {
            runtime,
            settings,
            store,
        }
    }
}

impl ShimRuntime for ApptainerRuntime {
    fn name(&self) -> &'static str {
        self.variant.name()
    }

    fn find(&self) -> Result<Runtime, EngineError> {
        let name = self.variant.name();
        let unavailable = |reason: String| EngineError::unavailable(name, reason);
        let path = which::which(name).map_err(|_| unavailable(format!("{name} is not in PATH")))?;
        version_of(&path).map_err(unavailable)?;
        Ok(Runtime::Apptainer(ApptainerProgram {
            path,
            variant: self.variant,
            search_path: std::env::var("PATH").unwrap_or_default(),
        }))
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
        let name = self.variant.name();
        let mut all = if self.privileged {
            let why = format!("the {name} engine sets none");
            limits::unenforced_without_cgroup(limits, gpus, &why)
        } else {
            limits::unenforced_by_group(limits, gpus, delegated)
        };
        if self.privileged {
            let unmasked = format!(
                "with {name} run by root, the container is not kept from changing the node's settings in /proc and /sys"
            );
            all.push(unmasked.into());
        }
        // Only an OCI runtime runs the hooks of the vendor's specification.
        if gpus.is_some_and(|gpus| gpus.hooks.is_some()) {
            all.push(gpu::hooks_not_run(name).into());
        }
        all
    }
}
