//! Builds the OCI runtime specification of a container: Docker's defaults, and the limits that this
//! node can enforce.

mod id_maps;
mod mounts;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{
    LinuxBuilder, LinuxCapabilitiesBuilder, LinuxCpuBuilder, LinuxDeviceBuilder,
    LinuxDeviceCgroupBuilder, LinuxDeviceType, LinuxMemoryBuilder, LinuxNamespaceBuilder,
    LinuxNamespaceType, LinuxPidsBuilder, LinuxResourcesBuilder, LinuxSeccomp, PosixRlimit,
    PosixRlimitBuilder, PosixRlimitType, ProcessBuilder, RootBuilder, Spec, SpecBuilder,
    UserBuilder, get_default_maskedpaths, get_default_readonly_paths,
};

pub use self::id_maps::SpecUsers;
use self::id_maps::{id_mappings, id_maps};
use self::mounts::mounts;
use super::user::Identity;
use crate::capabilities::Capabilities;
use crate::gpu::{DeviceNode, GpuAccess};
use crate::kernel::default_pids;
use crate::{Bind, Limits, Network};
use cgroup::Cgroup;
use cgroup::limit_support::LimitSupport;

/// Period of CPU limits in microseconds.
pub const CPU_PERIOD_US: u64 = 100_000;
/// Minimum CPU quota that the kernel accepts, in microseconds per period.
const MIN_QUOTA_US: i64 = 1_000;
/// Soft limit of open files: more than the usual 1024, since many tools merge thousands of files.
const OPEN_FILES: u64 = 65_536;

/// Input of `build`.
pub struct SpecInput<'a> {
    pub rootfs: &'a Path,
    pub hostname: &'a str,
    pub arguments: &'a [String],
    pub environment: &'a [String],
    pub cwd: &'a str,
    pub identity: &'a Identity,
    pub binds: &'a [Bind],
    pub gpus: &'a GpuAccess,
    pub network: Network,
    pub capabilities: &'a Capabilities,
    /// Set if the runtime installs the filter.
    pub seccomp: Option<&'a LinuxSeccomp>,
    pub limits: &'a Limits,
    /// The quota of the groups above, which a smaller group may not exceed.
    pub parent_quota: Option<f64>,
    pub supported: LimitSupport,
    /// The container's control group as the shim sees it.
    pub group: &'a Cgroup,
    /// The group's path below each hierarchy's root as the shim sees it.
    pub group_path: Option<&'a Path>,
    pub hard_files: u64,
    /// Set in a user namespace of the shim's own, where less can be mounted.
    pub unprivileged: Option<Unprivileged>,
    /// Set if the container's users are not those of the node.
    pub own_users: Option<SpecUsers<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub struct Unprivileged {
    /// A user namespace of the container's own, in which the one user there is has the
    /// container's ids instead of 0.
    pub nested: bool,
}

