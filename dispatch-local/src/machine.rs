//! Probes the resources of this machine: affinity mask, control groups, `/proc` and the scratch
//! disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use procfs::Current;
use procfs::ProcessCGroup;
use procfs::process::{MountInfo, Process};

use crate::gpu_discovery::{self, Gpu};
use crate::resources::ResourceVector;

/// The resources of this machine for containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Numbers of the CPUs in this process's affinity mask.
    pub cpus: Vec<u32>,
    /// Number of CPUs that may be busy at once, by the control groups' quota and the admin's cap.
    pub cpu_quota: u32,
    /// Memory in bytes, at most the admin's cap.
    pub ram: u64,
    /// Memory in bytes without the cap.
    pub total_ram: u64,
    /// Free scratch space in bytes.
    pub scratch: u64,
    /// Size in bytes of the disk with the scratch space.
    pub scratch_disk: u64,
    pub gpus: Vec<Gpu>,
}

/// Upper limits set by the admin; none: no limit.
#[derive(Debug, Clone, Default)]
pub struct ResourceCaps {
    pub cpus: Option<u32>,
    /// Memory in bytes.
    pub ram: Option<u64>,
}

impl Machine {
    /// Reads the resources of this machine. `scratch` is the directory of containers' scratch
    /// space.
    pub fn probe(scratch: &Path, offer: &ResourceCaps) -> io::Result<Self> {
        let limits = CgroupLimits::of_this_process()?;
        let cpus = affinity()?;
        let quota = limits.cpus.unwrap_or(u32::MAX).min(cpus.len() as u32);
        let total = procfs::Meminfo::current()
            .map_err(io::Error::other)?
            .mem_total;
        let total_ram = limits.ram.unwrap_or(u64::MAX).min(total);
        Ok(Self {
            cpu_quota: quota.min(offer.cpus.unwrap_or(u32::MAX)).max(1),
            cpus,
            ram: total_ram.min(offer.ram.unwrap_or(u64::MAX)),
            total_ram,
            scratch: free_space(scratch)?,
            scratch_disk: disk_size(scratch)?,
            gpus: gpu_discovery::probe(Path::new("/"), |name| std::env::var(name).ok()),
        })
    }

    /// A sentence for each cap that is above what this machine has.
    pub fn unmet(&self, caps: &ResourceCaps) -> Vec<String> {
        let (cpus, ram) = (self.cpu_quota, self.ram);
        let cpus = caps.cpus.filter(|cap| *cap > cpus).map(|cap| {
            format!("--cpus {cap} is more than this machine has for this process: containers get {cpus} CPUs")
        });
        let ram = caps.ram.filter(|cap| *cap > ram).map(|cap| {
            format!("--memory {cap} is more than this machine has for this process: containers get {ram} bytes")
        });
        cpus.into_iter().chain(ram).collect()
    }

    /// All resources as one vector.
    pub fn capacity(&self) -> ResourceVector {
        self.with_scratch(self.scratch)
    }

    /// What this machine has once there is nothing else on the disk.
    pub fn largest(&self) -> ResourceVector {
        self.with_scratch(self.scratch_disk.max(self.scratch))
    }

    fn with_scratch(&self, scratch: u64) -> ResourceVector {
        let [cuda, rocm] = gpu_discovery::count(&self.gpus);
        ResourceVector::new(self.cpu_quota.into(), self.ram, scratch, cuda, rocm)
    }
}

/// Free bytes on the file system of `dir`.
pub fn free_space(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn disk_size(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
}

fn affinity() -> io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .map(|cpu| cpu as u32)
        .collect())
}

/// The lowest limits of all control groups above this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CgroupLimits {
    cpus: Option<u32>,
    ram: Option<u64>,
}

impl CgroupLimits {
    fn of_this_process() -> io::Result<Self> {
        let me = Process::myself().map_err(io::Error::other)?;
        let groups = me.cgroups().map_err(io::Error::other)?;
        let mounts = me.mountinfo().map_err(io::Error::other)?;
        let mut limits = Self::default();
        for group in groups {
            for dir in directories(&group, &mounts.0) {
                limits.min_with(Self::read(&dir));
            }
        }
        Ok(limits)
    }

