//! What a container gets for the GPUs granted to it: device nodes, files of the driver, variables, groups and hooks,
//! the same for every engine.
//!
//! Where the node has CDI specifications for GPUs of that kind, they alone say what belongs to each; a GPU that they do
//! not name is refused. Without them it is gathered from the node itself (`nvidia`, `amd`).

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

pub use self::amd::property;
pub use self::cdi::Registry;
use super::{Bind, GpuGrant, GpuStack, StartError};

/// Where CDI specifications are looked for; the later directory wins.
pub const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Long enough for a driver that has to be woken first.
const PATIENCE: Duration = Duration::from_secs(30);

/// What goes into the container. Empty without a grant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuAccess {
    /// The names of the devices in the CDI specifications, if these said what follows.
    pub cdi_names: Vec<String>,
    pub devices: Vec<DeviceNode>,
    pub binds: Vec<Bind>,
    pub environment: Vec<(String, String)>,
    /// To be put before the container's own LD_LIBRARY_PATH.
    pub library_dir: Option<String>,
    /// Groups of the container's user besides those that own the nodes.
    pub more_groups: BTreeSet<u32>,
    pub hooks: Option<Hooks>,
    /// What belongs to the devices but cannot be given to any container here, as sentences.
    pub remarks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// In the container.
    pub path: PathBuf,
    pub host: PathBuf,
    pub is_block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// What its control group allows: some of `rwm`.
    pub access: String,
}

impl GpuAccess {
    /// Groups that the container's user needs if he is not root.
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
    /// As it is on this node.
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

/// The machine as far as GPUs are concerned. Tests make their own.
#[derive(Debug)]
struct Machine {
    dev: PathBuf,
    /// `/proc/driver/nvidia`, there while the driver is loaded.
    nvidia_proc: PathBuf,
    /// What the kernel knows of AMD's devices.
    kfd_nodes: PathBuf,
    /// What `ldconfig -p` prints.
    linker_cache: String,
    /// What `nvidia-container-cli list` prints for the granted devices, where it is installed.
    listed: Option<String>,
    /// Where the driver's programs are looked for.
    programs: PathBuf,
}

/// From the grant to what goes into the container. `cdi_dirs`: later ones win.
pub async fn access(grant: &GpuGrant, cdi_dirs: &[PathBuf]) -> Result<GpuAccess, StartError> {
    let mut machine = Machine::here();
    let registry = Registry::read(cdi_dirs);
    if let Some(access) = machine.by_cdi(grant, &registry)? {
        return Ok(access);
    }
    if grant.stack == GpuStack::Cuda && machine.nvidia_proc.exists() {
        machine.linker_cache = said_by(Command::new("ldconfig").arg("-p"))
            .await
            .unwrap_or_default();
        machine.listed = listed(&grant.ids).await;
    }
    machine.by_hand(grant)
}

impl Machine {
    fn here() -> Self {
        Self {
            dev: "/dev".into(),
            nvidia_proc: "/proc/driver/nvidia".into(),
            kfd_nodes: "/sys/class/kfd/kfd/topology/nodes".into(),
            linker_cache: String::new(),
            listed: None,
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
            names.push(name.ok_or_else(|| StartError::GpuMissing {
                id: id.clone(),
                reason: registry.unknown(),
            })?);
        }
        registry.access(&names).map(Some)
    }

    fn by_hand(&self, grant: &GpuGrant) -> Result<GpuAccess, StartError> {
        match grant.stack {
            GpuStack::Cuda => self.cuda(&grant.ids),
            GpuStack::Rocm => self.rocm(&grant.ids),
        }
    }

    fn required(&self, id: &str, name: &str) -> Result<DeviceNode, StartError> {
        self.node(name).map_err(|reason| StartError::GpuMissing {
            id: id.to_owned(),
            reason,
        })
    }

    fn node(&self, name: &str) -> Result<DeviceNode, String> {
        DeviceNode::of(&self.dev.join(name), &Path::new("/dev").join(name))
    }
}

/// Only which files belong to the driver; nothing else of that program is used.
async fn listed(ids: &[String]) -> Option<String> {
    let mut command = Command::new("nvidia-container-cli");
    if !rustix::process::geteuid().is_root() {
        command.arg("--user");
    }
    said_by(
        command
            .arg("list")
            .arg(format!("--device={}", ids.join(","))),
    )
    .await
}

/// What a program of this node prints; `None` where it is not there, fails, or does not end.
pub(crate) async fn said_by(command: &mut Command) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let answer = command
        .env("PATH", format!("{path}:/sbin:/usr/sbin:/bin:/usr/bin"))
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let answer = tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    answer.status.success().then_some(text)
}

/// Only OCI runtimes run hooks.
pub fn hooks_are_left_out(engine: &str) -> String {
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
