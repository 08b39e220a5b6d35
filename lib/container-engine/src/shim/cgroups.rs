//! Creates the container's control group, and mounts the hierarchies in the shim so that
//! libcontainer puts the container below the scheduler's group in each. libcontainer itself uses
//! one path for all.
//!
//! An ordinary user has none, except in a group that was delegated to this user; there the limits
//! are set here.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::mount::mount_bind;

use super::oci_spec;
use crate::Limits;
use crate::kernel::default_pids;
use cgroup::layout::ROOT;
use cgroup::limit_support::LimitSupport;
use cgroup::{Cgroup, Layout, Mode};

/// The container's group by its paths outside and, shorter, inside the shim.
pub struct ContainerCgroups {
    pub outside: Cgroup,
    pub inside: Cgroup,
    pub supported: LimitSupport,
    pub parent_quota: Option<f64>,
}

impl ContainerCgroups {
    /// The path of the group of version 2 below the root of its hierarchy.
    pub fn path_below_root(&self) -> Option<PathBuf> {
        let below = self.outside.v2.as_ref()?.strip_prefix(ROOT).ok()?;
        Some(Path::new("/").join(below))
    }
}

/// Makes the directories. Must run in a mount namespace of the shim's own.
pub fn prepare(name: &str) -> io::Result<ContainerCgroups> {
    make(name, true)
}

/// Whether an ordinary user may make groups for containers: with cgroup v2, in a group that belongs
/// to this user and has no process of its own (cgroups(7), "no internal processes").
pub fn is_delegated(layout: &Layout) -> bool {
    let Some(v2) = layout.v2().filter(|_| layout.mode == Mode::V2) else {
        return false;
    };
    let parent = v2.parent_of_containers();
    let is_own = |dir: &Path| {
        let owner = fs::metadata(dir).map(|facts| facts.uid());
        owner.is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
    };
    let processes = fs::read_to_string(parent.join("cgroup.procs"));
    is_own(&parent)
        && is_own(&parent.join("cgroup.procs"))
        && processes.is_ok_and(|list| list.trim().is_empty())
}

/// Makes the directory in a delegated group, and sets the limits: the runtime of an ordinary user
/// sets none.
pub fn prepare_delegated(name: &str, limits: &Limits) -> io::Result<ContainerCgroups> {
    let groups = make(name, false)?;
    let Some(dir) = &groups.outside.v2 else {
        return Err(io::Error::other("this machine has no cgroup v2"));
    };
    for (name, value) in files_of_limits(limits, groups.supported, groups.parent_quota) {
        if let Err(error) = fs::write(dir.join(name), &value) {
            let _ = fs::remove_dir(dir);
            let reason = format!("{value:?} cannot be written to {name}: {error}");
            return Err(io::Error::new(error.kind(), reason));
        }
    }
    Ok(groups)
}

/// The files of a group of version 2 that limit a container, with their content.
fn files_of_limits(
    limits: &Limits,
    can: LimitSupport,
    parent_quota: Option<f64>,
) -> impl Iterator<Item = (&'static str, String)> {
    let memory = limits.memory_bytes.filter(|_| can.memory);
    let quota = oci_spec::quota(limits.vcpus, parent_quota).filter(|_| can.cpu);
    let files = [
        memory.map(|bytes| ("memory.max", bytes.to_string())),
        memory
            .filter(|_| can.swap)
            .map(|_| ("memory.swap.max", "0".to_owned())),
        quota.map(|quota| ("cpu.max", format!("{quota} {}", oci_spec::CPU_PERIOD_US))),
        limits
            .cpuset
            .clone()
            .filter(|_| can.cpuset)
            .map(|cpus| ("cpuset.cpus", cpus)),
        can.pids.then(|| {
            let most = limits.pids.unwrap_or_else(default_pids);
            ("pids.max", most.to_string())
        }),
    ];
    files.into_iter().flatten()
}

/// Makes the directories. With `mount`, the hierarchies are mounted so that the container's parent
/// is their root.
fn make(name: &str, mount: bool) -> io::Result<ContainerCgroups> {
    let layout = Layout::of_this_process()?;
    if layout.mode == Mode::Absent {
        return Err(io::Error::other(
            "there are no control groups at /sys/fs/cgroup",
        ));
    }
    let outside = layout.container_group(name);
    let mut supported = LimitSupport::here(&layout);
    let mut inside = Cgroup::default();
    let mut parent_quota = None;
    for hierarchy in layout.accounting() {
        let parent = hierarchy.parent_of_containers();
        if hierarchy.is_v2() {
            enable_controllers(&parent, &supported);
        }
        let dir = parent.join(name);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                // The groups created so far have no process.
                for made in outside.dirs() {
                    let _ = fs::remove_dir(made);
                }
                return Err(io::Error::new(
                    error.kind(),
                    format!("control group {} cannot be made: {error}", dir.display()),
                ));
            }
            _ => {}
        }
        if hierarchy.is_v2() {
            supported = effective_limits(&dir, supported);
        }
        if hierarchy.is_v2() || hierarchy.controllers.iter().any(|c| c == "cpu") {
            let mut above = Cgroup::default();
            above.add(hierarchy, &parent);
            parent_quota = above.cpu_quota();
        }
        let mut inside_dir = dir;
        if mount {
            if parent != hierarchy.mount {
                mount_bind(&parent, &hierarchy.mount)?;
            }
            inside_dir = hierarchy.mount.join(name);
        }
        inside.add(hierarchy, &inside_dir);
    }
    Ok(ContainerCgroups {
        outside,
        inside,
        supported,
        parent_quota,
    })
}

