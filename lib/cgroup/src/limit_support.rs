//! Detects which limits this node's control groups can enforce.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::layout::{Layout, Mode};

/// Limits that work for containers below this process's control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSupport {
    pub memory: bool,
    /// Swap can be limited too.
    pub swap: bool,
    pub cpu: bool,
    pub cpuset: bool,
    pub pids: bool,
    /// A device list. On v2 that takes a BPF program, which is not compiled in.
    pub devices: bool,
}

impl LimitSupport {
    /// All that groups of version 2 can enforce.
    pub const ALL_OF_V2: Self = Self {
        memory: true,
        swap: true,
        cpu: true,
        cpuset: true,
        pids: true,
        devices: false,
    };

    pub const NOTHING: Self = Self {
        memory: false,
        swap: false,
        cpu: false,
        cpuset: false,
        pids: false,
        devices: false,
    };

    pub fn here(layout: &Layout) -> Self {
        match layout.mode {
            Mode::V1 | Mode::Hybrid => Self::v1(layout),
            Mode::V2 => layout.v2().map_or(Self::NOTHING, |v2| {
                let parent = v2.parent_of_containers();
                Self::v2(&parent, parent == v2.mount)
            }),
            Mode::Absent => Self::NOTHING,
        }
    }

    fn v1(layout: &Layout) -> Self {
        let has = |controller: &str, file: &str| {
            layout
                .v1(controller)
                .is_some_and(|h| h.own_dir().join(file).exists())
        };
        Self {
            memory: has("memory", "memory.limit_in_bytes"),
            swap: has("memory", "memory.memsw.limit_in_bytes"),
            cpu: has("cpu", "cpu.cfs_quota_us"),
            cpuset: has("cpuset", "cpuset.cpus"),
            // The root group of this controller has no limit file.
            pids: layout.v1("pids").is_some(),
            devices: has("devices", "devices.allow"),
        }
    }

    fn v2(parent: &Path, is_root: bool) -> Self {
        let words = |name: &str| -> BTreeSet<String> {
            fs::read_to_string(parent.join(name))
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        let available = words("cgroup.controllers");
        let enabled = words("cgroup.subtree_control");
        // A group with processes cannot enable further controllers for its children.
        let may_enable = is_root || words("cgroup.procs").is_empty();
        let has = |c: &str| enabled.contains(c) || (may_enable && available.contains(c));
        Self {
            memory: has("memory"),
            swap: has("memory") && Path::new("/proc/swaps").exists(),
            cpu: has("cpu"),
            cpuset: has("cpuset"),
            pids: has("pids"),
            devices: false,
        }
    }
}

/// Whether this machine swaps.
pub fn swap_is_used() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

/// `0,2-3` as CPU numbers; `None` if it is not such a list.
pub fn parse_cpus(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in list.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // No node has so many CPUs; a typing error must not become a huge set.
        if first > last || last > 65_535 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        let cases: &[(&str, Option<&[u32]>)] = &[
            ("0", Some(&[0])),
            ("0,2-3", Some(&[0, 2, 3])),
            ("", Some(&[])),
            ("3-1", None),
            ("a", None),
            ("0-999999999", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|cpus| cpus.iter().copied().collect());
            assert_eq!(parse_cpus(text), expected, "{text}");
        }
    }

    #[test]
    fn v2_needs_an_empty_parent_to_hand_controllers_down() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("cgroup.controllers", "cpuset cpu io memory pids\n");
        write("cgroup.subtree_control", "memory pids\n");
        write("cgroup.procs", "41\n");
        let busy = LimitSupport::v2(dir.path(), false);
        assert!(busy.memory && busy.pids && !busy.cpu && !busy.cpuset);
        assert!(!busy.devices);
        assert!(LimitSupport::v2(dir.path(), true).cpu);
        write("cgroup.procs", "");
        let idle = LimitSupport::v2(dir.path(), false);
        assert!(idle.cpu && idle.cpuset && idle.memory);
    }
}
