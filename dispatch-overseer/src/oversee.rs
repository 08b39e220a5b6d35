//! The loop: read the file, list the jobs, decide, act. What an act did the next listing tells.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use dispatch_core::home::Home;
use tokio::signal::unix::{SignalKind, signal};

use crate::decide::{Limits, Plan, Standing, View, decide};
use crate::job::Job;
use crate::memory::Memory;
use crate::reading::Reading;
use crate::workers::{StartError, Workers};

/// How to go about it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// From one look to the next.
    pub interval: Duration,
    /// Seconds for which jobs of a start without a clear answer may still come.
    pub doubt: u64,
    pub limits: Limits,
}

/// Why an overseer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The computation is finished.
    Finished,
    /// It was asked to.
    Stopped,
}

/// One overseer at its work.
pub struct Overseer<W> {
    workers: W,
    reading: Reading,
    memory: Memory,
    settings: Settings,
    said: Said,
    /// No other overseer may use it.
    _home: Home,
}

impl<W: Workers> Overseer<W> {
    /// In its directory, which nobody else uses.
    pub fn new(
        workers: W,
        home: Home,
        file: &Path,
        missed: u32,
        settings: Settings,
    ) -> std::io::Result<Self> {
        Ok(Self {
            memory: Memory::open(home.path(), now(), settings.doubt)?,
            reading: Reading::of(file, missed),
            workers,
            settings,
            said: Said::default(),
            _home: home,
        })
    }

    /// Until the computation is finished, or a signal comes; jobs are left as they are then.
    pub async fn run(mut self) -> std::io::Result<End> {
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            let turn = async {
                let ended = self.turn().await;
                if !ended {
                    tokio::time::sleep(self.settings.interval).await;
                }
                ended
            };
            tokio::select! {
                ended = turn => match ended {
                    true => return Ok(End::Finished),
                    false => continue,
                },
                // A start that is broken off here is doubtful to the next overseer.
                _ = term.recv() => return Ok(End::Stopped),
                _ = interrupt.recv() => return Ok(End::Stopped),
            }
        }
    }

    /// One look and what follows; whether there is nothing left to do.
    async fn turn(&mut self) -> bool {
        let looked = self.reading.look(now());
        self.said.file(looked.err().map(|error| error.to_string()));
        let listed = self.workers.list().await;
        self.said
            .listing(listed.as_ref().err().map(ToString::to_string));
        let now = now();
        let view = View {
            now,
            standing: self.reading.standing(now),
            jobs: listed.as_deref().ok(),
            last_start: self.memory.last_start(),
            doubtful_until: self.memory.doubtful_until(),
        };
        let plan = decide(&view, &self.settings.limits);
        self.said.look(&view, &plan);
        if !plan.stop.is_empty() {
            match self.workers.stop(&plan.stop).await {
                Ok(()) => tracing::info!(jobs = plan.stop.join(" "), "stopped idle jobs"),
                Err(error) => tracing::warn!(%error, "idle jobs could not be stopped"),
            }
        }
        if plan.start > 0 {
            self.start(plan.start, now).await;
        }
        plan.end
    }

    async fn start(&mut self, count: u32, began: u64) {
        let Some(worker) = self.reading.last().map(demand::Demand::command) else {
            return;
        };
        // Without the note, an overseer that is killed now would be followed by one that starts them again.
        if let Err(error) = self.memory.begin(began, self.settings.doubt) {
            tracing::error!(%error, "nothing is started, because it could not be noted first");
            return;
        }
        match self.workers.start(count, &worker).await {
            Ok(()) => tracing::info!(count, program = worker.program, "started jobs"),
            Err(StartError::Refused(error)) => {
                tracing::error!(count, error, "jobs were not started")
            }
            Err(StartError::Ambiguous(error)) => {
                // The doubt counts from the end of the attempt, which may have taken its time.
                if let Err(error) = self.memory.begin(now(), self.settings.doubt) {
                    tracing::error!(%error, "a start with an unclear end could not be noted");
                }
                tracing::warn!(
                    count,
                    error,
                    "jobs may or may not have been started; the listings will tell"
                );
                return;
            }
        }
        if let Err(error) = self.memory.end() {
            tracing::warn!(%error, "the end of a start could not be noted; the next one waits longer");
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// What was said last, so that a state that lasts is told once.
#[derive(Debug, Default)]
struct Said {
    file: Option<String>,
    listing: Option<String>,
    held: BTreeSet<String>,
    look: String,
}

impl Said {
    fn file(&mut self, problem: Option<String>) {
        if problem != self.file {
            match &problem {
                Some(problem) => {
                    tracing::warn!("{problem}; the last good reading holds until it is stale")
                }
                None => tracing::info!("the demand file is good again"),
            }
            self.file = problem;
        }
    }

    fn listing(&mut self, problem: Option<String>) {
        if problem != self.listing {
            match &problem {
                Some(problem) => {
                    tracing::warn!(error = problem, "jobs cannot be listed; nothing is done")
                }
                None => tracing::info!("jobs are listed again"),
            }
            self.listing = problem;
        }
    }

    fn held(&mut self, jobs: &[Job]) {
        let held = jobs
            .iter()
            .filter_map(|job| Some((job, job.held.as_ref()?)));
        for (job, reason) in held.clone() {
            if !self.held.contains(&job.id) {
                tracing::warn!(
                    job = job.id,
                    reason,
                    "a job is held: release it, or remove it"
                );
            }
        }
        self.held = held.map(|(job, _)| job.id.clone()).collect();
    }

    fn look(&mut self, view: &View<'_>, plan: &Plan) {
        self.held(view.jobs.unwrap_or_default());
        let demand = match view.standing {
            Standing::Unread => "not read yet".to_owned(),
            Standing::Stale => "stale".to_owned(),
            Standing::Finished(_) => "finished".to_owned(),
            Standing::Fresh(demand) => format!("{} more", demand.needed),
        };
        let jobs = view.jobs.map_or_else(|| "not known".to_owned(), counts);
        let hold = plan
            .hold
            .map_or_else(String::new, |hold| format!("; {hold}"));
        let line = format!("wanted: {demand}; jobs: {jobs}{hold}");
        if line != self.look {
            tracing::info!("{line}");
            self.look = line;
        }
    }
}

fn counts(jobs: &[Job]) -> String {
    use crate::job::State::{Busy, Idle, Leaving};
    let of = |state| jobs.iter().filter(|job| job.state == state).count();
    format!(
        "{} idle, {} busy, {} leaving",
        of(Idle),
        of(Busy),
        of(Leaving)
    )
}
