//! Looks at the gauges while the command runs: counters every second, directories as often as they are cheap to walk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Gauge, Overrun, Resource, Seen, Usage, usage};
use crate::stats::Source;

const LOOK: Duration = Duration::from_secs(1);
/// A walk may take this share of the time: one part in so many.
const DUTY: u32 = 10;

/// What one container may use.
#[derive(Debug, Default)]
pub struct Allowance {
    pub cpu_time: Option<Duration>,
    /// Bytes.
    pub memory: Option<u64>,
    pub disks: Vec<DiskAllowance>,
    /// Everything the attempt keeps on disk.
    pub scratch: PathBuf,
    /// The most bytes that were seen there.
    pub peak_scratch: AtomicU64,
}

/// A directory and one limit on it.
#[derive(Debug, Clone)]
pub struct DiskAllowance {
    pub dir: PathBuf,
    pub measure: Measure,
    pub resource: Resource,
    pub allowed: u64,
}

/// Which figure of a directory is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Bytes,
    Length,
    Files,
}

impl Measure {
    fn of(self, usage: Usage) -> u64 {
        match self {
            Self::Bytes => usage.bytes,
            Self::Length => usage.length,
            Self::Files => usage.files,
        }
    }
}

impl DiskAllowance {
    /// Whether it is too much now, however near it was before.
    pub fn overrun(&self) -> Option<Overrun> {
        let used = self.measure.of(usage(&self.dir));
        let mut gauge = Gauge::new(self.resource.clone(), self.allowed);
        match gauge.see(used) {
            Some(Seen::Over(overrun)) => Some(overrun),
            _ => None,
        }
    }
}

impl Allowance {
    /// The most bytes that were seen in the scratch directory until now.
    pub fn scratch_so_far(&self) -> u64 {
        self.peak_scratch.load(Ordering::Relaxed)
    }

    /// The same after one look more.
    pub async fn scratch_at_most(&self) -> u64 {
        self.look_at_scratch().await;
        self.scratch_so_far()
    }

    async fn look_at_scratch(&self) -> Usage {
        let seen = walk(self.scratch.clone()).await;
        self.peak_scratch.fetch_max(seen.bytes, Ordering::Relaxed);
        seen
    }

    /// Returns when something is used up. `source` accounts the container.
    pub async fn until_over(
        &self,
        source: Option<Source>,
        warn: &(dyn Fn(String) + Sync),
    ) -> Overrun {
        tokio::select! {
            over = self.counters(source, warn) => over,
            over = self.directories(warn) => over,
        }
    }

    async fn counters(&self, source: Option<Source>, warn: &(dyn Fn(String) + Sync)) -> Overrun {
        let Some(mut source) = source else {
            return std::future::pending().await;
        };
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut time = self
            .cpu_time
            .map(|limit| Gauge::new(Resource::CpuTime, milliseconds(limit)));
        let mut memory = self.memory.map(|limit| Gauge::new(Resource::Memory, limit));
        if time.is_none() && matches!(source, Source::Processes(_)) {
            // Looking at each process has its price.
            return std::future::pending().await;
        }
        loop {
            let begun = Instant::now();
            let (used, rss) = match &mut source {
                Source::Group(group, reach) => (
                    group.cpu(*reach).map(|cpu| cpu.user + cpu.system),
                    group.memory(*reach).and_then(|memory| memory.rss),
                ),
                // Nobody keeps a limit on their memory here, so none is near.
                Source::Processes(tree) => {
                    let counted = tree.look().counted;
                    (Some(counted.user_seconds + counted.system_seconds), None)
                }
            };
            let used = used.map(|seconds| (seconds * 1e3) as u64);
            for (gauge, used) in [(&mut time, used), (&mut memory, rss)] {
                match gauge
                    .as_mut()
                    .zip(used)
                    .and_then(|(gauge, used)| gauge.see(used))
                {
                    Some(Seen::Over(overrun)) => return overrun,
                    Some(Seen::Warn(text)) => warn(text),
                    None => {}
                }
            }
            tokio::time::sleep(LOOK.max(begun.elapsed() * DUTY)).await;
        }
    }

