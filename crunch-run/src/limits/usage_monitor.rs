//! Finds out whether a container uses more disk, files, memory or CPU time than it may.
//!
//! Checks usage limits while the command runs: counters every second, memory that nothing else
//! limits ten times a second, directories as often as `walk_schedule.rs` says.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::deleted_files::measure_deleted;
use super::directory_limit::DirectoryLimit;
use super::disk_usage::{Usage, measure};
use super::walk_schedule::{Room, WalkSchedule, free_space};
use super::{LimitExceeded, Measure, Resource, UsageLimit};
use crate::stats::UsageSource;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two measurements of memory that nothing else limits.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two measurements, as a multiple of the duration of the last one.
const MEASURING_TIME_FACTOR: u32 = 10;

/// The limits of one container.
#[derive(Debug, Default)]
pub struct UsageMonitor {
    pub cpu_time: Option<Duration>,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// Whether nothing but this monitor limits memory.
    pub watches_memory: bool,
    pub disks: Vec<DirectoryLimit>,
    /// Directory with all files of the attempt.
    pub scratch: PathBuf,
    /// Directories with the writable layer of the container's own root that are not in scratch.
    /// They count as scratch.
    pub layers_outside_scratch: Vec<PathBuf>,
    /// Limit on the growth of both, in bytes: on the `tmp` mounts and the writable layer together.
    pub requested_scratch: Option<u64>,
    /// The same for the number of files.
    pub requested_files: Option<u64>,
    /// Usage of both before the command began: inputs, or a copy of the image.
    pub at_start: OnceLock<Usage>,
    /// Peak disk usage of both so far.
    pub peak_scratch: AtomicU64,
}

impl UsageMonitor {
    /// Peak disk usage of the scratch directory so far, in bytes.
    pub fn peak_scratch_bytes(&self) -> u64 {
        self.peak_scratch.load(Ordering::Relaxed)
    }

    /// Measures what is there before the command begins.
    pub async fn measure_start(&self) {
        if !self.growth_limits().is_empty() {
            let _ = self.at_start.set(self.measure_scratch(None).await);
        }
    }

    /// Measures the directories once more when the command has ended: it may have written much just
    /// before its end.
    pub async fn exceeded_at_end(&self) -> Option<LimitExceeded> {
        let whole = self.measure_scratch(None).await;
        let grown = |measure: Measure| self.grown(measure, whole);
        let limits = self.growth_limits().into_iter();
        let mut growth = limits.filter_map(|(measure, limit)| limit.exceeded(grown(measure)));
        if let Some(exceeded) = growth.next() {
            return Some(exceeded);
        }
        let with_others = |disk: &DirectoryLimit| (disk.clone(), self.others(&disk.dir));
        let disks: Vec<_> = self.disks.iter().map(with_others).collect();
        let exceeded = move || {
            disks
                .iter()
                .find_map(|(disk, others)| disk.exceeded(others))
        };
        let measuring = tokio::task::spawn_blocking(exceeded);
        measuring.await.ok().flatten()
    }

    /// Limits on what the container adds to scratch.
    fn growth_limits(&self) -> Vec<(Measure, UsageLimit)> {
        let limit = |measure, resource| move |most| (measure, UsageLimit::new(resource, most));
        let bytes = self.requested_scratch;
        let bytes = bytes.map(limit(Measure::Bytes, Resource::RequestedScratch));
        let files = self.requested_files;
        let files = files.map(limit(Measure::Files, Resource::ScratchFiles));
        bytes.into_iter().chain(files).collect()
    }

    fn grown(&self, measure: Measure, now: Usage) -> u64 {
        let at_start = self.at_start.get().copied().unwrap_or_default();
        measure.of(now).saturating_sub(measure.of(at_start))
    }

    /// Directories that count as part of this one.
    fn others(&self, dir: &Path) -> Vec<PathBuf> {
        match dir == self.scratch {
            true => self.layers_outside_scratch.clone(),
            false => Vec::new(),
        }
    }

    /// With what the processes of the container have deleted and keep open.
    async fn measure_scratch(&self, source: Option<&UsageSource>) -> Usage {
        let (mut usage_now, deleted) = tokio::join!(
            measure(self.scratch.clone(), self.layers_outside_scratch.clone()),
            measure_deleted(source.cloned(), self.scratch.clone())
        );
        usage_now.bytes = usage_now.bytes.saturating_add(deleted);
        self.peak_scratch
            .fetch_max(usage_now.bytes, Ordering::Relaxed);
        usage_now
    }

    /// Returns when a limit is exceeded. `source` measures the container's processes.
    pub async fn wait_for_excess(
        &self,
        source: Option<UsageSource>,
        warn: &(dyn Fn(String) + Sync),
    ) -> LimitExceeded {
        tokio::select! {
            over = self.monitor_directories(source.clone(), warn) => over,
            over = self.monitor_counters(source, warn) => over,
        }
    }

