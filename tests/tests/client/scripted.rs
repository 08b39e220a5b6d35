//! A scheduler that does as a test tells it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arvados_client::{ContainerUuid, Token, TokenUuid};
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{
    Candidate, Ending, Order, Scheduler, SchedulerError, StillInUse, Urgency, Waiting, Wanted,
};
use dispatch_core::world::{Job, JobId};

/// What the scheduler does with a submission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Manner {
    /// Says something that is neither yes nor no, and makes no job.
    Mumble,
    /// Takes its time, then makes a job.
    Slow(Duration),
    /// Makes a job, then says something that is neither yes nor no.
    Swallow,
}

#[derive(Debug, Clone)]
pub struct Scripted {
    pub manner: Manner,
    pub jobs: Arc<Mutex<BTreeMap<ContainerUuid, u32>>>,
    pub tokens: Arc<Mutex<BTreeMap<ContainerUuid, Token>>>,
    pub ending: Arc<Mutex<Ending>>,
    /// What every job waits for.
    pub waiting: Arc<Mutex<Option<Waiting>>>,
    /// The last order it was asked for.
    pub wanted: Arc<Mutex<Vec<Wanted>>>,
}

impl Scripted {
    pub fn new(manner: Manner) -> Self {
        Self {
            manner,
            jobs: Arc::default(),
            tokens: Arc::default(),
            ending: Arc::default(),
            waiting: Arc::default(),
            wanted: Arc::default(),
        }
    }

    /// The token that came with a container's last submission.
    pub fn token(&self, container: &ContainerUuid) -> Token {
        self.tokens.lock().unwrap()[container].clone()
    }

    /// How many jobs were made for a container.
    pub fn made(&self, container: &ContainerUuid) -> u32 {
        self.jobs
            .lock()
            .unwrap()
            .get(container)
            .copied()
            .unwrap_or(0)
    }
}

impl Scheduler for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn admit(&self, candidates: &[Candidate], _: &[Candidate]) -> Vec<Fit> {
        candidates.iter().map(|_| Fit::Now).collect()
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
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

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        let token = (order.container.clone(), order.credentials.token.clone());
        self.tokens.lock().unwrap().extend([token]);
        if let Manner::Slow(time) = self.manner {
            tokio::time::sleep(time).await;
        }
        if self.manner != Manner::Mumble {
            *self
                .jobs
                .lock()
                .unwrap()
                .entry(order.container.clone())
                .or_insert(0) += 1;
        }
        match self.manner {
            Manner::Slow(_) => Ok(JobId(order.container.to_string())),
            Manner::Mumble | Manner::Swallow => Err(SchedulerError::Ambiguous {
                scheduler: "scripted",
                container: order.container,
                detail: "well".into(),
            }),
        }
    }

    fn waiting(&self) -> BTreeMap<ContainerUuid, Waiting> {
        let (jobs, waiting) = (self.jobs.lock().unwrap(), self.waiting.lock().unwrap());
        let each = |waiting: &Waiting| jobs.keys().map(|c| (c.clone(), waiting.clone())).collect();
        waiting.as_ref().map(each).unwrap_or_default()
    }

    async fn arrange(&self, wanted: Vec<Wanted>) -> Result<(), SchedulerError> {
        *self.wanted.lock().unwrap() = wanted;
        Ok(())
    }

    async fn stop(&self, job: &JobId, _: Urgency) -> Result<(), SchedulerError> {
        self.jobs
            .lock()
            .unwrap()
            .retain(|container, _| container.as_str() != job.0);
        Ok(())
    }

    async fn ending(&self, _: &ContainerUuid, _: &TokenUuid) -> Ending {
        self.ending.lock().unwrap().clone()
    }

    async fn forget(&self, _: &ContainerUuid) -> Result<(), StillInUse> {
        Ok(())
    }

    async fn wake(&self) {
        std::future::pending().await
    }
}
