//! Builds the daemon's create request from a container's specification. Pure, except that it reads
//! the daemon's CDI files.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HealthConfig, HostConfig,
    HostConfigLogConfig, Mount, MountType, ResourcesUlimits, SystemInfo,
    SystemInfoCgroupVersionEnum,
};

use procfs::process::LimitValue;

use super::Flavour;
use super::owner::{self, Owner};
use crate::gpu::{DeviceNode, GpuAccess, Registry};
use crate::kernel::default_pids;
use crate::shim::limits::unsupported;
use crate::{Bind, ContainerSpec, Limits, Network, Seccomp, Unenforced};
use cgroup::limit_support::LimitSupport;
use node_cache::image::Image;

/// Label with the container's uuid, by which `recover` finds it.
pub const LABEL: &str = "crunch-run.container";
const SCRATCH_LABEL: &str = "crunch-run.scratch";
/// The kernel's default CPU period in microseconds.
const CPU_PERIOD: i64 = 100_000;

/// How the container gets its GPUs.
#[derive(Debug, Clone, Copy)]
pub enum Gpus<'a> {
    None,
    /// Names of devices that the daemon looks up in its CDI files.
    Cdi(&'a [String]),
    Nodes(&'a GpuAccess),
}

impl<'a> Gpus<'a> {
    /// `dirs`: the daemon's own directories with CDI files, none where it has no CDI.
    pub fn of(access: Option<&'a GpuAccess>, dirs: &[String]) -> Self {
        let Some(access) = access else {
            return Self::None;
        };
        let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
        match Registry::read(&dirs).has_all(&access.cdi_names) {
            true => Self::Cdi(&access.cdi_names),
            false => Self::Nodes(access),
        }
    }

    fn nodes(self) -> Option<&'a GpuAccess> {
        match self {
            Self::Nodes(access) => Some(access),
            _ => None,
        }
    }
}

/// Input of the create request beside the specification.
#[derive(Debug)]
pub struct ContainerDetails<'a> {
    pub image: &'a Image,
    pub gpus: Gpus<'a>,
    pub stdin_is_given: bool,
    /// Set if the daemon's defaults do not fit.
    pub ulimits: Option<Vec<ResourcesUlimits>>,
    /// From `seccomp_option`.
    pub seccomp: Option<String>,
}

/// A unique name.
pub fn name(uuid: &str) -> String {
    format!("crunch-run-{uuid}-{:08x}", fastrand::u32(..))
}

pub fn body(spec: &ContainerSpec, details: ContainerDetails<'_>) -> ContainerCreateBody {
    let scratch = spec.scratch.to_string_lossy().into_owned();
    let nodes = details.gpus.nodes();
    let mut labels = labels(&spec.name);
    labels.insert(SCRATCH_LABEL.to_owned(), scratch);
    let working_dir = spec.cwd.clone().filter(|cwd| !cwd.is_empty() && cwd != ".");
    ContainerCreateBody {
        image: Some(details.image.id.clone()),
        // ENTRYPOINT stays the image's, and so does CMD unless there is a command.
        cmd: (!spec.command.is_empty()).then(|| spec.command.clone()),
        working_dir,
        env: Some(environment(&spec.environment, details.image, nodes)),
        labels: Some(labels),
        tty: Some(false),
        attach_stdin: Some(details.stdin_is_given),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(details.stdin_is_given),
        stdin_once: Some(details.stdin_is_given),
        // A job needs no health checks, which are for services.
        healthcheck: Some(no_health_check()),
        host_config: Some(HostConfig {
            ulimits: details.ulimits,
            security_opt: Some(
                std::iter::once("no-new-privileges".to_owned())
                    .chain(details.seccomp)
                    .collect(),
            ),
            ..host_config(spec, details.gpus)
        }),
        ..ContainerCreateBody::default()
    }
}

/// Labels by which `recover` finds a container, and knows whose it is.
pub fn labels(uuid: &str) -> HashMap<String, String> {
    // Without an owner, only the next attempt at this container removes it.
    let owner = Owner::this_process().map(|owner| (owner::LABEL.to_owned(), owner.to_string()));
    let labels = [(LABEL.to_owned(), uuid.to_owned())].into_iter();
    labels.chain(owner).collect()
}

