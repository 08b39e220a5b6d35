//! Prepares the keeper's view of control groups so that libcontainer puts the container below the
//! scheduler's own group in every hierarchy, where it would otherwise use one path for all.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::mount_bind;

use crate::cgroup::enforce::Enforceable;
use crate::cgroup::{Cgroup, Layout, Mode};

/// The container's group: for crunch-run, and for the keeper, which sees it at shorter paths.
pub struct Groups {
    pub outside: Cgroup,
    pub inside: Cgroup,
    pub enforceable: Enforceable,
    pub quota_above: Option<f64>,
}

/// Makes the directories. Must run in a mount namespace of the keeper's own.
pub fn prepare(leaf: &str) -> io::Result<Groups> {
    let layout = Layout::of_this_process()?;
    if layout.mode == Mode::Absent {
        return Err(io::Error::other(
            "there are no control groups at /sys/fs/cgroup",
        ));
    }
    let outside = layout.container_group(leaf);
    let mut enforceable = Enforceable::here(&layout);
    let mut inside = Cgroup::default();
    let mut quota_above = None;
    for hierarchy in layout.accounting() {
        let parent = hierarchy.parent_of_containers();
        if hierarchy.is_v2() {
            hand_down(&parent, &enforceable);
        }
        let dir = parent.join(leaf);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                // What was made so far holds no process.
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
            enforceable = really(&dir, enforceable);
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
            quota_above = above.cpu_quota();
        }
        if parent != hierarchy.mount {
            mount_bind(&parent, &hierarchy.mount)?;
        }
        let seen = hierarchy.mount.join(leaf);
        if hierarchy.is_v2() {
            inside.v2 = Some(seen);
        } else {
            for controller in &hierarchy.controllers {
                inside.v1.insert(controller.clone(), seen.clone());
            }
        }
    }
    Ok(Groups {
        outside,
        inside,
        enforceable,
        quota_above,
    })
}

/// v2: lets the children of `parent` have the controllers that are needed. What the kernel refuses is found out by
/// looking at the child.
fn hand_down(parent: &Path, wanted: &Enforceable) {
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

/// v2: what the container's group really has.
fn really(dir: &Path, hoped: Enforceable) -> Enforceable {
    let has = |file: &str| dir.join(file).exists();
    Enforceable {
        memory: hoped.memory && has("memory.max"),
        swap: hoped.swap && has("memory.swap.max"),
        cpu: hoped.cpu && has("cpu.max"),
        cpuset: hoped.cpuset && has("cpuset.cpus"),
        pids: hoped.pids && has("pids.max"),
        devices: false,
    }
}

/// The path of the container's group below the root of every hierarchy.
pub fn path_inside(leaf: &str) -> PathBuf {
    Path::new("/").join(leaf)
}
