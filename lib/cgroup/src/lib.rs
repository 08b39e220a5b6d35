//! Control groups on cgroup v1, hybrid and v2: layout, accounting, supported limits, killing.

mod kill;
pub mod layout;
pub mod limit_support;
mod read;
mod shared;
#[cfg(test)]
#[path = "snapshots_tests.rs"]
mod snapshots;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use kill::KillError;
pub use layout::{Hierarchy, Layout, Mode};
pub use read::{BlockIo, CpuUse, MemoryUse, Processes, Scope};
pub use shared::{GroupMemory, SharedKills, SharedMemory};

/// The directories of one control group, by controller name (`memory`, `cpuacct`, …).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// cgroup v1 directories.
    pub v1: BTreeMap<String, PathBuf>,
    /// The cgroup v2 directory.
    pub v2: Option<PathBuf>,
}

impl Cgroup {
    /// The group that a process is in now.
    pub fn of_process(pid: u32) -> std::io::Result<Self> {
        Ok(Self::of_layout(&Layout::of_process(pid)?))
    }

    fn of_layout(layout: &Layout) -> Self {
        let mut group = Self::default();
        for hierarchy in &layout.hierarchies {
            group.add(hierarchy, &hierarchy.own_dir());
        }
        group
    }

    /// Adds the group's directory in one hierarchy.
    pub fn add(&mut self, hierarchy: &Hierarchy, dir: &Path) {
        if hierarchy.is_v2() {
            self.v2 = Some(dir.to_owned());
        }
        let controllers = hierarchy.controllers.iter().cloned();
        self.v1
            .extend(controllers.map(|name| (name, dir.to_owned())));
    }

    /// The directory in which `controller` accounts this group: its own in v1, or that of v2.
    pub fn dir(&self, controller: &str) -> Option<&Path> {
        self.v1
            .get(controller)
            .or(self.v2.as_ref())
            .map(PathBuf::as_path)
    }

    /// Every directory once.
    pub fn dirs(&self) -> Vec<&Path> {
        let mut dirs: Vec<&Path> = self
            .v1
            .values()
            .chain(&self.v2)
            .map(PathBuf::as_path)
            .collect();
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }

    /// Without the hierarchies that do not account `controller`.
    fn only(&self, controller: &str) -> Self {
        let v1 = self.v1.get(controller).cloned();
        Self {
            v2: self.v2.clone().filter(|_| v1.is_none()),
            v1: v1
                .map(|dir| (controller.to_owned(), dir))
                .into_iter()
                .collect(),
        }
    }

    fn is_v1(&self, controller: &str) -> bool {
        self.v1.contains_key(controller)
    }
}
