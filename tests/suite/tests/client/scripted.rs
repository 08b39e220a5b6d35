//! A scheduler that accepts, refuses or loses jobs as a test orders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arvados_client::{ContainerUuid, Token, TokenUuid};
use dispatch_core::model::resources::Admission;
use dispatch_core::model::world::{Job, JobId};
use dispatch_core::scheduler::{
    Candidate, DesiredPlace, JobExit, PendingReason, Scheduler, SchedulerError, StillInUse,
    StopMode, SubmitRequest,
};

use crate::dispatcher::wait_until;

/// How the scheduler answers a submission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SubmitBehavior {
    /// Answers unclearly, and creates no job.
    Mumble,
    /// Creates a job after this time.
    Slow(Duration),
    /// Creates a job, then answers unclearly.
    Swallow,
}

#[derive(Debug, Clone)]
pub struct Scripted {
    pub manner: SubmitBehavior,
    pub jobs: Arc<Mutex<BTreeMap<ContainerUuid, u32>>>,
    pub tokens: Arc<Mutex<BTreeMap<ContainerUuid, Token>>>,
    pub ending: Arc<Mutex<JobExit>>,
    /// The pending reason of every job.
    pub waiting: Arc<Mutex<Option<PendingReason>>>,
    /// The priorities of the last reorder.
    pub wanted: Arc<Mutex<Vec<DesiredPlace>>>,
    /// The admission of what a workflow that runs here waits for.
    pub of_steps: Arc<Mutex<Admission>>,
    /// Number of listings.
    listings: Arc<AtomicUsize>,
}

impl Scripted {
    pub fn new(manner: SubmitBehavior) -> Self {
        Self {
            manner,
            jobs: Arc::default(),
            tokens: Arc::default(),
            ending: Arc::default(),
            waiting: Arc::default(),
            wanted: Arc::default(),
            of_steps: Arc::new(Mutex::new(Admission::Now)),
            listings: Arc::default(),
        }
    }

    /// The token of a container's last submission.
    pub fn token(&self, container: &ContainerUuid) -> Token {
        self.tokens.lock().unwrap()[container].clone()
    }

    /// Waits until the dispatcher has listed jobs `count` more times, and acted on all but the
    /// last.
    pub async fn wait_for_listings(&self, count: usize) {
        let listings = || self.listings.load(Ordering::Relaxed);
        let until = listings() + count + 1;
        wait_until(&|| listings() >= until).await;
    }

    /// Number of jobs created for a container.
    pub fn made(&self, container: &ContainerUuid) -> u32 {
        self.jobs
            .lock()
            .unwrap()
            .get(container)
            .copied()
            .unwrap_or(0)
    }
}

impl Scripted {
    async fn submit_one(&self, request: SubmitRequest) -> Result<JobId, SchedulerError> {
        let token = (request.container.clone(), request.credentials.token.clone());
        self.tokens.lock().unwrap().extend([token]);
        if let SubmitBehavior::Slow(time) = self.manner {
            tokio::time::sleep(time).await;
        }
        if self.manner != SubmitBehavior::Mumble {
            let mut jobs = self.jobs.lock().unwrap();
            *jobs.entry(request.container.clone()).or_insert(0) += 1;
        }
        match self.manner {
            SubmitBehavior::Slow(_) => Ok(JobId(request.container.to_string())),
            SubmitBehavior::Mumble | SubmitBehavior::Swallow => Err(SchedulerError::Ambiguous {
                scheduler: "scripted",
                container: request.container,
                detail: "well".into(),
            }),
        }
    }
}

impl Scheduler for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn admit(&self, candidates: &[Candidate], _: &[Candidate]) -> Vec<Admission> {
        let of_steps = self.of_steps.lock().unwrap().clone();
        let admission = |candidate: &Candidate| match candidate.runners.is_empty() {
            true => Admission::Now,
            false => of_steps.clone(),
        };
        candidates.iter().map(admission).collect()
    }

    async fn list_jobs(&self) -> Result<Vec<Job>, SchedulerError> {
        self.listings.fetch_add(1, Ordering::Relaxed);
        let jobs = self.jobs.lock().unwrap();
        let job = |container: &ContainerUuid| Job {
            id: JobId(container.to_string()),
            container: container.clone(),
            attempt: None,
            ended: false,
            node: None,
        };
        Ok(jobs.keys().map(job).collect())
    }

    async fn submit(&self, requests: Vec<SubmitRequest>) -> Vec<Result<JobId, SchedulerError>> {
        let mut answers = Vec::new();
        for request in requests {
            answers.push(self.submit_one(request).await);
        }
        answers
    }

    fn pending_reasons(&self) -> BTreeMap<ContainerUuid, PendingReason> {
        let (jobs, waiting) = (self.jobs.lock().unwrap(), self.waiting.lock().unwrap());
        let each =
            |waiting: &PendingReason| jobs.keys().map(|c| (c.clone(), waiting.clone())).collect();
        waiting.as_ref().map(each).unwrap_or_default()
    }

    async fn reorder(&self, wanted: Vec<DesiredPlace>) -> Result<(), SchedulerError> {
        *self.wanted.lock().unwrap() = wanted;
        Ok(())
    }

    async fn cancel(&self, cancelled: &[JobId], _: StopMode) -> Vec<Result<(), SchedulerError>> {
        let is_cancelled = |container: &ContainerUuid| {
            let mut cancelled = cancelled.iter();
            cancelled.any(|job| container.as_str() == job.0)
        };
        let mut jobs = self.jobs.lock().unwrap();
        jobs.retain(|container, _| !is_cancelled(container));
        vec![Ok(()); cancelled.len()]
    }

    async fn job_exit(&self, _: &ContainerUuid, _: &TokenUuid) -> JobExit {
        self.ending.lock().unwrap().clone()
    }

    async fn cleanup(&self, _: &ContainerUuid) -> Result<(), StillInUse> {
        Ok(())
    }

    async fn job_exited(&self) {
        std::future::pending().await
    }
}
