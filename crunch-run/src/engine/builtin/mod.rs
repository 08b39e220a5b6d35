//! The built-in OCI runtime: libcontainer in a single-threaded process of its own (the keeper), one for
//! each container, so that a bare machine needs no container engine.

mod build;
mod flatten;
mod gpu;
mod groups;
mod handle;
mod keeper;
mod launch;
mod process;
mod protocol;
mod record;
mod rootfs;
mod spec;
mod user;

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::thread::{CapabilitySet, capabilities};

use self::gpu::{GpuAccess, Machine};
use self::handle::KeptContainer;
use self::protocol::{KEEPER_ARGUMENT, Plan};
use self::record::Record;
use super::{
    Container, ContainerSpec, Engine, EngineError, GpuGrant, Limits, Recovered, StartError,
};
use crate::cgroup::enforce::{Enforceable, parse_cpus};
use crate::cgroup::{Cgroup, Layout, Mode};
use crate::image::{Image, ImageSource, ImageStore};

const NAME: &str = "built-in";
/// With less than this, not even the container's first process can be made.
const LEAST_MEMORY: u64 = 6 << 20;
/// libcontainer mounts with system calls that came with this kernel.
const LEAST_KERNEL: (u32, u32) = (5, 12);
const LDCONFIG_PATIENCE: Duration = Duration::from_secs(10);

/// Becomes the process that keeps one container, and never returns, if this process was started
/// to be that. Must be called before any thread exists.
pub fn helper_main_if_asked() {
    if std::env::args_os().nth(1).as_deref() == Some(OsStr::new(KEEPER_ARGUMENT)) {
        let code = i32::from(keeper::keep().is_err());
        std::process::exit(code);
    }
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that becomes the keeper: this one.
    pub program: PathBuf,
    /// Where each existing container has a note.
    pub run_dir: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            run_dir: "/run/crunch-run".into(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct BuiltinEngine {
    settings: Settings,
    store: ImageStore,
}

impl BuiltinEngine {
    pub fn new(store: ImageStore, settings: Settings) -> Self {
        Self { settings, store }
    }

    async fn create_container(
        &self,
        image: &Image,
        spec: ContainerSpec,
    ) -> Result<Arc<dyn Container>, EngineError> {
        check_binds(&spec)?;
        check_limits(&spec.limits)?;
        let gpus = match &spec.gpus {
            Some(grant) if !grant.ids.is_empty() => {
                Machine::here(linker_cache().await).access(grant)?
            }
            _ => GpuAccess::default(),
        };
        let attempt = format!("{:08x}", fastrand::u32(..));
        let leaf = record::leaf(&spec.name, &attempt);
        let dir = spec.scratch.join(format!("container-{attempt}"));
        let spare_dir = self.store.dir().join("work").join(&leaf);
        let record_path = self.settings.run_dir.join(&leaf);
        let layout = Layout::of_this_process().map_err(|source| EngineError::Io {
            what: "the control groups of this process cannot be read".to_owned(),
            source,
        })?;
        Record {
            group: layout.container_group(&leaf),
            dirs: vec![dir.clone(), spare_dir.clone()],
        }
        .write(&record_path)
        .map_err(|source| EngineError::Io {
            what: format!("the note {} cannot be written", record_path.display()),
            source,
        })?;
        let plan = Plan {
            name: spec.name,
            leaf,
            image: image.config.clone(),
            layers: image.layers.clone(),
            command: spec.command,
            cwd: spec.cwd,
            environment: spec.environment,
            binds: spec.binds,
            network: spec.network,
            limits: spec.limits,
            gpus,
            dir,
            spare_dir,
            record: record_path,
        };
        let container = KeptContainer::create(&self.settings.program, plan, spec.stdio).await?;
        Ok(Arc::new(container))
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

    fn unenforceable(&self, limits: &Limits, gpus: Option<&GpuGrant>) -> Vec<String> {
        let Ok(layout) = Layout::of_this_process() else {
            return vec![
                "no limit can be enforced: the control groups of this process cannot be read"
                    .to_owned(),
            ];
        };
        let swap_is_used =
            std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1);
        let has_gpus = gpus.is_some_and(|g| !g.ids.is_empty());
        unenforceable(
            limits,
            has_gpus,
            Enforceable::here(&layout),
            layout.mode,
            swap_is_used,
        )
    }

    fn prepare_image(&self, source: ImageSource) -> BoxFuture<'_, Result<Image, EngineError>> {
        let store = self.store.clone();
        Box::pin(async move {
            tokio::task::spawn_blocking(move || store.prepare(source))
                .await
                .map_err(|error| EngineError::Io {
                    what: "loading the image was interrupted".to_owned(),
                    source: io::Error::other(error),
                })?
                .map_err(EngineError::from)
        })
    }

    fn create<'a>(
        &'a self,
        image: &'a Image,
        spec: ContainerSpec,
    ) -> BoxFuture<'a, Result<Arc<dyn Container>, EngineError>> {
        Box::pin(self.create_container(image, spec))
    }

    fn recover<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Recovered, EngineError>> {
        let (run_dir, name) = (self.settings.run_dir.clone(), name.to_owned());
        Box::pin(async move {
            let what =
                format!("what an earlier attempt at container {name} left cannot be removed");
            let removed = tokio::task::spawn_blocking(move || record::recover(&run_dir, &name))
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)))
                .map_err(|source| EngineError::Io { what, source })?;
            Ok(Recovered { removed })
        })
    }
}