    /// The limits in one directory; a missing file sets no limit.
    fn read(dir: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let number = |name: &str| text(name).trim().parse::<i64>().ok();
        let cpus = quota_v2(&text("cpu.max"))
            .or_else(|| quota(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?));
        // v1 expresses "no limit" by a number near the largest one, which exceeds any machine's
        // memory.
        let ram = text("memory.max").trim().parse().ok().or_else(|| {
            number("memory.limit_in_bytes").and_then(|bytes| u64::try_from(bytes).ok())
        });
        Self { cpus, ram }
    }

    fn min_with(&mut self, other: Self) {
        let least = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        };
        self.cpus = least(self.cpus.map(u64::from), other.cpus.map(u64::from)).map(|n| n as u32);
        self.ram = least(self.ram, other.ram);
    }
}

/// `max 100000` or `150000 100000`.
fn quota_v2(text: &str) -> Option<u32> {
    let (quota_us, period_us) = text.trim().split_once(' ')?;
    quota(quota_us.parse().ok()?, period_us.parse().ok()?)
}

/// Whole CPUs of a quota, at least one; none for a negative quota, which is no limit.
fn quota(quota_us: i64, period_us: i64) -> Option<u32> {
    (quota_us > 0 && period_us > 0).then(|| (quota_us / period_us).max(1) as u32)
}

/// The directory of a control group and those of all groups above it that this process can see.
fn directories(group: &ProcessCGroup, mounts: &[MountInfo]) -> Vec<PathBuf> {
    let of_group = |mount: &&MountInfo| match group.controllers.iter().all(|c| c.is_empty()) {
        true => mount.fs_type == "cgroup2",
        false => {
            mount.fs_type == "cgroup"
                && group
                    .controllers
                    .iter()
                    .all(|c| mount.super_options.contains_key(c))
        }
    };
    let Some(mount) = mounts.iter().find(of_group) else {
        return Vec::new();
    };
    let path = group.pathname.trim_start_matches('/');
    let root = mount.root.trim_start_matches('/');
    let own = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    own.ancestors()
        .map(|above| mount.mount_point.join(above))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_whole_cpus() {
        for (text, cpus) in [
            ("max 100000", None),
            ("150000 100000", Some(1)),
            ("50000 100000", Some(1)),
            ("400000 100000", Some(4)),
            ("", None),
        ] {
            assert_eq!(quota_v2(text), cpus, "{text:?}");
        }
        assert_eq!(quota(-1, 100_000), None);
    }

    #[test]
    fn the_tightest_limit_counts_and_a_missing_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cpu.max"), "300000 100000\n").unwrap();
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        let mut limits = CgroupLimits {
            cpus: Some(8),
            ram: Some(1 << 30),
        };
        limits.min_with(CgroupLimits::read(dir.path()));
        assert_eq!(
            limits,
            CgroupLimits {
                cpus: Some(3),
                ram: Some(1 << 30)
            }
        );
        fs::write(dir.path().join("memory.limit_in_bytes"), "1000\n").unwrap();
        limits.min_with(CgroupLimits::read(dir.path()));
        assert_eq!(limits.ram, Some(1000));
    }

    #[test]
    fn this_machine_has_something() {
        let dir = tempfile::tempdir().unwrap();
        let all = Machine::probe(dir.path(), &ResourceCaps::default()).unwrap();
        assert!(all.cpu_quota >= 1 && all.cpu_quota as usize <= all.cpus.len());
        assert!(all.ram > 64 << 20 && all.scratch > 0);
        let offer = ResourceCaps {
            cpus: Some(1),
            ram: Some(1 << 20),
        };
        let some = Machine::probe(dir.path(), &offer).unwrap();
        assert_eq!((some.cpu_quota, some.ram), (1, 1 << 20));
        assert!(some.unmet(&offer).is_empty());
        let offer = ResourceCaps {
            cpus: Some(100_000),
            ram: None,
        };
        let all = Machine::probe(dir.path(), &offer).unwrap();
        let said = all.unmet(&offer);
        assert!(
            said.len() == 1 && said[0].contains("--cpus 100000"),
            "{said:?}"
        );
    }
}
