//! Creates the container's control group, and mounts the hierarchies in the shim so that
//! libcontainer puts the container below the scheduler's group in each. libcontainer itself uses
//! one path for all.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::mount_bind;

use cgroup::limit_support::LimitSupport;
use cgroup::{Cgroup, Layout, Mode};

/// The container's group by its paths outside and, shorter, inside the shim.
pub struct ContainerCgroups {
    pub outside: Cgroup,
    pub inside: Cgroup,
    pub supported: LimitSupport,
    pub parent_quota: Option<f64>,
}

/// Makes the directories. Must run in a mount namespace of the shim's own.
pub fn prepare(name: &str) -> io::Result<ContainerCgroups> {
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
            let above = if hierarchy.is_v2() {
                Cgroup {
                    v2: Some(parent.clone()),
                    ..Cgroup::default()
                }
            } else {
                Cgroup {
                    v1: BTreeMap::from([("cpu".to_owned(), parent.clone())]),
                    v2: None,
                }
            };
            parent_quota = above.cpu_quota();
        }
        if parent != hierarchy.mount {
            mount_bind(&parent, &hierarchy.mount)?;
        }
        let inside_dir = hierarchy.mount.join(name);
        if hierarchy.is_v2() {
            inside.v2 = Some(inside_dir);
        } else {
            for controller in &hierarchy.controllers {
                inside.v1.insert(controller.clone(), inside_dir.clone());
            }
        }
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
