//! The listing of jobs: reads every job directory, tracks the jobs in them, and later acts on what
//! it found.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use dispatch_core::model::world::Job;

use crate::crunch_run_process::CrunchRunProcess;
use crate::job_dir::{CrunchRunExit, JobDir, JobStatus};
use crate::local::{Scan, Shared, TrackedJob, job_id};
use crate::machine::{Machine, free_space};

/// Retention of the directory of a job that recorded its final state. The dispatcher may still ask
/// how it ended.
const FINISHED_JOB_RETENTION: Duration = Duration::from_secs(60);

impl Shared {
    /// Reads every job directory. Changes nothing.
    pub(crate) fn scan_job_dirs(&self) -> io::Result<Scan> {
        let mut scan = Scan {
            started: Instant::now(),
            jobs: Vec::new(),
            alive: BTreeMap::new(),
            ended: Vec::new(),
            finished: Vec::new(),
        };
        for dir in JobDir::all(self.state_dir.path())? {
            let container = dir.container.clone();
            // crunch-run is about to take the lock of this directory; testing the lock could make
            // that fail.
            if self.state.lock().starting.contains(&container) {
                continue;
            }
            let record = dir.record();
            let attempt = record.as_ref().map(|record| record.attempt.clone());
            let (id, ended) = match dir.status()? {
                JobStatus::Alive(worker) => {
                    let id = job_id(&container, worker.as_ref());
                    let job = TrackedJob {
                        record,
                        worker: worker.map(Arc::new),
                        started: None,
                    };
                    scan.alive.insert(container.clone(), job);
                    (id, false)
                }
                JobStatus::Ended(CrunchRunExit::Code(0))
                    if dir
                        .time_since_change()
                        .is_some_and(|age| age > FINISHED_JOB_RETENTION) =>
                {
                    scan.finished.push(dir);
                    continue;
                }
                JobStatus::Ended(exit) => {
                    scan.ended.push((dir, exit));
                    (job_id(&container, None), true)
                }
            };
            scan.jobs.push(Job {
                id,
                container,
                attempt,
                ended,
                node: None,
            });
        }
        Ok(scan)
    }

    /// Tracks the jobs that are alive, exchanges claims with other dispatchers, and keeps the rest
    /// of the scan for [`run_upkeep`](Self::run_upkeep).
    pub(crate) fn apply_scan(self: &Arc<Self>, mut scan: Scan) -> Vec<Job> {
        self.track(std::mem::take(&mut scan.alive), scan.started);
        let jobs = std::mem::take(&mut scan.jobs);
        self.state.lock().last_scan = Some(scan);
        self.write_claims();
        self.read_claims();
        jobs
    }

    /// Discards directories of finished jobs, starts due deliveries of results, and probes an idle
    /// machine again.
    pub(crate) fn run_upkeep(self: &Arc<Self>) {
        let Some(scan) = self.state.lock().last_scan.take() else {
            return;
        };
        for dir in &scan.finished {
            let container = &dir.container;
            if self.state.lock().is_newer(container, scan.started) {
                continue;
            }
            if let Err(error) = self.discard_job_dir_blocking(dir) {
                tracing::warn!(%container, %error, "could not remove the directory of a finished job; the next listing retries");
            }
        }
        for (dir, exit) in &scan.ended {
            if !self.state.lock().is_newer(&dir.container, scan.started) {
                self.redeliveries.poll(&self.crunch_run, dir, *exit);
            }
        }
        // A crunch-run that ended discarded its files itself.
        self.trash.wake();
        let has_trash = self.has_trash();
        let free = free_space(&self.scratch);
        let mut state = self.state.lock();
        if state.jobs.is_empty() && state.starting.is_empty() && !has_trash {
            // No job uses disk or memory, so what is free now is the capacity.
            match Machine::probe(&self.scratch, &self.caps) {
                Ok(machine) => state.machine = machine,
                Err(error) => {
                    tracing::warn!(%error, "could not probe the resources of this machine again; keeping the earlier values");
                }
            }
        } else if let Ok(free) = free {
            // Somebody made room. An idle machine has this much, and what its jobs have written.
            state.machine.scratch = state.machine.scratch.max(free);
        }
    }

    /// Replaces the tracked jobs by those that are alive, and follows their workers.
    fn track(
        self: &Arc<Self>,
        mut alive: BTreeMap<ContainerUuid, TrackedJob>,
        scan_started: Instant,
    ) {
        let mut state = self.state.lock();
        for (container, job) in &state.jobs {
            if state.is_newer(container, scan_started) {
                alive.entry(container.clone()).or_insert(job.clone());
            }
        }
        for (container, job) in &alive {
            let followed = state.jobs.get(container).and_then(|j| j.worker.as_ref());
            if let Some(worker) = &job.worker
                && followed.is_none_or(|followed| followed.pid() != worker.pid())
            {
                self.follow(worker);
            }
        }
        state.jobs = alive;
    }

    /// Notifies the dispatcher when the worker exits.
    fn follow(self: &Arc<Self>, worker: &CrunchRunProcess) {
        match worker.exited() {
            Ok(exited) => {
                let shared = self.clone();
                tokio::spawn(async move {
                    exited.await;
                    shared.worker_exited.notify_one();
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot follow a crunch-run; its exit is found by polling only");
            }
        }
    }
}
