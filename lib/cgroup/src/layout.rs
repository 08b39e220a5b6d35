//! How control groups are mounted on this node, and the group of a process in each hierarchy.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use procfs::process::MountInfo;

use super::Cgroup;

/// The directory every runtime expects control groups under.
pub const ROOT: &str = "/sys/fs/cgroup";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every controller in a v1 hierarchy.
    V1,
    /// As V1, with a v2 hierarchy without controllers beside it.
    Hybrid,
    V2,
    /// Nothing usable at `/sys/fs/cgroup`.
    Absent,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V1 => "cgroup v1",
            Self::Hybrid => "cgroup v1 (hybrid)",
            Self::V2 => "cgroup v2",
            Self::Absent => "no cgroups",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// v1 controllers (or `name=…`); empty for v2.
    pub controllers: Vec<String>,
    pub mount: PathBuf,
    /// The process's group relative to `mount`; empty at its root.
    pub own: PathBuf,
}

impl Hierarchy {
    pub fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    pub fn own_dir(&self) -> PathBuf {
        if self.own.as_os_str().is_empty() {
            self.mount.clone()
        } else {
            self.mount.join(&self.own)
        }
    }

    /// Parent directory of a container's group. In v1 it is the process's own group. In v2 a group
    /// with processes cannot enable controllers for its children, so it is the parent, unless at
    /// the root.
    pub fn parent_of_containers(&self) -> PathBuf {
        match self.own.parent() {
            Some(parent) if self.is_v2() && !parent.as_os_str().is_empty() => {
                self.mount.join(parent)
            }
            Some(_) if self.is_v2() => self.mount.clone(),
            _ => self.own_dir(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub mode: Mode,
    pub hierarchies: Vec<Hierarchy>,
}

impl Layout {
    pub fn of_this_process() -> io::Result<Self> {
        Self::of("self")
    }

    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::of(&pid.to_string())
    }

    fn of(process: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
        Ok(Self::parse(&mounts, &groups))
    }

    /// From the texts of `/proc/*/mountinfo` and `/proc/*/cgroup`.
    pub fn parse(mountinfo: &str, cgroup: &str) -> Self {
        let mounts: Vec<MountInfo> = mountinfo
            .lines()
            .filter_map(|line| MountInfo::from_line(line).ok())
            .collect();
        let at_root = |fs_type: &str| {
            mounts
                .iter()
                .any(|m| m.mount_point == Path::new(ROOT) && m.fs_type == fs_type)
        };
        let has_v2 = mounts.iter().any(|m| m.fs_type == "cgroup2");
        let mode = if at_root("cgroup2") {
            Mode::V2
        } else if at_root("tmpfs") && mounts.iter().any(|m| m.fs_type == "cgroup") {
            if has_v2 { Mode::Hybrid } else { Mode::V1 }
        } else {
            Mode::Absent
        };

        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let controllers: Vec<String> = names
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
            let mount = mounts.iter().find(|m| {
                if controllers.is_empty() {
                    m.fs_type == "cgroup2" && (mode != Mode::V2 || m.mount_point == Path::new(ROOT))
                } else {
                    m.fs_type == "cgroup" && controllers.iter().all(|c| has_option(m, c))
                }
            });
            if let Some(mount) = mount {
                hierarchies.push(Hierarchy {
                    controllers,
                    mount: PathBuf::from(unescape(&mount.mount_point.to_string_lossy())),
                    own: relative(path, &unescape(&mount.root)),
                });
            }
        }
        Self { mode, hierarchies }
    }

    pub fn v2(&self) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.is_v2())
    }

    pub fn v1(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies
            .iter()
            .find(|h| h.controllers.iter().any(|c| c == controller))
    }

    /// The hierarchies that account containers in this mode.
    pub fn accounting(&self) -> impl Iterator<Item = &Hierarchy> {
        self.hierarchies.iter().filter(|h| match self.mode {
            Mode::V2 => h.is_v2(),
            Mode::V1 | Mode::Hybrid => h.controllers.iter().any(|c| !c.starts_with("name=")),
            Mode::Absent => false,
        })
    }

    /// Groups called `leaf` that runtimes may create in named hierarchies, such as systemd's in v1.
    /// These account nothing.
    pub fn named_group(&self, leaf: &str) -> Cgroup {
        let mut group = Cgroup::default();
        for hierarchy in &self.hierarchies {
            let names = hierarchy.controllers.iter();
            for name in names.filter(|name| name.starts_with("name=")) {
                group.v1.insert(name.clone(), hierarchy.mount.join(leaf));
                let below = hierarchy.own_dir().join(leaf);
                group.v1.insert(format!("{name} below"), below);
            }
        }
        group
    }

    /// The group that a container called `leaf` gets.
    pub fn container_group(&self, leaf: &str) -> Cgroup {
        let mut group = Cgroup::default();
        for hierarchy in self.accounting() {
            group.add(hierarchy, &hierarchy.parent_of_containers().join(leaf));
        }
        group
    }
}

