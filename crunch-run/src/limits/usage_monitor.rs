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
mod tests {
    use super::*;
    use crate::stats::ProcessTree;
    use cgroup::{Cgroup, Scope};
    use std::fs;
    use std::sync::Mutex;

    #[tokio::test]
    async fn a_directory_that_fills_up_is_warned_of_and_then_over() {
        let dir = tempfile::tempdir().unwrap();
        let disk = |measure, resource, allowed| DirectoryLimit {
            dir: dir.path().to_owned(),
            measure,
            resource,
            allowed,
        };
        let allowance = UsageMonitor {
            disks: vec![
                disk(Measure::Files, Resource::ScratchFiles, 1000),
                disk(Measure::Length, Resource::OutputBytes, 1000),
            ],
            scratch: dir.path().to_owned(),
            ..UsageMonitor::default()
        };
        fs::write(dir.path().join("x"), vec![1; 950]).unwrap();
        let warnings = Mutex::new(vec![]);
        let warn = |text: String| {
            warnings.lock().unwrap().push(text);
            fs::write(dir.path().join("y"), vec![1; 100]).unwrap();
        };
        let over = allowance.wait_for_excess(None, &warn).await;
        assert_eq!((over.resource, over.used), (Resource::OutputBytes, 1050));
        assert_eq!(warnings.lock().unwrap().len(), 1);
        assert!(allowance.disks[0].exceeded(&[]).is_none());
        assert!(allowance.disks[1].exceeded(&[]).is_some());
    }

    #[tokio::test]
    async fn what_a_container_writes_anywhere_counts_and_its_inputs_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, size: usize| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, vec![1; size]).unwrap();
            fs::File::open(path).unwrap().sync_all().unwrap();
        };
        write("scratch/files/input", 1 << 20);
        let allowance = UsageMonitor {
            scratch: dir.path().join("scratch"),
            layers_outside_scratch: vec![dir.path().join("cache/upper"), dir.path().join("none")],
            requested_scratch: Some(1 << 20),
            ..UsageMonitor::default()
        };
        allowance.measure_start().await;
        write("scratch/files/out", 300 << 10);
        write("cache/upper/etc/root", 300 << 10);
        let waiting = allowance.wait_for_excess(None, &|_| {});
        let early = tokio::time::timeout(Duration::from_millis(500), waiting).await;
        assert!(early.is_err(), "{early:?}");
        write("scratch/container-1/upper/root", 600 << 10);
        let over = allowance.wait_for_excess(None, &|_| {}).await;
        assert_eq!(over.resource, Resource::RequestedScratch);
        assert_eq!(over.used, 1200 << 10);
        assert_eq!(allowance.exceeded_at_end().await, Some(over));
        let files = UsageMonitor {
            requested_scratch: None,
            requested_files: Some(6),
            at_start: allowance.at_start.clone(),
            scratch: allowance.scratch.clone(),
            ..UsageMonitor::default()
        };
        // out, upper, root and two directories; the input was there.
        assert_eq!(files.exceeded_at_end().await, None);
        write("scratch/files/more", 0);
        write("scratch/files/and-more", 0);
        write("scratch/files/and-another", 0);
        let over = files.wait_for_excess(None, &|_| {}).await;
        assert_eq!((over.resource, over.used), (Resource::ScratchFiles, 7));
        let of_site = DirectoryLimit {
            dir: allowance.scratch.clone(),
            measure: Measure::Bytes,
            resource: Resource::ScratchBytes,
            allowed: 2000 << 10,
        };
        let allowance = UsageMonitor {
            requested_scratch: None,
            disks: vec![of_site],
            ..allowance
        };
        let over = allowance.exceeded_at_end().await;
        assert_eq!(over.map(|over| over.used), Some(2224 << 10));
    }

    #[tokio::test]
    async fn cpu_time_is_counted_and_without_limits_nothing_is() {
        let own = || {
            let own = Cgroup::of_process(std::process::id()).unwrap();
            Some(UsageSource::Group(own, Scope::Own))
        };
        let no_warning = |text: String| panic!("{text}");
        let nothing = UsageMonitor::default();
        let waiting = nothing.wait_for_excess(own(), &no_warning);
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
        let allowance = UsageMonitor {
            cpu_time: Some(Duration::from_secs(2)),
            ..UsageMonitor::default()
        };
        let group = UsageSource::Group(group, Scope::Own);
        let over = allowance.wait_for_excess(Some(group), &no_warning).await;
        assert_eq!((over.resource, over.used), (Resource::CpuTime, 2500));
    }

    #[tokio::test]
    async fn memory_that_nothing_else_limits_is_measured_in_its_processes() {
        let script = "x=$(head -c 50000000 /dev/zero | tr '\\0' x); echo ready; read line";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let output = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { output }, &mut ready).unwrap();
        let source = || ProcessTree::of_process(shell.id()).map(UsageSource::Processes);
        let monitor = |memory, watches_memory| UsageMonitor {
            memory: Some(memory),
            watches_memory,
            ..UsageMonitor::default()
        };
        let no_warning = |text: String| panic!("{text}");
        let small = monitor(32 << 20, true);
        let over = small.wait_for_excess(source(), &no_warning).await;
        assert_eq!(over.resource, Resource::WatchedMemory);
        assert!((50_000_000..300 << 20).contains(&over.used), "{over}");
        for other in [monitor(1 << 30, true), monitor(1, false)] {
            let waiting = other.wait_for_excess(source(), &no_warning);
            let early = tokio::time::timeout(Duration::from_millis(300), waiting).await;
            assert!(early.is_err(), "{early:?}");
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
    }

    /// The kernel takes the pages of a file back where it enforces the limit.
    #[tokio::test]
    async fn mapped_files_are_no_memory_of_a_container() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mapped");
        fs::write(&file, vec![1; 64 << 20]).unwrap();
        let script = "import mmap, sys
f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)
print('ready', sum(m[i] for i in range(0, len(m), 4096)), flush=True); input()";
        let mut python = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(&file)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let output = std::io::BufReader::new(python.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { output }, &mut ready).unwrap();
        assert_eq!(ready, "ready 16384\n");
        let mut tree = ProcessTree::of_process(python.id()).unwrap();
        assert!(tree.measure().memory.unwrap().rss > 64 << 20);
        // Near its limit, the exact figures are taken.
        for limit in [u64::MAX, 1] {
            let used = tree.measure_unreclaimable(limit).memory.unwrap();
            assert!((1 << 20..32 << 20).contains(&used.rss), "{limit}: {used:?}");
        }
        python.kill().unwrap();
        python.wait().unwrap();
    }

    #[tokio::test]
    async fn without_a_control_group_the_cpu_time_of_its_processes_is_counted() {
        let mut busy = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let tree = ProcessTree::of_process(busy.id()).unwrap();
        let allowance = UsageMonitor {
            cpu_time: Some(Duration::from_millis(100)),
            memory: Some(1),
            ..UsageMonitor::default()
        };
        // The sample may be taken below the limit, or only above it.
        let warnings = Mutex::new(vec![]);
        let warn = |text: String| warnings.lock().unwrap().push(text);
        let cumulative = allowance.wait_for_excess(Some(UsageSource::Processes(tree)), &warn);
        let over = tokio::time::timeout(Duration::from_secs(60), cumulative).await;
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert_eq!(over.unwrap().resource, Resource::CpuTime);
        let warnings = warnings.into_inner().unwrap();
        assert!(
            warnings.iter().all(|text| text.contains("CPU")),
            "{warnings:?}"
        );
    }
}
