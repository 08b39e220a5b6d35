//! Control groups: where a container's processes are accounted, on cgroup v1, hybrid and v2.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The directories of one control group, by controller name (`memory`, `cpuacct`, …).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// cgroup v1 directories.
    pub v1: BTreeMap<String, PathBuf>,
    /// The cgroup v2 directory.
    pub v2: Option<PathBuf>,
}
