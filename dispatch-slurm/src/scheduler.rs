//! Slurm as a [`Scheduler`]: which command serves which method of the trait.
//!
//! Input: calls of the controller. Output: jobs, results and pending reasons; the commands are in
//! `submit`, `query` and `control`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::instance_types::fit;
use dispatch_core::model::owner::{Charge, KnownOwner};
use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::model::world::{Job, JobId};
use dispatch_core::scheduler::rejections::Rejections;
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::scheduler::{
    Candidate, Capabilities, DesiredPlace, JobExit, PendingReason, Scheduler, SchedulerError,
    StillInUse, StopMode, SubmitRequest,
};
use jiff::Timestamp;

use crate::control::cancel::MAX_JOBS_PER_CANCEL;
use crate::error::{NAME, no_answer};
use crate::preflight::{self, PreflightError};
use crate::query::pending_reason::describe_pending;
use crate::query::squeue::{self, LISTING_FORMAT, Row};
use crate::slurm::Slurm;
use crate::submit::job_array::{ArrayLimit, MIN_ELEMENTS};

/// Interval between checks whether a completing job may be gone.
const COMPLETING_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Slurm {
    /// Checks Slurm's commands and configuration, creates the file of the epilog and enables job
    /// arrays. It needs no answer of slurmctld.
    pub async fn initialize(&self) -> Result<(), PreflightError> {
        self.epilog.create_file();
        *self.array_limit.lock() = ArrayLimit::Unknown;
        preflight::check().await
    }

    /// A complete listing, and its rows of this dispatcher.
    pub(crate) async fn list_rows(&self) -> Result<(String, Vec<Row>), SchedulerError> {
        let listing = self
            .squeue(&["--array", "--format", LISTING_FORMAT])
            .await?;
        let rows = squeue::parse(&listing, &self.instance_id, self)
            .map_err(|error| no_answer(error.to_string()))?;
        Ok((listing, rows))
    }

    /// Records what a complete listing shows: job ids, the effect of nice values, the queue.
    fn apply_listing(&self, rows: Vec<Row>) {
        for row in &rows {
            if let Some(attempt) = &row.attempt {
                self.record_job_id(row.container.clone(), attempt.clone(), row.id.clone());
            }
        }
        self.pending_nice.lock().confirm(&rows);
        *self.queue.lock() = rows;
    }

    /// Maximum number of jobs in one submission: the elements of one job array.
    fn max_submit_batch(&self) -> usize {
        match *self.array_limit.lock() {
            ArrayLimit::AtMost(elements) if elements >= MIN_ELEMENTS => elements,
            ArrayLimit::AtMost(_) | ArrayLimit::Unused | ArrayLimit::Unknown => 1,
        }
    }

    /// Resolves when a job that was completing after its epilog ran may be gone.
    async fn completing_job_may_be_gone(&self) {
        loop {
            tokio::time::sleep(COMPLETING_POLL_INTERVAL).await;
            let is_completing = |row: &Row| row.state == "COMPLETING";
            if self.burst.lock().is_due(Instant::now())
                && self.queue.lock().iter().any(is_completing)
            {
                return;
            }
        }
    }
}

