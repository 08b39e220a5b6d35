//! Resolves granted GPUs to device nodes, driver files, variables, groups and hooks of the
//! container. The result is the same for every engine.
//!
//! If the node has CDI specifications for GPUs of that kind, only these count, and a GPU that they
//! do not describe is refused. Without them, `nvidia` and `amd` read the node itself.

mod amd;
mod cdi;
mod nvidia;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libcontainer::oci_spec::runtime::Hooks;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

pub use self::amd::{kfd_gpus, parse_property};
pub use self::cdi::Registry;
use super::{Bind, GpuGrant, GpuStack, StartError};

/// Directories of CDI specifications; the later one wins.
pub const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Timeout of a command, which may have to load the driver first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// GPU access of a container. Empty without a grant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuAccess {
    /// Names of the devices in the CDI specifications, if the rest comes from these.
    pub cdi_names: Vec<String>,
    pub devices: Vec<DeviceNode>,
    pub binds: Vec<Bind>,
    pub environment: Vec<(String, String)>,
    /// Prepended to the container's LD_LIBRARY_PATH.
    pub library_dir: Option<String>,
    /// Groups of the container's user besides those that own the nodes.
    pub more_groups: BTreeSet<u32>,
    pub hooks: Option<Hooks>,
    /// Sentences about parts of the devices that no container here can get.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: PathBuf,
    pub host: PathBuf,
    pub is_block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Access that the control group allows: some of `rwm`.
    pub access: String,
}

impl GpuAccess {
    /// Whether the container gets anything of a GPU.
    pub fn is_any(&self) -> bool {
        !self.devices.is_empty() || !self.binds.is_empty() || self.hooks.is_some()
    }

    /// Groups that the container's user needs unless it is root.
    pub fn groups(&self) -> BTreeSet<u32> {
        let owners = self.devices.iter().map(|device| device.gid);
        let groups = owners.filter(|gid| *gid != 0);
        groups.chain(self.more_groups.iter().copied()).collect()
    }

    fn add_device(&mut self, node: DeviceNode) {
        if !self.devices.iter().any(|known| known.path == node.path) {
            self.devices.push(node);
        }
    }
}

impl DeviceNode {
    /// The device node at `path` on this node.
    fn of(host: &Path, path: &Path) -> Result<Self, String> {
        let meta = fs::metadata(host)
            .map_err(|error| format!("{} cannot be used on this node ({error})", host.display()))?;
        let kind = meta.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return Err(format!("{} is not a device", host.display()));
        }
        Ok(Self {
            path: path.to_owned(),
            host: host.to_owned(),
            is_block: kind.is_block_device(),
            major: rustix::fs::major(meta.rdev()),
            minor: rustix::fs::minor(meta.rdev()),
            mode: meta.mode() & 0o777,
            uid: 0,
            gid: meta.gid(),
            access: "rwm".to_owned(),
        })
    }
}

/// GPU-related files of the node. Tests use directories of their own.
#[derive(Debug)]
struct HostGpus {
    dev: PathBuf,
    /// `/proc/driver/nvidia`, there while the driver is loaded.
    nvidia_proc: PathBuf,
    /// Directory of the kernel's data on AMD's devices.
    kfd_nodes: PathBuf,
    /// Output of `ldconfig -p`.
    linker_cache: String,
    /// Output of `nvidia-container-cli list` for the granted devices, if the program is installed.
    container_cli_list: Option<String>,
    /// Directory that is searched for the driver's programs.
    programs: PathBuf,
}

/// Resolves a grant. Later directories of `cdi_dirs` win.
pub async fn access(grant: &GpuGrant, cdi_dirs: &[PathBuf]) -> Result<GpuAccess, StartError> {
    let mut host = HostGpus::detect();
    let registry = Registry::read(cdi_dirs);
    if let Some(access) = host.by_cdi(grant, &registry)? {
        return Ok(access);
    }
    if grant.stack == GpuStack::Cuda && host.nvidia_proc.exists() {
        host.linker_cache = command_output(Command::new("ldconfig").arg("-p"))
            .await
            .unwrap_or_default();
        host.container_cli_list = container_cli_list(&grant.ids).await;
    }
    host.without_cdi(grant)
}

impl HostGpus {
    fn detect() -> Self {
        Self {
            dev: "/dev".into(),
            nvidia_proc: "/proc/driver/nvidia".into(),
            kfd_nodes: "/sys/class/kfd/kfd/topology/nodes".into(),
            linker_cache: String::new(),
            container_cli_list: None,
            programs: "/usr/bin".into(),
        }
    }

    /// `None` where no specification is about GPUs of this kind.
    fn by_cdi(
        &self,
        grant: &GpuGrant,
        registry: &Registry,
    ) -> Result<Option<GpuAccess>, StartError> {
        let kinds: &[&str] = match grant.stack {
            GpuStack::Cuda => &["nvidia.com/gpu", "nvidia.com/mig"],
            GpuStack::Rocm => &["amd.com/gpu"],
        };
        let by_name = grant.ids.iter().any(|id| cdi::is_full_name(id));
        if !by_name && !registry.describes(kinds) {
            return Ok(None);
        }
        let mut names = Vec::new();
        for id in &grant.ids {
            let name = match registry.find(id, kinds) {
                Some(name) => Some(name),
                None if grant.stack == GpuStack::Cuda => self
                    .cuda_minor(id)
                    .ok()
                    .and_then(|minor| registry.with_node(kinds, &format!("/dev/nvidia{minor}"))),
                None => None,
            };
            names.push(name.ok_or_else(|| StartError::gpu_missing(id, registry.not_described()))?);
        }
        registry.access(&names).map(Some)
    }

    fn without_cdi(&self, grant: &GpuGrant) -> Result<GpuAccess, StartError> {
        match grant.stack {
            GpuStack::Cuda => self.cuda(&grant.ids),
            GpuStack::Rocm => self.rocm(&grant.ids),
        }
    }

    fn required(&self, id: &str, name: &str) -> Result<DeviceNode, StartError> {
        self.node(name)
            .map_err(|reason| StartError::gpu_missing(id, reason))
    }

    fn node(&self, name: &str) -> Result<DeviceNode, String> {
        DeviceNode::of(&self.dev.join(name), &Path::new("/dev").join(name))
    }
}

/// The driver's files by `nvidia-container-cli list`; nothing else of that program is used.
async fn container_cli_list(ids: &[String]) -> Option<String> {
    let mut command = Command::new("nvidia-container-cli");
    if !rustix::process::geteuid().is_root() {
        command.arg("--user");
    }
    command_output(
        command
            .arg("list")
            .arg(format!("--device={}", ids.join(","))),
    )
    .await
}

/// Stdout of a program of this node; `None` if it is missing, fails, or times out.
pub async fn command_output(command: &mut Command) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let answer = command
        .env("PATH", format!("{path}:/sbin:/usr/sbin:/bin:/usr/bin"))
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let answer = tokio::time::timeout(COMMAND_TIMEOUT, answer)
        .await
        .ok()?
        .ok()?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    answer.status.success().then_some(text)
}

/// Warning for engines that run no hooks; only OCI runtimes do.
pub fn hooks_not_run(engine: &str) -> String {
    format!(
        "the programs that the vendor of the GPUs wants run when a container is made (CDI hooks) are left out with {engine}"
    )
}

fn numbers(count: usize) -> String {
    let all: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    all.join(",")
}

#[cfg(test)]
mod tests;
