//! Samples resource use periodically and writes crunchstat.txt (the container) or hoststat.txt
//! (crunch-run).

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::sample::memory_of_tree;
use super::{MemoryThresholds, Sample, SampleTarget, Summary, UsageSource};
use crate::logs::{RunLog, write_stamp};

/// Interval between memory samples, short enough to catch peaks.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum pause after a memory sample, as a multiple of its duration.
const MEMORY_IDLE_FACTOR: u32 = 50;
const MEMORY_THRESHOLDS: [u64; 3] = [90, 95, 99];

#[derive(Debug)]
pub struct Sampler {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Summary>,
}

impl Sampler {
    /// Starts sampling. The first sample is taken at once.
    pub fn start(target: SampleTarget, log: File, run_log: RunLog, period: Duration) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mut sampling = SamplingLoop {
            thresholds: MemoryThresholds::new(target.memory_limit, &MEMORY_THRESHOLDS),
            target,
            log,
            run_log,
            summary: Summary::default(),
            before: None,
        };
        let task = tokio::spawn(async move {
            sampling.write_header();
            sampling.sample();
            sampling.run_until(stopped, period).await;
            sampling.sample();
            sampling.summary
        });
        Self { stop, task }
    }

    /// Takes the last sample and returns the totals. The control group must still exist.
    pub async fn finish(self) -> Summary {
        let _ = self.stop.send(());
        self.task.await.unwrap_or_default()
    }
}

struct SamplingLoop {
    target: SampleTarget,
    log: File,
    run_log: RunLog,
    thresholds: MemoryThresholds,
    summary: Summary,
    before: Option<Sample>,
}

impl SamplingLoop {
    async fn run_until(&mut self, mut stopped: oneshot::Receiver<()>, period: Duration) {
        let period = period.max(Duration::from_millis(100));
        let mut next_sample = Instant::now() + period;
        let mut interval = MEMORY_POLL_INTERVAL;
        loop {
            let wake = next_sample.min(Instant::now() + interval);
            tokio::select! {
                _ = &mut stopped => return,
                () = tokio::time::sleep_until(wake) => {}
            }
            if Instant::now() >= next_sample {
                self.sample();
                next_sample = Instant::now() + period;
            } else {
                let started = Instant::now();
                self.sample_memory();
                interval = MEMORY_POLL_INTERVAL.max(started.elapsed() * MEMORY_IDLE_FACTOR);
            }
        }
    }

    /// Writes the source of the figures as notices, which tools skip.
    fn write_header(&mut self) {
        let mut lines: Vec<String> = match &self.target.source {
            UsageSource::Group(group, _) => group
                .dirs()
                .iter()
                .map(|dir| format!("notice: reading stats from {}", dir.display()))
                .collect(),
            UsageSource::Processes(tree) => vec![format!(
                "notice: reading stats of process {} and those below it: there is no control group of its own",
                tree.first()
            )],
        };
        let scratch = self.target.scratch.display();
        lines.push(format!("notice: monitoring temp dir {scratch}"));
        self.write(&lines);
    }

    fn write(&mut self, lines: &[String]) {
        let mut text = Vec::new();
        for line in lines {
            write_stamp(&mut text);
            text.extend_from_slice(line.as_bytes());
            text.push(b'\n');
        }
        if let Err(error) = self.log.write_all(&text) {
            self.run_log
                .write(format!("Statistics cannot be written: {error}"));
        }
    }

    fn sample(&mut self) {
        let sample = Sample::take(&mut self.target);
        self.write(&sample.lines(self.before.as_ref()));
        self.check_thresholds(sample.memory.rss);
        self.summary.add(sample.clone());
        self.before = Some(sample);
    }

    fn sample_memory(&mut self) {
        let memory = match &mut self.target.source {
            UsageSource::Group(group, reach) => group.memory(*reach).unwrap_or_default(),
            UsageSource::Processes(tree) => memory_of_tree(&tree.measure()),
        };
        self.check_thresholds(memory.rss);
        self.summary.peak_memory(memory);
    }

    fn check_thresholds(&mut self, rss: Option<u64>) {
        for line in rss.map_or(vec![], |rss| self.thresholds.passed(rss)) {
            self.run_log.write(line);
        }
    }
}