/// v2: enables the needed controllers for the children of `parent`. Refusals of the kernel show in
/// the child.
fn enable_controllers(parent: &Path, wanted: &LimitSupport) {
    for (controller, is_wanted) in [
        ("memory", wanted.memory),
        ("cpu", wanted.cpu),
        ("cpuset", wanted.cpuset),
        ("pids", wanted.pids),
        ("io", true),
    ] {
        if is_wanted {
            let _ = fs::write(
                parent.join("cgroup.subtree_control"),
                format!("+{controller}"),
            );
        }
    }
}

/// v2: the limits that the container's group really supports.
fn effective_limits(dir: &Path, expected: LimitSupport) -> LimitSupport {
    let has = |file: &str| dir.join(file).exists();
    LimitSupport {
        memory: expected.memory && has("memory.max"),
        swap: expected.swap && has("memory.swap.max"),
        cpu: expected.cpu && has("cpu.max"),
        cpuset: expected.cpuset && has("cpuset.cpus"),
        pids: expected.pids && has("pids.max"),
        devices: false,
    }
}

/// v1: takes back /dev/net/tun, which libcontainer and runc before 1.2 allow by default. An
/// interface of one's own needs a capability that containers lack; the rest is the kernel's code.
pub fn deny_tun(groups: &ContainerCgroups) -> io::Result<()> {
    match groups.inside.v1.get("devices") {
        Some(dir) => fs::write(dir.join("devices.deny"), "c 10:200 rwm"),
        None => Ok(()),
    }
}

/// The path of the container's group below the root of every hierarchy.
pub fn path_inside(name: &str) -> PathBuf {
    Path::new("/").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgroup::layout::Hierarchy;

    #[test]
    fn only_an_own_group_without_processes_is_delegated() {
        let dir = tempfile::tempdir().unwrap();
        let layout = |mode, own: &str| Layout {
            mode,
            hierarchies: vec![Hierarchy {
                controllers: Vec::new(),
                mount: dir.path().to_owned(),
                own: own.into(),
            }],
        };
        let processes = dir.path().join("scope/cgroup.procs");
        assert!(!is_delegated(&layout(Mode::V2, "scope/dispatch-up")));
        fs::create_dir(dir.path().join("scope")).unwrap();
        for (list, mode, expected) in [
            ("", Mode::V2, true),
            ("", Mode::Hybrid, false),
            ("41\n", Mode::V2, false),
        ] {
            fs::write(&processes, list).unwrap();
            let found = is_delegated(&layout(mode, "scope/dispatch-up"));
            assert_eq!(found, expected, "{list:?} {mode}");
        }
        let others = Layout {
            hierarchies: vec![Hierarchy {
                controllers: Vec::new(),
                mount: "/proc/1".into(),
                own: "task/x".into(),
            }],
            ..layout(Mode::V2, "")
        };
        assert!(!is_delegated(&others));
    }

    #[test]
    fn each_limit_goes_into_its_file_as_far_as_the_group_has_it() {
        let limits = Limits {
            vcpus: Some(1.5),
            memory_bytes: Some(1 << 20),
            pids: Some(7),
            cpuset: Some("0-1".into()),
        };
        let all = LimitSupport::ALL_OF_V2;
        let without = LimitSupport {
            swap: false,
            cpu: false,
            ..all
        };
        let text = |can, quota| -> String {
            let files = files_of_limits(&limits, can, quota);
            files
                .map(|(name, value)| format!("{name}={value} "))
                .collect()
        };
        let complete = "memory.max=1048576 memory.swap.max=0 cpu.max=150000 100000 cpuset.cpus=0-1 pids.max=7 ";
        assert_eq!(text(all, None), complete);
        assert_eq!(text(all, Some(1.0)), complete.replace("150000", "100000"));
        let fewer = "memory.max=1048576 cpuset.cpus=0-1 pids.max=7 ";
        assert_eq!(text(without, None), fewer);
        assert_eq!(text(LimitSupport::NOTHING, None), "");
    }
}