impl Scheduler for Slurm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn submit_host(&self) -> Option<&Precondition> {
        Some(&self.submit_host)
    }

    /// Slurm queues containers that do not fit now; `max_pending` limits how many. Containers that
    /// fit no node at all are not submitted, and rejected ones wait.
    fn admit(&self, candidates: &[Candidate], _started: &[Candidate]) -> Vec<Admission> {
        let fit = |candidate: &Candidate| {
            let needs = &candidate.needs;
            let fits = [fit(&self.settings.types, needs), self.capacity.fit(needs)];
            let obstacle = fits.into_iter().find(|fit| *fit != Admission::Now);
            let deferral = || self.rejections.deferral(candidate).map(Admission::Later);
            obstacle.or_else(deferral).unwrap_or(Admission::Now)
        };
        candidates.iter().map(fit).collect()
    }

    fn rejections(&self) -> Option<&Rejections> {
        Some(&self.rejections)
    }

    fn charge(&self, owner: &KnownOwner) -> Option<Charge> {
        Some(self.settings.charge(owner))
    }

    fn fits_beside(&self, needs: &ResourceRequest, nodes: &[String]) -> bool {
        self.capacity.fitting_nodes(needs) > nodes.len() as u64
    }

    fn capabilities(&self) -> Capabilities {
        let max_submit_batch = self.max_submit_batch();
        Capabilities {
            max_submit_batch,
            min_uniform_batch: (max_submit_batch > 1).then_some(MIN_ELEMENTS),
            max_cancel_batch: MAX_JOBS_PER_CANCEL,
            charges_exit_queries: true,
            defers_rejected_jobs: true,
            min_listing_interval: self.burst.lock().min_interval(Instant::now()),
        }
    }

    /// Lists the jobs with `squeue`, and remembers the rows.
    async fn list_jobs(&self) -> Result<Vec<Job>, SchedulerError> {
        let (before, began) = (self.arrays.snapshot(), Instant::now());
        self.burst.lock().record_listing(began);
        let (listing, rows) = self.list_rows().await?;
        let jobs: Vec<Job> = rows.iter().map(Row::job).collect();
        self.rejections.listed(began, &jobs);
        self.apply_listing(rows);
        *self.abandoned_elements.lock() = self.find_abandoned_elements(&listing, &before);
        Ok(jobs)
    }

    /// Cancels abandoned array elements, and refreshes the array limit, the capacity, the owner
    /// map and the tests of rejected submissions.
    async fn run_upkeep(&self) {
        self.cancel_abandoned_elements().await;
        self.refresh_array_limit().await;
        self.capacity
            .refresh(&self.settings, self.command_timeout)
            .await;
        if let Some(map) = &self.settings.owner_map {
            map.refresh().await;
        }
        self.rejections.retest(self).await;
    }

    /// Submits one job with `sbatch`, or several as job arrays.
    async fn submit(&self, requests: Vec<SubmitRequest>) -> Vec<Result<JobId, SchedulerError>> {
        if let Some(map) = &self.settings.owner_map {
            map.refresh().await;
        }
        match <[SubmitRequest; 1]>::try_from(requests) {
            Ok([request]) => vec![self.submit_job(request).await],
            Err(requests) => self.submit_as_arrays(requests).await,
        }
    }

    fn pending_reasons(&self) -> BTreeMap<ContainerUuid, PendingReason> {
        let (queue, now) = (self.queue.lock(), Timestamp::now());
        let waits = queue
            .iter()
            .filter_map(|row| Some((row.container.clone(), describe_pending(row, now)?)));
        waits.collect()
    }

    async fn reorder(&self, wanted: Vec<DesiredPlace>) -> Result<(), SchedulerError> {
        self.reorder_pending(&wanted).await
    }

    fn take_extra_commands(&self) -> u32 {
        self.extra_commands.swap(0, Ordering::Relaxed)
    }

    async fn cancel(&self, jobs: &[JobId], mode: StopMode) -> Vec<Result<(), SchedulerError>> {
        match jobs {
            [job] => vec![self.cancel_job(job, mode).await],
            jobs => self.cancel_jobs(jobs, mode).await,
        }
    }

    async fn job_exit(&self, container: &ContainerUuid, attempt: &TokenUuid) -> JobExit {
        self.fetch_job_exit(container, attempt).await
    }

    fn state_dir(&self) -> Option<&Path> {
        Some(self.state_dir.path())
    }

    async fn cleanup(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        let job = self.job_ids.lock().remove(container);
        if let Some((_, job)) = job {
            self.cancelled.lock().remove(&job);
        }
        self.rejections.forget(container);
        self.attempt_dir(container).remove_logged().await;
        Ok(())
    }

    /// Resolves when an epilog touched its file, or a completing job may be gone. Only `squeue`
    /// shows whether a job ended.
    async fn job_exited(&self) {
        tokio::select! {
            () = self.epilog.changed() => self.burst.lock().job_ended(Instant::now()),
            () = self.completing_job_may_be_gone() => {}
        }
    }
}