fn unenforceable(
    limits: &Limits,
    has_gpus: bool,
    can: Enforceable,
    mode: Mode,
    swap_is_used: bool,
) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut missing = |what: String, controller: &str| {
        sentences.push(format!(
            "{what} cannot be enforced: this process can use no {controller} controller here ({mode})"
        ));
    };
    if let Some(bytes) = limits.memory_bytes.filter(|_| !can.memory) {
        missing(format!("the memory limit of {bytes} bytes"), "memory");
    }
    if let Some(vcpus) = limits.vcpus.filter(|_| !can.cpu) {
        missing(format!("the limit of {vcpus} CPUs"), "cpu");
    }
    if let Some(cpus) = limits.cpuset.as_ref().filter(|_| !can.cpuset) {
        missing(format!("the restriction to CPUs {cpus}"), "cpuset");
    }
    if !can.pids {
        let most = limits.pids.unwrap_or(spec::DEFAULT_PIDS);
        missing(format!("the limit of {most} processes"), "pids");
    }
    if limits.memory_bytes.is_some() && can.memory && !can.swap && swap_is_used {
        sentences.push(
            "the memory limit does not cover swap: this kernel does not account swap to control groups".to_owned(),
        );
    }
    if has_gpus && !can.devices {
        sentences.push(format!(
            "the choice of GPUs is not enforced by the kernel ({mode}): the container sees only its own device nodes and cannot make others"
        ));
    }
    sentences
}

fn check_binds(spec: &ContainerSpec) -> Result<(), StartError> {
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

fn check_limits(limits: &Limits) -> Result<(), StartError> {
    if let Some(limit) = limits.memory_bytes.filter(|bytes| *bytes < LEAST_MEMORY) {
        return Err(StartError::MemoryTooSmall {
            limit,
            least: LEAST_MEMORY,
        });
    }
    if let Some(asked) = &limits.cpuset {
        let allowed = allowed_cpus();
        let wanted = parse_cpus(asked).filter(|cpus| !cpus.is_empty());
        let fits = match (&wanted, allowed.as_deref().and_then(parse_cpus)) {
            (Some(wanted), Some(allowed)) => wanted.is_subset(&allowed),
            (Some(_), None) => true,
            (None, _) => false,
        };
        if !fits {
            return Err(StartError::CpusetNotAllowed {
                asked: asked.clone(),
                allowed: allowed.unwrap_or_default(),
            });
        }
    }
    Ok(())
}

/// The CPUs of this process's own group.
fn allowed_cpus() -> Option<String> {
    let own = Cgroup::of_process(std::process::id()).ok()?;
    let dir = own.dir("cpuset")?;
    [
        "cpuset.cpus.effective",
        "cpuset.effective_cpus",
        "cpuset.cpus",
    ]
    .iter()
    .find_map(|name| std::fs::read_to_string(dir.join(name)).ok())
    .map(|text| text.trim().to_owned())
    .filter(|text| !text.is_empty())
    .or_else(|| {
        // The root group of v2 shows none.
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
        Some(online.trim().to_owned())
    })
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// What the dynamic linker knows; empty where it cannot be asked.
async fn linker_cache() -> String {
    let ask = tokio::process::Command::new("ldconfig")
        .arg("-p")
        .env("PATH", "/sbin:/usr/sbin:/bin:/usr/bin")
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(LDCONFIG_PATIENCE, ask).await {
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_that_does_not_hold_is_named() {
        let limits = Limits {
            vcpus: Some(2.0),
            memory_bytes: Some(1 << 30),
            pids: None,
            cpuset: Some("0-1".into()),
        };
        let all = unenforceable(&limits, true, Enforceable::NOTHING, Mode::V2, true);
        for words in [
            "1073741824 bytes",
            "2 CPUs",
            "CPUs 0-1",
            "32768 processes",
            "GPUs",
        ] {
            assert_eq!(
                all.iter().filter(|s| s.contains(words)).count(),
                1,
                "{words}: {all:?}"
            );
        }
        let can = Enforceable {
            memory: true,
            swap: false,
            cpu: true,
            cpuset: true,
            pids: true,
            devices: true,
        };
        assert_eq!(unenforceable(&limits, true, can, Mode::V1, true).len(), 1);
        assert!(unenforceable(&limits, true, can, Mode::V1, false).is_empty());
    }

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
