//! HTCondor as a [`Scheduler`]: each method of the trait, by the methods of [`Condor`].

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

use crate::condor::{Condor, MAX_BATCH_JOBS};
use crate::control::cancel::MAX_CANCEL_BATCH;
use crate::error::NAME;
use crate::query::condor_q::JobAd;
use crate::query::pending_reason;

/// Minimum interval between two listings, to leave the schedd time for other work.
const MIN_LISTING_INTERVAL: Duration = Duration::from_millis(300);
/// Multiple of the duration of the last listing that the interval is at least.
const LISTING_INTERVAL_FACTOR: u32 = 10;

impl Scheduler for Condor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn submit_host(&self) -> Option<&Precondition> {
        Some(&self.submit_host)
    }

    /// Admits all that some slot could run and HTCondor accepts; it queues what does not fit now.
    /// `max_pending` limits how many jobs wait in its queue.
    fn admit(&self, candidates: &[Candidate], _started: &[Candidate]) -> Vec<Admission> {
        let possible = |needs: &ResourceRequest| match self.fit_partitions(needs) {
            Admission::Now => fit(&self.settings.instance_types, needs),
            never => never,
        };
        let fit = |candidate: &Candidate| match possible(&candidate.needs) {
            Admission::Now => {
                let Candidate {
                    container, needs, ..
                } = candidate;
                let fields = self.settings.requested_fields(container, needs, None);
                match fields.map(|_| self.capacity.fit(needs)) {
                    Ok(Admission::Now) => {
                        let deferral = self.rejections.deferral(candidate);
                        deferral.map_or(Admission::Now, Admission::Later)
                    }
                    Ok(other) => other,
                    Err(error) => Admission::Never(error.to_string()),
                }
            }
            never => never,
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
        self.capacity.fits_beside(needs, nodes)
    }

    /// One `condor_submit` of a thousand jobs takes as long as one of two jobs.
    fn capabilities(&self) -> Capabilities {
        let took = self.queue.lock().took;
        Capabilities {
            max_submit_batch: MAX_BATCH_JOBS,
            max_cancel_batch: MAX_CANCEL_BATCH,
            defers_rejected_jobs: true,
            min_listing_interval: MIN_LISTING_INTERVAL.max(took * LISTING_INTERVAL_FACTOR),
            ..Capabilities::default()
        }
    }

    /// Lists the jobs with `condor_q`, and remembers the listing.
    async fn list_jobs(&self) -> Result<Vec<Job>, SchedulerError> {
        let began = Instant::now();
        let listing = self.query_queue().await?;
        let jobs = listing.jobs();
        self.rejections.listed(began, &jobs);
        *self.queue.lock() = listing;
        Ok(jobs)
    }

    async fn run_upkeep(&self) {
        self.monitor_jobs();
        self.capacity.refresh(self.command_timeout).await;
        self.refresh_partitions().await;
        if let Some(map) = &self.settings.owner_map {
            map.refresh().await;
        }
        self.rejections.retest(self).await;
    }

    async fn submit(&self, requests: Vec<SubmitRequest>) -> Vec<Result<JobId, SchedulerError>> {
        if let Some(map) = &self.settings.owner_map {
            map.refresh().await;
        }
        self.submit_requests(&requests).await
    }

    fn take_extra_commands(&self) -> u32 {
        self.extra_commands.swap(0, Ordering::Relaxed)
    }

    fn pending_reasons(&self) -> BTreeMap<ContainerUuid, PendingReason> {
        let fit = |ad: &JobAd| self.capacity.fit(&ad.needs());
        let ads = &self.queue.lock().ads;
        pending_reason::pending_reasons(ads, fit, &self.match_analysis.never_matching(ads))
    }

    async fn reorder(&self, wanted: Vec<DesiredPlace>) -> Result<(), SchedulerError> {
        self.reorder_jobs(&wanted).await
    }

    /// HTCondor sends TERM and kills the job after the vacate time of the submit description. One
    /// refusal fails the whole batch: removing a job again that is being removed changes nothing.
    async fn cancel(&self, jobs: &[JobId], mode: StopMode) -> Vec<Result<(), SchedulerError>> {
        vec![self.cancel_jobs(jobs, mode).await; jobs.len()]
    }

    async fn job_exit(&self, container: &ContainerUuid, attempt: &TokenUuid) -> JobExit {
        self.query_exit(container, attempt).await
    }

    fn state_dir(&self) -> Option<&Path> {
        Some(self.state_dir.path())
    }

    async fn cleanup(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        self.rejections.forget(container);
        self.attempt_dir(container).remove_logged().await;
        Ok(())
    }

    /// Resolves when the job event log has a terminal event. Only `condor_q` then says which job
    /// ended.
    async fn job_exited(&self) {
        self.event_log.job_ended().await
    }
}