    async fn monitor_counters(
        &self,
        source: Option<UsageSource>,
        warn: &(dyn Fn(String) + Sync),
    ) -> LimitExceeded {
        let Some(mut source) = source else {
            return std::future::pending().await;
        };
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut time = self
            .cpu_time
            .map(|limit| UsageLimit::new(Resource::CpuTime, milliseconds(limit)));
        let watched = self.memory.filter(|_| self.watches_memory);
        let mut memory = self.memory.map(|limit| match watched {
            Some(_) => UsageLimit::new(Resource::WatchedMemory, limit),
            None => UsageLimit::new(Resource::Memory, limit),
        });
        let reads_processes = matches!(source, UsageSource::Processes(_));
        if reads_processes && time.is_none() && watched.is_none() {
            // Measuring each process is expensive.
            return std::future::pending().await;
        }
        let interval = match watched {
            Some(_) => MEMORY_POLL_INTERVAL,
            None => POLL_INTERVAL,
        };
        loop {
            let started = Instant::now();
            let (used, rss) = match &mut source {
                UsageSource::Group(group, reach) => (
                    group.cpu(*reach).map(|cpu| cpu.user + cpu.system),
                    group.memory(*reach).and_then(|memory| memory.rss),
                ),
                UsageSource::Processes(tree) => {
                    let usage = tree.measure_unreclaimable(watched.unwrap_or(u64::MAX));
                    let cumulative = usage.cumulative;
                    (
                        Some(cumulative.user_seconds + cumulative.system_seconds),
                        // What the control group of the job limits is not measured here.
                        watched
                            .and(usage.memory)
                            .map(|memory| memory.rss + memory.swap),
                    )
                }
            };
            let used = used.map(|seconds| (seconds * 1e3) as u64);
            for (limit, used) in [(&mut time, used), (&mut memory, rss)] {
                if let (Some(limit), Some(used)) = (limit, used)
                    && let Some(exceeded) = limit.update(used, warn)
                {
                    return exceeded;
                }
            }
            tokio::time::sleep(interval.max(started.elapsed() * MEASURING_TIME_FACTOR)).await;
        }
    }

    async fn monitor_directories(
        &self,
        source: Option<UsageSource>,
        warn: &(dyn Fn(String) + Sync),
    ) -> LimitExceeded {
        let mut limits: Vec<(&DirectoryLimit, UsageLimit)> = self
            .disks
            .iter()
            .map(|disk| (disk, UsageLimit::new(disk.resource.clone(), disk.allowed)))
            .collect();
        let mut growth = self.growth_limits();
        let mut dirs = vec![self.scratch.clone()];
        dirs.extend(self.layers_outside_scratch.iter().cloned());
        let mut schedule = WalkSchedule::new();
        let mut free = free_space(&dirs).await;
        let mut left = Room::UNLIMITED;
        let mut last = Usage::default();
        loop {
            schedule.wait(&dirs, &free, left).await;
            // What is written during the walk may be missed by it.
            free = free_space(&dirs).await;
            let began = Instant::now();
            let whole = self.measure_scratch(source.as_ref()).await;
            let mut measured = (&self.scratch, whole);
            let mut is_near = false;
            left = Room::UNLIMITED;
            for (measure, limit) in &mut growth {
                let used = self.grown(*measure, whole);
                is_near |= limit.is_half_used(used);
                left.lower(*measure, limit.left(used));
                if let Some(exceeded) = limit.update(used, warn) {
                    return exceeded;
                }
            }
            for (disk, limit) in &mut limits {
                // A part of scratch takes no more than the whole, so that it is measured only if
                // that is near the limit.
                let is_far =
                    disk.dir.starts_with(&self.scratch) && !limit.is_near(disk.measure.of(whole));
                // Limits on the same directory are adjacent and share one walk.
                if *measured.0 != disk.dir && !is_far {
                    measured = (
                        &disk.dir,
                        measure(disk.dir.clone(), self.others(&disk.dir)).await,
                    );
                }
                let used = disk.measure.of(if is_far { whole } else { measured.1 });
                is_near |= limit.is_half_used(used);
                left.lower(disk.measure, limit.left(used));
                if let Some(exceeded) = limit.update(used, warn) {
                    return exceeded;
                }
            }
            let before = std::mem::replace(&mut last, whole);
            let grows = whole.bytes > before.bytes || whole.files > before.files;
            schedule.record(began.elapsed(), grows, is_near);
        }
    }
}

#[cfg(test)]
#[path = "usage_monitor_tests.rs"]
mod tests;
