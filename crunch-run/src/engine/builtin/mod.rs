//! The built-in OCI runtime: libcontainer in a single-threaded process of its own (the keeper), one for
//! each container, so that a bare machine needs no container engine.

mod build;
mod first;
mod launch;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rustix::thread::{CapabilitySet, capabilities};

pub(in crate::engine) use self::build::{build, foreign_formats};
pub(in crate::engine) use self::launch::{interpreter, is_program};
use super::kept::protocol::Runtime;
use super::kept::{Keeping, limits};
pub use super::kept::{Settings, helper_main_if_asked};
use super::{
    Container, ContainerSpec, Engine, EngineError, GpuAccess, Limits, Recovered, Unenforced,
};
use crate::cgroup::enforce::Enforceable;
use crate::cgroup::{Layout, Mode};
use crate::image::{Image, ImageSource, ImageStore};

const NAME: &str = "built-in";
/// libcontainer mounts with system calls that came with this kernel.
const LEAST_KERNEL: (u32, u32) = (5, 12);

#[derive(Debug, Clone)]
pub struct BuiltinEngine {
    keeping: Keeping,
}

impl BuiltinEngine {
    pub fn new(store: ImageStore, settings: Settings) -> Self {
        Self {
            keeping: Keeping { settings, store },
        }
    }
}

impl Engine for BuiltinEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn check(&self) -> Result<(), EngineError> {
        let unavailable = |reason: String| EngineError::Unavailable {
            engine: NAME,
            reason,
        };
        if !rustix::process::geteuid().is_root() {
            return Err(unavailable(
                "it needs to be root (an ordinary user can use apptainer or rootless podman)"
                    .to_owned(),
            ));
        }
        let held = capabilities(None).map(|c| c.effective);
        if !held.is_ok_and(|held| held.contains(CapabilitySet::SYS_ADMIN)) {
            return Err(unavailable(
                "this process lacks CAP_SYS_ADMIN, without which nothing can be mounted (is it inside an unprivileged container?)".to_owned(),
            ));
        }
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        if kernel_version(&release).is_some_and(|version| version < LEAST_KERNEL) {
            return Err(unavailable(format!(
                "it needs Linux {}.{} or newer, and this is {release}",
                LEAST_KERNEL.0, LEAST_KERNEL.1
            )));
        }
        let layout = Layout::of_this_process()
            .map_err(|error| unavailable(format!("its control groups cannot be read ({error})")))?;
        match layout.mode {
            Mode::Absent => Err(unavailable(
                "no control groups are mounted at /sys/fs/cgroup".to_owned(),
            )),
            Mode::V1 | Mode::Hybrid if !Enforceable::here(&layout).devices => Err(unavailable(
                "the devices controller of cgroup v1 is not mounted".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    fn unenforceable<'a>(
        &'a self,
        limits: &'a Limits,
        gpus: Option<&'a GpuAccess>,
    ) -> BoxFuture<'a, Vec<Unenforced>> {
        let sentences = limits::unenforceable_here(limits, gpus);
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
        Box::pin(self.keeping.create(image, spec, Runtime::Library, true))
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        Box::pin(self.keeping.recover(name))
    }
}

pub(crate) fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions() {
        for (release, expected) in [
            ("6.18.44-fc-v769", Some((6, 18))),
            ("4.18.0-553.el8.x86_64", Some((4, 18))),
            ("odd", None),
        ] {
            assert_eq!(kernel_version(release), expected, "{release}");
        }
    }
}