/// Whether the mount has `option`, which is `NAME` or `NAME=VALUE`.
fn has_option(mount: &MountInfo, option: &str) -> bool {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let found = mount.super_options.get(name);
    found.is_some_and(|found| found.as_deref() == value)
}

/// A path of mountinfo, in which the kernel writes blanks as `\040` and tabs as `\011`.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t")
}

/// `path` relative to a mount whose root is `root`. For a path outside (of another cgroup
/// namespace) it is the mount's root.
fn relative(path: &str, root: &str) -> PathBuf {
    let is_inside = |below: &&Path| {
        let mut parts = below.components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let below = Path::new(path).strip_prefix(root).ok().filter(is_inside);
    below.map(Path::to_owned).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2: &str =
        "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const IN_CONTAINER: &str = "\
40 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs rw,mode=755
41 40 0:28 /docker/abc /sys/fs/cgroup/memory ro shared:1 - cgroup memory rw,memory
";

    /// mountinfo, cgroup, mode, v1 directories by controller, v2 directory
    type Case<'a> = (
        &'a str,
        &'a str,
        Mode,
        &'a [(&'a str, &'a str)],
        Option<&'a str>,
    );

    #[test]
    fn every_layout_puts_the_container_under_the_scheduler_s_own_group() {
        let cases: &[Case] = &[
            (
                HYBRID,
                "4:memory:/slurm/job_1/step_0\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/\n",
                Mode::Hybrid,
                &[
                    ("memory", "/sys/fs/cgroup/memory/slurm/job_1/step_0/c"),
                    ("cpu", "/sys/fs/cgroup/cpu,cpuacct/c"),
                    ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct/c"),
                ],
                None,
            ),
            (
                V2,
                "0::/slurm/job_1/step_0/user/task_0\n",
                Mode::V2,
                &[],
                Some("/sys/fs/cgroup/slurm/job_1/step_0/user/c"),
            ),
            (V2, "0::/\n", Mode::V2, &[], Some("/sys/fs/cgroup/c")),
            (V2, "0::/init\n", Mode::V2, &[], Some("/sys/fs/cgroup/c")),
            (
                IN_CONTAINER,
                "4:memory:/docker/abc/inner\n",
                Mode::V1,
                &[("memory", "/sys/fs/cgroup/memory/inner/c")],
                None,
            ),
            (
                IN_CONTAINER,
                "4:memory:/elsewhere\n",
                Mode::V1,
                &[("memory", "/sys/fs/cgroup/memory/c")],
                None,
            ),
            ("", "0::/\n", Mode::Absent, &[], None),
        ];
        for (mountinfo, cgroup, mode, v1, v2) in cases {
            let layout = Layout::parse(mountinfo, cgroup);
            assert_eq!(layout.mode, *mode, "{cgroup}");
            let group = layout.container_group("c");
            let expected: std::collections::BTreeMap<String, PathBuf> = v1
                .iter()
                .map(|(k, v)| ((*k).to_owned(), PathBuf::from(v)))
                .collect();
            assert_eq!(group.v1, expected, "{cgroup}");
            assert_eq!(group.v2, v2.map(PathBuf::from), "{cgroup}");
        }
    }

    #[test]
    fn lines_of_every_distribution_are_understood() {
        // Twelve hierarchies of which some hold several controllers, one is named, one is v2.
        let cgroup = "12:pids:/user.slice\n11:blkio:/user.slice\n10:rdma:/\n9:cpuset:/\n\
            8:perf_event:/\n7:net_cls,net_prio:/\n6:freezer:/\n5:memory:/user.slice\n\
            4:cpu,cpuacct:/user.slice\n3:hugetlb:/\n2:devices:/user.slice\n1:name=systemd:/a\n0::/a\n";
        let mountinfo: String = [
            "pids",
            "blkio",
            "rdma",
            "cpuset",
            "perf_event",
            "net_cls,net_prio",
            "freezer",
            "memory",
            "cpu,cpuacct",
            "hugetlb",
            "devices",
        ]
        .iter()
        .map(|c| format!("1 2 0:1 / {ROOT}/{c} rw - cgroup cgroup rw,{c}\n"))
        .collect::<String>()
            + &format!("1 2 0:1 / {ROOT} rw - tmpfs tmpfs rw\n");
        let group = Layout::parse(&mountinfo, cgroup).container_group("c");
        assert_eq!(group.v1.len(), 13);
        assert_eq!(
            group.dir("blkio").unwrap(),
            Path::new("/sys/fs/cgroup/blkio/user.slice/c")
        );
        assert_eq!(group.dirs().len(), 11);
    }

    #[test]
    fn this_machine_has_a_layout() {
        let layout = Layout::of_this_process().unwrap();
        assert_ne!(layout.mode, Mode::Absent);
        for hierarchy in layout.accounting() {
            assert!(hierarchy.own_dir().is_dir(), "{hierarchy:?}");
        }
    }
}