pub fn no_health_check() -> HealthConfig {
    HealthConfig {
        test: Some(vec!["NONE".to_owned()]),
        ..HealthConfig::default()
    }
}

pub fn no_log() -> HostConfigLogConfig {
    HostConfigLogConfig {
        typ: Some("none".to_owned()),
        config: None,
    }
}

fn host_config(spec: &ContainerSpec, gpus: Gpus<'_>) -> HostConfig {
    let nodes = gpus.nodes();
    let limits = &spec.limits;
    let memory = limits.memory_bytes.map(signed);
    let more_binds = nodes.map_or(&[][..], |access| &access.binds);
    HostConfig {
        mounts: Some(spec.binds.iter().chain(more_binds).map(mount).collect()),
        network_mode: Some(
            match spec.network {
                Network::None => "none",
                Network::Host => "host",
            }
            .to_owned(),
        ),
        // NanoCpus would be refused where it is more than the node has.
        cpu_period: limits.vcpus.map(|_| CPU_PERIOD),
        cpu_quota: limits
            .vcpus
            .map(|vcpus| (vcpus * CPU_PERIOD as f64).round().max(1000.0) as i64),
        memory,
        memory_swap: memory,
        pids_limit: Some(signed(limits.pids.unwrap_or_else(default_pids))),
        cpuset_cpus: limits.cpuset.clone(),
        // Output is read as it comes; a copy by the daemon would only fill its disk.
        log_config: Some(no_log()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(spec.confinement.capabilities.names()),
        devices: nodes.map(|access| access.devices.iter().map(device).collect()),
        group_add: nodes.map(|access| access.groups().iter().map(u32::to_string).collect()),
        device_requests: match gpus {
            Gpus::Cdi(names) => Some(vec![DeviceRequest {
                driver: Some("cdi".to_owned()),
                device_ids: Some(names.to_vec()),
                ..DeviceRequest::default()
            }]),
            _ => None,
        },
        ..HostConfig::default()
    }
}

/// The security option for the filter of system calls. Docker's own stays unless the site chose
/// another. Podman's lets a container make namespaces, so podman gets ours.
pub fn seccomp_option(flavour: Flavour, spec: &ContainerSpec) -> io::Result<Option<String>> {
    let path = match (&spec.confinement.seccomp, flavour) {
        (Seccomp::Off, _) => return Ok(Some("seccomp=unconfined".to_owned())),
        (Seccomp::Default, Flavour::Docker) => return Ok(None),
        (Seccomp::Profile(profile), Flavour::Docker) => {
            return Ok(Some(format!("seccomp={}", profile.text)));
        }
        (Seccomp::Default, Flavour::Podman) => {
            let path = spec.scratch.join("seccomp.json");
            let rules = spec.confinement.seccomp.rules().map_err(io::Error::other)?;
            std::fs::write(&path, serde_json::to_vec(&rules)?)?;
            path
        }
        (Seccomp::Profile(profile), Flavour::Podman) => profile.path.clone(),
    };
    Ok(Some(format!("seccomp={}", path.display())))
}

/// Resource limits of the daemon. By default podman raises them, which even root may not always do.
pub fn limits_of(service: &procfs::process::Limits) -> Vec<ResourcesUlimits> {
    [
        ("nofile", service.max_open_files),
        ("nproc", service.max_processes),
    ]
    .map(|(name, limit)| {
        let max = match limit.hard_limit {
            LimitValue::Unlimited => -1,
            LimitValue::Value(max) => signed(max),
        };
        ResourcesUlimits {
            name: Some(name.to_owned()),
            soft: Some(max),
            hard: Some(max),
        }
    })
    .into()
}

/// The daemon overrides the image's variables with these.
fn environment(
    given: &BTreeMap<String, String>,
    image: &Image,
    gpus: Option<&GpuAccess>,
) -> Vec<String> {
    const LIBRARIES: &str = "LD_LIBRARY_PATH";
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    if let Some(gpus) = gpus {
        variables.extend(gpus.environment.iter().cloned());
    }
    variables.extend(given.iter().map(|(k, v)| (k.clone(), v.clone())));
    if let Some(dir) = gpus.and_then(|gpus| gpus.library_dir.as_deref()) {
        let images = image.config.env.iter().filter_map(|v| v.split_once('='));
        let own = variables
            .get(LIBRARIES)
            .cloned()
            .or_else(|| {
                let mut all = images.filter(|(name, _)| *name == LIBRARIES);
                all.next_back().map(|(_, value)| value.to_owned())
            })
            .filter(|value| !value.is_empty());
        let path = own.map_or_else(|| dir.to_owned(), |own| format!("{dir}:{own}"));
        variables.insert(LIBRARIES.to_owned(), path);
    }
    variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

pub fn mount(bind: &Bind) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(bind.host.to_string_lossy().into_owned()),
        target: Some(bind.target.to_string_lossy().into_owned()),
        read_only: Some(!bind.writable),
        ..Mount::default()
    }
}

