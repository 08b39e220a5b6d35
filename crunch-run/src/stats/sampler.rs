//! Looks at what a container uses now and then and writes crunchstat.txt (the container) or hoststat.txt (this program).

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Memory, MemoryThresholds, Sample, Summary, Tree};
use crate::cgroup::{Cgroup, Reach};
use crate::engine::Container;
use crate::logs::{Journal, write_stamp};

/// Memory is looked at this often, so that a short peak is seen.
const MEMORY_LOOK: Duration = Duration::from_secs(1);
/// For many or large processes a look takes long: it rests for so many times that.
const IDLE_SHARE: u32 = 50;
const THRESHOLDS: [u64; 3] = [90, 95, 99];

/// What to look at.
#[derive(Debug)]
pub struct Subject {
    pub source: Source,
    pub pid: Option<u32>,
    pub scratch: PathBuf,
    /// Bytes asked for; 0 is no limit.
    pub memory_limit: u64,
    /// Processes whose own memory is of interest, by name.
    pub processes: Vec<(&'static str, u32)>,
}

/// Who tells what is used.
#[derive(Debug)]
pub enum Source {
    Group(Cgroup, Reach),
    /// There is no control group of its own.
    Processes(Tree),
}

impl Source {
    /// `None` of one that has ended and has no control group of its own.
    pub fn of(container: &dyn Container) -> Option<Self> {
        match container.cgroup() {
            Some(group) => Some(Self::Group(group, Reach::Own)),
            None => Some(Self::Processes(Tree::below(container.pid()?)?)),
        }
    }
}

impl Subject {
    /// What this program and those it shares a control group with need.
    pub fn this_program(scratch: PathBuf) -> std::io::Result<Self> {
        let own = std::process::id();
        Ok(Self {
            source: Source::Group(Cgroup::of_process(own)?, Reach::Around),
            pid: Some(own),
            scratch,
            memory_limit: 0,
            processes: vec![("crunch-run", own)],
        })
    }
}

#[derive(Debug)]
pub struct Sampler {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Summary>,
}

impl Sampler {
    /// The first sample is taken at once.
    pub fn start(subject: Subject, log: File, journal: Journal, period: Duration) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mut watch = Watch {
            thresholds: MemoryThresholds::new(subject.memory_limit, &THRESHOLDS),
            subject,
            log,
            journal,
            summary: Summary::default(),
            before: None,
        };
        let task = tokio::spawn(async move {
            watch.introduce();
            watch.sample();
            watch.until(stopped, period).await;
            watch.sample();
            watch.summary
        });
        Self { stop, task }
    }

    /// Takes the last sample and tells what was used in all. The group must still be there.
    pub async fn finish(self) -> Summary {
        let _ = self.stop.send(());
        self.task.await.unwrap_or_default()
    }
}

struct Watch {
    subject: Subject,
    log: File,
    journal: Journal,
    thresholds: MemoryThresholds,
    summary: Summary,
    before: Option<Sample>,
}

impl Watch {
    async fn until(&mut self, mut stopped: oneshot::Receiver<()>, period: Duration) {
        let period = period.max(Duration::from_millis(100));
        let mut next_sample = Instant::now() + period;
        let mut pause = MEMORY_LOOK;
        loop {
            let wake = next_sample.min(Instant::now() + pause);
            tokio::select! {
                _ = &mut stopped => return,
                () = tokio::time::sleep_until(wake) => {}
            }
            if Instant::now() >= next_sample {
                self.sample();
                next_sample = Instant::now() + period;
            } else {
                let begun = Instant::now();
                self.look_at_memory();
                pause = MEMORY_LOOK.max(begun.elapsed() * IDLE_SHARE);
            }
        }
    }

    /// Says where the figures come from; tools pass over notices.
    fn introduce(&mut self) {
        let mut lines: Vec<String> = match &self.subject.source {
            Source::Group(group, _) => group
                .dirs()
                .iter()
                .map(|dir| format!("notice: reading stats from {}", dir.display()))
                .collect(),
            Source::Processes(tree) => vec![format!(
                "notice: reading stats of process {} and those below it: there is no control group of its own",
                tree.first()
            )],
        };
        let scratch = self.subject.scratch.display();
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
            self.journal
                .say(format!("Statistics cannot be written: {error}"));
        }
    }

    fn sample(&mut self) {
        let sample = Sample::take(&mut self.subject);
        self.write(&sample.lines(self.before.as_ref()));
        self.judge(sample.memory.rss);
        self.summary.add(sample.clone());
        self.before = Some(sample);
    }

    fn look_at_memory(&mut self) {
        let memory = match &mut self.subject.source {
            Source::Group(group, reach) => Memory::of_group(group, *reach),
            Source::Processes(tree) => Memory::of_tree(&tree.look()),
        };
        self.judge(memory.rss);
        self.summary.peak_memory(memory);
    }

    fn judge(&mut self, rss: Option<u64>) {
        for line in rss.map_or(vec![], |rss| self.thresholds.passed(rss)) {
            self.journal.say(line);
        }
    }
}
