//! The built-in engine: libcontainer inside the shim, so that a node needs no container engine.

mod build;
mod exec;
mod init_process;

pub(crate) use self::build::build;
pub use super::shim::Settings;
use super::shim::runtime::Runtime;
use super::shim::{ShimEngine, ShimRuntime, can_mount, limits};
use super::{EngineError, Limits, Unenforced};
use crate::gpu::GpuAccess;
use crate::kernel::running_version;
use cgroup::limit_support::LimitSupport;
use cgroup::{Layout, Mode};
use node_cache::image::ImageStore;

const NAME: &str = "built-in";
/// Minimum kernel: libcontainer uses its mount system calls.
const MIN_KERNEL: (u32, u32) = (5, 12);

/// The engine that needs no program but this one.
pub type BuiltinEngine = ShimEngine<Builtin>;

/// libcontainer inside the shim.
#[derive(Debug, Clone)]
pub struct Builtin;

impl BuiltinEngine {
    pub fn new(store: ImageStore, settings: Settings) -> Self {
        Self {
            runtime: Builtin,
            settings,
            store,
        }
    }
}

impl ShimRuntime for Builtin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn find(&self) -> Result<Runtime, EngineError> {
        Ok(Runtime::Library)
    }

    fn check(&self) -> Result<(), EngineError> {
        let unavailable = |reason: &str| EngineError::unavailable(NAME, reason);
        if !rustix::process::geteuid().is_root() {
            return Err(unavailable(
                "it needs to be root (an ordinary user can use apptainer or rootless podman)",
            ));
        }
        if !can_mount() {
            return Err(unavailable(
                "this process lacks CAP_SYS_ADMIN, without which nothing can be mounted (is it inside an unprivileged container?)",
            ));
        }
        if running_version().is_some_and(|version| version < MIN_KERNEL) {
            let ((major, minor), uname) = (MIN_KERNEL, rustix::system::uname());
            let release = uname.release().to_string_lossy();
            return Err(unavailable(&format!(
                "it needs Linux {major}.{minor} or newer, and this is {release}"
            )));
        }
        let layout = Layout::of_this_process().map_err(|error| {
            unavailable(&format!("its control groups cannot be read ({error})"))
        })?;
        match layout.mode {
            Mode::Absent => Err(unavailable(
                "no control groups are mounted at /sys/fs/cgroup",
            )),
            Mode::V1 | Mode::Hybrid if !LimitSupport::here(&layout).devices => Err(unavailable(
                "the devices controller of cgroup v1 is not mounted",
            )),
            _ => Ok(()),
        }
    }

    fn is_privileged(&self) -> bool {
        true
    }

    fn unenforced_limits(
        &self,
        limits: &Limits,
        gpus: Option<&GpuAccess>,
        _delegated: bool,
    ) -> Vec<Unenforced> {
        limits::unenforced_here(limits, gpus)
    }
}