fn device(node: &DeviceNode) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(node.host.to_string_lossy().into_owned()),
        path_in_container: Some(node.path.to_string_lossy().into_owned()),
        cgroup_permissions: Some(node.access.clone()),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// One sentence for each limit that the daemon reports as unsupported.
/// `is_ordinary_user` is whether the daemon runs as one: podman does not report it.
pub fn unenforced_limits(
    flavour: Flavour,
    limits: &Limits,
    info: &SystemInfo,
    is_ordinary_user: bool,
) -> Vec<Unenforced> {
    let name = flavour.name();
    let is_rootless = is_ordinary_user
        || info
            .security_options
            .iter()
            .flatten()
            .any(|option| option.contains("rootless"));
    let is_v1 = info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1);
    let nothing = is_rootless && is_v1;
    let can = |reported: Option<bool>| !nothing && reported != Some(false);
    let why = if nothing {
        "it runs without root on cgroup v1"
    } else {
        "its control groups lack the controller for it"
    };
    let can = LimitSupport {
        memory: can(info.memory_limit),
        cpu: can(info.cpu_cfs_quota),
        cpuset: can(info.cpu_set),
        pids: can(info.pids_limit),
        ..LimitSupport::NOTHING
    };
    unsupported(limits, can, |what, _| {
        format!("{what} cannot be enforced by {name}: {why}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Capabilities;
    use crate::{Confinement, Stdio};

    #[test]
    fn nobody_listens_on_the_node_s_network() {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        let mut spec = ContainerSpec {
            name: "c".to_owned(),
            command: vec![],
            cwd: None,
            environment: BTreeMap::new(),
            binds: vec![],
            network: Network::None,
            limits: Limits::default(),
            gpus: None,
            confinement: Confinement::default(),
            scratch: PathBuf::new(),
            stdio: Stdio {
                stdin: null(),
                stdout: null(),
                stderr: null(),
            },
        };
        spec.network = Network::Host;
        let config = host_config(&spec, Gpus::None);
        assert_eq!(config.network_mode.as_deref(), Some("host"));
        assert_eq!(config.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(config.cap_add, Some(Capabilities::default().names()));
    }

    #[test]
    fn a_daemon_is_given_names_only_where_it_knows_all_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let spec = r#"{"cdiVersion": "0.6.0", "kind": "lab.example/gpu", "devices": [{"name": "0"}, {"name": "1"}]}"#;
        std::fs::write(dir.path().join("lab.json"), spec).unwrap();
        let its_own = [dir.path().to_string_lossy().into_owned()];
        let access = |names: &[&str]| GpuAccess {
            cdi_names: names
                .iter()
                .map(|n| format!("lab.example/gpu={n}"))
                .collect(),
            ..GpuAccess::default()
        };
        for (names, dirs, by_name) in [
            (&["0", "1"][..], &its_own[..], true),
            (&["0", "2"], &its_own, false),
            // The daemon's CDI support is off.
            (&["0"], &[], false),
            // No specification describes the GPUs.
            (&[], &its_own, false),
        ] {
            let access = access(names);
            let chosen = Gpus::of(Some(&access), dirs);
            assert_eq!(matches!(chosen, Gpus::Cdi(_)), by_name, "{names:?}");
            assert_eq!(chosen.nodes().is_some(), !by_name, "{names:?}");
        }
        assert!(matches!(Gpus::of(None, &its_own), Gpus::None));
    }
}
