//! The loop of the overseer. Each tick polls the demand file, lists the worker jobs, decides, and
//! starts or stops jobs.
//!
//! The effect of a start or stop is read from the next listing.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime};

use dispatch_core::service::state_dir::StateDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::decide::{DecideInput, DemandStatus, Limits, Plan, decide};
use crate::demand_file::DemandFile;
use crate::flags::Flags;
use crate::job::Job;
use crate::start_journal::StartJournal;
use crate::workers::{StartError, WorkerBackend};

const STOPPED: &str = "stopped by a signal; worker jobs are left as they are";

/// One overseer with its state.
pub struct Overseer<W> {
    backend: W,
    demand_file: DemandFile,
    journal: StartJournal,
    /// Interval between two ticks.
    interval: Duration,
    limits: Limits,
    last_logged: LastLogged,
    /// Locked against other overseers.
    _home: StateDir,
}

impl<W: WorkerBackend> Overseer<W> {
    /// Opens the state in `home`, which this process has locked.
    pub fn new(backend: W, home: StateDir, flags: &Flags) -> io::Result<Self> {
        let uncertainty = flags.start_uncertainty.as_secs();
        Ok(Self {
            journal: StartJournal::open(home.path(), now(), uncertainty)?,
            demand_file: DemandFile::of(&flags.file, flags.stale_after),
            backend,
            interval: flags.poll_interval,
            limits: flags.limits(),
            last_logged: LastLogged::default(),
            _home: home,
        })
    }

    /// Runs until the computation is finished or a signal arrives. A signal leaves the jobs as they
    /// are.
    pub async fn run(mut self) -> io::Result<()> {
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            let tick = async {
                let ended = self.tick().await;
                if !ended {
                    tokio::time::sleep(self.interval).await;
                }
                ended
            };
            let end = tokio::select! {
                ended = tick => match ended {
                    true => "the computation is finished",
                    false => continue,
                },
                // The next overseer treats a start that is interrupted here as uncertain.
                _ = term.recv() => STOPPED,
                _ = interrupt.recv() => STOPPED,
            };
            tracing::info!("{end}");
            return Ok(());
        }
    }

    /// Runs one tick. True if the overseer is done.
    async fn tick(&mut self) -> bool {
        let polled = self.demand_file.poll(now());
        self.last_logged.log_file_problem(polled.err());
        let listed = self.backend.list().await;
        self.last_logged
            .log_listing_problem(listed.as_ref().err().map(ToString::to_string));
        let now = now();
        let input = DecideInput {
            now,
            status: self.demand_file.status(now),
            jobs: listed.as_deref().ok(),
            starts: self.journal.starts(),
        };
        let plan = decide(&input, &self.limits);
        self.last_logged.log_summary(&input, &plan);
        if !plan.stop.is_empty() {
            match self.backend.stop(&plan.stop).await {
                Ok(()) => tracing::info!(jobs = plan.stop.join(" "), "stopped idle worker jobs"),
                Err(error) => tracing::warn!(%error, "cannot stop idle worker jobs"),
            }
        }
        if plan.start > 0 {
            self.start(plan.start, now).await;
        }
        plan.is_done
    }

    async fn start(&mut self, count: u32, began: u64) {
        let Some(worker) = self.demand_file.last().map(worker_demand::Demand::command) else {
            return;
        };
        // Without this entry, an overseer that follows a killed one would start the same jobs
        // again.
        if let Err(error) = self.journal.record_start(began) {
            tracing::error!(%error, "cannot write the start journal; starting no worker jobs");
            return;
        }
        match self.backend.start(count, &worker).await {
            Ok(()) => tracing::info!(count, program = worker.program, "started worker jobs"),
            Err(StartError::Refused(error)) => {
                tracing::error!(count, error, "could not start worker jobs")
            }
            Err(StartError::Ambiguous(error)) => {
                // The uncertainty counts from the end of the command, which may have been slow.
                if let Err(error) = self.journal.record_start(now()) {
                    tracing::error!(%error, "cannot write an uncertain start to the start journal");
                }
                tracing::warn!(
                    count,
                    error,
                    event = "start_uncertain",
                    "worker jobs may or may not have been started; waiting for the scheduler to list them"
                );
                return;
            }
        }
        if let Err(error) = self.journal.record_end() {
            tracing::warn!(%error, "cannot write the end of a start to the start journal; the next start waits longer");
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// The last logged state of each kind, so that a lasting state is logged once.
#[derive(Debug, Default)]
struct LastLogged {
    file: Option<String>,
    listing: Option<String>,
    held_jobs: BTreeSet<String>,
    summary: String,
}

impl LastLogged {
    fn log_file_problem(&mut self, problem: Option<String>) {
        if problem != self.file {
            match &problem {
                Some(problem) => {
                    tracing::warn!(
                        error = problem,
                        event = "demand_rejected",
                        "cannot use the demand file; using the last valid demand until it is stale"
                    )
                }
                None => tracing::info!(event = "demand_valid", "the demand file is valid again"),
            }
            self.file = problem;
        }
    }

    fn log_listing_problem(&mut self, problem: Option<String>) {
        if problem != self.listing {
            match &problem {
                Some(problem) => {
                    tracing::warn!(
                        error = problem,
                        event = "listing_failed",
                        "cannot list worker jobs; starting and stopping nothing"
                    )
                }
                None => tracing::info!("worker jobs can be listed again"),
            }
            self.listing = problem;
        }
    }

    fn log_held_jobs(&mut self, jobs: &[Job]) {
        let held_jobs = jobs
            .iter()
            .filter_map(|job| Some((job, job.held.as_ref()?)));
        for (job, reason) in held_jobs.clone() {
            if !self.held_jobs.contains(&job.id) {
                tracing::warn!(
                    job = job.id,
                    reason,
                    "a worker job is on hold: release or remove it"
                );
            }
        }
        self.held_jobs = held_jobs.map(|(job, _)| job.id.clone()).collect();
    }

    fn log_summary(&mut self, input: &DecideInput<'_>, plan: &Plan) {
        self.log_held_jobs(input.jobs.unwrap_or_default());
        let demand = match input.status {
            DemandStatus::Unread => "not read yet".to_owned(),
            DemandStatus::Stale => "stale".to_owned(),
            DemandStatus::Finished(_) => "finished".to_owned(),
            DemandStatus::Fresh(demand) => format!("{} more", demand.needed),
        };
        let jobs = input
            .jobs
            .map_or_else(|| "not known".to_owned(), count_by_state);
        let deferral = plan
            .deferral
            .map_or_else(String::new, |deferral| format!("; {deferral}"));
        let line = format!("wanted: {demand}; jobs: {jobs}{deferral}");
        if line != self.summary {
            tracing::info!(
                deferral = plan.deferral.map(tracing::field::debug),
                "{line}"
            );
            self.summary = line;
        }
    }
}

fn count_by_state(jobs: &[Job]) -> String {
    use crate::job::State::{Busy, Idle, Leaving};
    let of = |state| jobs.iter().filter(|job| job.state == state).count();
    format!(
        "{} idle, {} busy, {} leaving",
        of(Idle),
        of(Busy),
        of(Leaving)
    )
}