    async fn directories(&self, warn: &(dyn Fn(String) + Sync)) -> Overrun {
        let mut gauges: Vec<(&DiskAllowance, Gauge)> = self
            .disks
            .iter()
            .map(|disk| (disk, Gauge::new(disk.resource.clone(), disk.allowed)))
            .collect();
        let mut pause = LOOK;
        loop {
            tokio::time::sleep(pause).await;
            let began = Instant::now();
            let mut seen = (self.scratch.clone(), self.look_at_scratch().await);
            for (disk, gauge) in &mut gauges {
                // Limits on one directory stand side by side and share a walk.
                if seen.0 != disk.dir {
                    seen = (disk.dir.clone(), walk(disk.dir.clone()).await);
                }
                match gauge.see(disk.measure.of(seen.1)) {
                    Some(Seen::Over(overrun)) => return overrun,
                    Some(Seen::Warn(text)) => warn(text),
                    None => {}
                }
            }
            pause = LOOK.max(began.elapsed() * DUTY);
        }
    }
}

async fn walk(dir: PathBuf) -> Usage {
    let walked = tokio::task::spawn_blocking(move || usage(&dir));
    walked.await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Cgroup, Reach};
    use crate::stats::Tree;
    use std::fs;
    use std::sync::Mutex;

    #[tokio::test]
    async fn a_directory_that_fills_up_is_warned_of_and_then_over() {
        let dir = tempfile::tempdir().unwrap();
        let disk = |measure, resource, allowed| DiskAllowance {
            dir: dir.path().to_owned(),
            measure,
            resource,
            allowed,
        };
        let allowance = Allowance {
            disks: vec![
                disk(Measure::Files, Resource::ScratchFiles, 1000),
                disk(Measure::Length, Resource::OutputBytes, 1000),
            ],
            ..Allowance::default()
        };
        fs::write(dir.path().join("x"), vec![1; 950]).unwrap();
        let said = Mutex::new(vec![]);
        let warn = |text: String| {
            said.lock().unwrap().push(text);
            fs::write(dir.path().join("y"), vec![1; 100]).unwrap();
        };
        let over = allowance.until_over(None, &warn).await;
        assert_eq!((over.resource, over.used), (Resource::OutputBytes, 1050));
        assert_eq!(said.lock().unwrap().len(), 1);
        assert!(allowance.disks[0].overrun().is_none());
        assert!(allowance.disks[1].overrun().is_some());
    }

    #[tokio::test]
    async fn cpu_time_is_counted_and_without_limits_nothing_is() {
        let own = || {
            let own = Cgroup::of_process(std::process::id()).unwrap();
            Some(Source::Group(own, Reach::Own))
        };
        let no_warning = |text: String| panic!("{text}");
        let nothing = Allowance::default();
        let waiting = nothing.until_over(own(), &no_warning);
        assert!(
            tokio::time::timeout(Duration::from_millis(50), waiting)
                .await
                .is_err()
        );

        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("cpu.stat"),
            "user_usec 2000000\nsystem_usec 500000\n",
        )
        .unwrap();
        let group = Cgroup {
            v2: Some(dir.path().to_owned()),
            ..Cgroup::default()
        };
        let allowance = Allowance {
            cpu_time: Some(Duration::from_secs(2)),
            ..Allowance::default()
        };
        let group = Source::Group(group, Reach::Own);
        let over = allowance.until_over(Some(group), &no_warning).await;
        assert_eq!((over.resource, over.used), (Resource::CpuTime, 2500));
    }

    #[tokio::test]
    async fn without_a_control_group_the_cpu_time_of_its_processes_is_counted() {
        let mut busy = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let tree = Tree::below(busy.id()).unwrap();
        let allowance = Allowance {
            cpu_time: Some(Duration::from_millis(100)),
            memory: Some(1),
            ..Allowance::default()
        };
        // It may be seen when it is near, or only when it is over.
        let said = Mutex::new(vec![]);
        let warn = |text: String| said.lock().unwrap().push(text);
        let counted = allowance.until_over(Some(Source::Processes(tree)), &warn);
        let over = tokio::time::timeout(Duration::from_secs(60), counted).await;
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert_eq!(over.unwrap().resource, Resource::CpuTime);
        let said = said.into_inner().unwrap();
        assert!(said.iter().all(|text| text.contains("CPU")), "{said:?}");
    }
}