pub fn build(input: &SpecInput<'_>) -> Result<Spec, OciSpecError> {
    let namespaces = [
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Cgroup,
    ];
    let nested = input.unprivileged.is_some_and(|u| u.nested);
    // No network namespace: the container shares the shim's, which is private where needed.
    let has_users = nested || input.own_users.is_some();
    let namespaces = namespaces
        .into_iter()
        .chain(has_users.then_some(LinuxNamespaceType::User))
        .map(|typ| {
            let namespace = LinuxNamespaceBuilder::default().typ(typ);
            match input.own_users.and_then(|users| users.namespace) {
                Some(path) if typ == LinuxNamespaceType::User => namespace.path(path).build(),
                _ => namespace.build(),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;

    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .resources(resources(input)?);
    if let Some(rules) = input.seccomp {
        linux = linux.seccomp(rules.clone());
    }
    if let Some(path) = input.group_path {
        linux = linux.cgroups_path(path.to_owned());
    }
    if let Some([users, groups]) = id_maps(input) {
        linux = linux
            .uid_mappings(id_mappings(users)?)
            .gid_mappings(id_mappings(groups)?);
    }
    let linux = linux
        .devices(
            input
                .gpus
                .devices
                .iter()
                .filter(|_| input.unprivileged.is_none())
                .map(|node| {
                    LinuxDeviceBuilder::default()
                        .path(node.path.clone())
                        .typ(device_type(node))
                        .major(i64::from(node.major))
                        .minor(i64::from(node.minor))
                        .file_mode(node.mode)
                        .uid(node.uid)
                        .gid(node.gid)
                        .build()
                })
                .collect::<Result<Vec<_>, _>>()?,
        )
        .masked_paths(masked_paths())
        .readonly_paths(get_default_readonly_paths())
        .build()?;

    let mut spec = SpecBuilder::default();
    if let Some(hooks) = &input.gpus.hooks {
        spec = spec.hooks(hooks.clone());
    }
    spec.version("1.0.2")
        .hostname(input.hostname)
        .root(
            RootBuilder::default()
                .path(input.rootfs.to_owned())
                .readonly(false)
                .build()?,
        )
        .process(process(input)?)
        .mounts(mounts(input)?)
        .linux(linux)
        .build()
}

fn device_type(node: &DeviceNode) -> LinuxDeviceType {
    match node.is_block {
        true => LinuxDeviceType::B,
        false => LinuxDeviceType::C,
    }
}

fn process(
    input: &SpecInput<'_>,
) -> Result<libcontainer::oci_spec::runtime::Process, OciSpecError> {
    let capabilities = input.capabilities.set();
    ProcessBuilder::default()
        .terminal(false)
        .args(input.arguments.to_vec())
        .env(input.environment.to_vec())
        .cwd(PathBuf::from(input.cwd))
        .user(
            UserBuilder::default()
                .uid(input.identity.uid)
                .gid(input.identity.gid)
                .additional_gids(input.identity.groups.clone())
                .umask(0o022u32)
                .build()?,
        )
        .capabilities(
            LinuxCapabilitiesBuilder::default()
                .bounding(capabilities.clone())
                .effective(capabilities.clone())
                .permitted(capabilities.clone())
                .inheritable(HashSet::new())
                .ambient(HashSet::new())
                .build()?,
        )
        .no_new_privileges(true)
        .rlimits(rlimits(input.hard_files)?)
        .build()
}

fn masked_paths() -> Vec<String> {
    let mut paths = get_default_maskedpaths();
    for more in [
        "/proc/asound",
        "/proc/interrupts",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
    ] {
        if !paths.iter().any(|p| p == more) {
            paths.push(more.to_owned());
        }
    }
    paths
}

fn rlimits(hard_files: u64) -> Result<Vec<PosixRlimit>, OciSpecError> {
    let limit = |typ, soft, hard| {
        PosixRlimitBuilder::default()
            .typ(typ)
            .soft(soft)
            .hard(hard)
            .build()
    };
    Ok(vec![
        limit(
            PosixRlimitType::RlimitNofile,
            OPEN_FILES.min(hard_files),
            hard_files,
        )?,
        // A core file would be stored with the output.
        limit(PosixRlimitType::RlimitCore, 0, 0)?,
    ])
}

fn resources(
    input: &SpecInput<'_>,
) -> Result<libcontainer::oci_spec::runtime::LinuxResources, OciSpecError> {
    let (limits, can) = (input.limits, input.supported);
    let mut resources = LinuxResourcesBuilder::default();

    if can.devices {
        let mut rules = vec![
            LinuxDeviceCgroupBuilder::default()
                .allow(false)
                .access("rwm")
                .build()?,
        ];
        for node in &input.gpus.devices {
            rules.push(
                LinuxDeviceCgroupBuilder::default()
                    .allow(true)
                    .typ(device_type(node))
                    .major(i64::from(node.major))
                    .minor(i64::from(node.minor))
                    .access(node.access.clone())
                    .build()?,
            );
        }
        resources = resources.devices(rules);
    }
    if can.memory
        && let Some(bytes) = limits.memory_bytes
    {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut memory = LinuxMemoryBuilder::default().limit(bytes);
        if can.swap && input.group.v2.is_none() {
            // In v1 this limit includes memory and swap.
            memory = memory.swap(bytes);
        }
        resources = resources.memory(memory.build()?);
        if can.swap && input.group.v2.is_some() {
            // libcgroups drops a limit of 0 as if none were set, so the file is written literally.
            resources = resources.unified(HashMap::from([(
                "memory.swap.max".to_owned(),
                "0".to_owned(),
            )]));
        }
    }
    if can.pids {
        let max_pids = limits.pids.unwrap_or_else(default_pids);
        resources = resources.pids(
            LinuxPidsBuilder::default()
                .limit(i64::try_from(max_pids).unwrap_or(i64::MAX))
                .build()?,
        );
    }
    let mut cpu = LinuxCpuBuilder::default();
    let mut any_cpu = false;
    if can.cpu
        && let Some(quota) = quota(limits.vcpus, input.parent_quota)
    {
        cpu = cpu.period(CPU_PERIOD_US).quota(quota);
        any_cpu = true;
    }
    if can.cpuset
        && let Some(cpus) = &limits.cpuset
    {
        cpu = cpu.cpus(cpus.clone());
        any_cpu = true;
    }
    if any_cpu {
        resources = resources.cpu(cpu.build()?);
    }
    resources.build()
}

/// CPU time per period in microseconds. A group may not exceed the groups above it.
pub fn quota(vcpus: Option<f64>, above: Option<f64>) -> Option<i64> {
    let vcpus = vcpus.filter(|n| n.is_finite() && *n > 0.0)?;
    let vcpus = above.map_or(vcpus, |above| vcpus.min(above));
    Some(((vcpus * CPU_PERIOD_US as f64) as i64).max(MIN_QUOTA_US))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas() {
        for (vcpus, above, expected) in [
            (Some(1.0), None, Some(100_000)),
            (Some(1.5), None, Some(150_000)),
            (Some(4.0), Some(2.0), Some(200_000)),
            (Some(0.001), None, Some(1_000)),
            (Some(0.0), None, None),
            (Some(f64::NAN), None, None),
            (None, Some(2.0), None),
        ] {
            assert_eq!(quota(vcpus, above), expected, "{vcpus:?} under {above:?}");
        }
    }

    #[test]
    fn only_limits_that_hold_are_described() {
        let identity = Identity {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            home: "/root".into(),
        };
        let limits = Limits {
            vcpus: Some(2.0),
            memory_bytes: Some(1 << 30),
            pids: None,
            cpuset: Some("0".into()),
        };
        let v2 = Cgroup {
            v2: Some("/sys/fs/cgroup/c".into()),
            ..Cgroup::default()
        };
        let everything = LimitSupport::ALL_OF_V2;
        let described = |supported| {
            let input = SpecInput {
                rootfs: Path::new("/r"),
                hostname: "h",
                arguments: &[],
                environment: &[],
                cwd: "/",
                identity: &identity,
                binds: &[],
                gpus: &GpuAccess::default(),
                network: Network::None,
                capabilities: &Capabilities::default(),
                seccomp: None,
                limits: &limits,
                parent_quota: None,
                supported,
                group: &v2,
                group_path: Some(Path::new("/c")),
                hard_files: 1024,
                unprivileged: None,
                own_users: None,
            };
            let spec = serde_json::to_value(build(&input).unwrap()).unwrap();
            spec["linux"]["resources"].clone()
        };
        let all = described(everything);
        assert_eq!(all["memory"]["limit"], 1 << 30);
        // In v2, swap has a separate limit.
        assert!(all["memory"]["swap"].is_null());
        assert_eq!(all["unified"]["memory.swap.max"], "0");
        assert_eq!(all["cpu"]["quota"], 200_000);
        assert_eq!(all["cpu"]["cpus"], "0");
        assert_eq!(all["pids"]["limit"], default_pids());
        let none = described(LimitSupport::NOTHING);
        for key in ["memory", "cpu", "pids", "devices", "unified"] {
            assert!(none[key].is_null(), "{key}: {none}");
        }
    }
}
