//! The simulated scheduler: job slots, and commands that fail, answer late or answer unclearly.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::Scheduler;
use dispatch_core::model::resources::Admission;
use dispatch_core::model::world::{Job, JobId};
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::scheduler::{
    Candidate, Capabilities, JobExit, SchedulerError, StillInUse, StopMode, SubmitRequest,
    Uncertainty,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::api::SimApi;
use crate::executor::execute;
use crate::faults::SeededBug;
use crate::state::{self, JobPhase, SCHEDULER_NAME, SharedWorld, SimWorld};

const HOST_FAULT: &str = "the simulated disk is full";
/// Maximum time for which an ended job stays listed.
const ENDED_JOB_RETENTION: Duration = Duration::from_secs(30);
/// Maximum delay until a submission without an answer becomes a job.
const MAX_SUBMIT_DELAY: Duration = Duration::from_secs(60);

/// The scheduler, as the dispatcher `label` sees it.
#[derive(Debug, Clone)]
pub struct Cluster {
    world: SharedWorld,
    label: usize,
    wake: Arc<Notify>,
    /// Whether the last listing was empty because of a fault.
    listed_nothing: Arc<std::sync::atomic::AtomicBool>,
    host: Arc<Precondition>,
    /// Running jobs that the dispatcher has asked to end since its last start.
    stops_requested: Arc<Mutex<BTreeSet<u64>>>,
}

/// The result of a submission.
enum SubmitFate {
    Taken,
    Refused,
    AcceptedUnclear,
    RejectedUnclear,
    Late(Duration),
}

impl Cluster {
    pub fn new(world: SharedWorld, label: usize, wake: Arc<Notify>) -> Self {
        let of_host = world.clone();
        let host = Precondition::with_trial("a simulated disk".to_owned(), move |_| {
            let is_broken = of_host.get().is_host_broken(label);
            std::future::ready(match is_broken {
                true => Err(HOST_FAULT.to_owned()),
                false => Ok(()),
            })
        });
        Self {
            host: Arc::new(host),
            world,
            label,
            wake,
            listed_nothing: Arc::default(),
            stops_requested: Arc::default(),
        }
    }

    fn no_answer(&self) -> SchedulerError {
        SchedulerError::NoAnswer {
            scheduler: SCHEDULER_NAME,
            detail: "simulated".into(),
        }
    }

    /// Creates the job. With `late`, the submission was already answered as unclear.
    fn accept(&self, order: &SubmitRequest, late: bool) -> u64 {
        let mut world = self.world.get();
        world.made_jobs += 1;
        let id = world.made_jobs;
        let container = order.container.clone();
        world.record_event(|| format!("job {id} of {container} by {}", order.attempt));
        let label = self.label;
        let job = state::Job {
            label,
            container,
            attempt: order.attempt.clone(),
            phase: JobPhase::Pending,
            stopped: false,
            knowable_since: (!late).then(Instant::now),
            late,
            term: Arc::default(),
            executor: None,
        };
        world.jobs.insert(id, job);
        if let Some(token) = world.tokens.get_mut(&order.attempt) {
            token.jobs += 1;
            let jobs = token.jobs;
            if jobs > 1 {
                let attempt = &order.attempt;
                world.violation(format!("attempt {attempt} was submitted {jobs} times"));
            }
        }
        drop(world);
        start_pending_jobs(&self.world, &self.wake);
        id
    }

    async fn submit_once(&self, order: SubmitRequest) -> Result<JobId, SchedulerError> {
        let (manner, time) = {
            let mut world = self.world.get();
            if world.is_host_broken(self.label) {
                return Err(SchedulerError::HostFault {
                    container: order.container,
                    detail: HOST_FAULT.to_owned(),
                });
            }
            let directory = (self.label, order.container.clone());
            world.directories.insert(directory, order.attempt.clone());
            world.tally.commands += 1;
            let faults = world.faults.clone();
            let manner = if world.draw(faults.submit_refused) {
                SubmitFate::Refused
            } else if world.draw(faults.submit_accepted_unclear) {
                SubmitFate::AcceptedUnclear
            } else if world.draw(faults.submit_rejected_unclear) {
                SubmitFate::RejectedUnclear
            } else if world.draw(faults.submit_late) {
                SubmitFate::Late(world.random_duration(MAX_SUBMIT_DELAY))
            } else {
                SubmitFate::Taken
            };
            (manner, world.random_duration(Duration::from_millis(200)))
        };
        let (answer, reply) = oneshot::channel();
        let (this, container) = (self.clone(), order.container.clone());
        // The scheduler finishes the submission even if the dispatcher is killed.
        tokio::spawn(async move {
            sleep(time).await;
            let unclear = || {
                Err(SchedulerError::Ambiguous {
                    scheduler: SCHEDULER_NAME,
                    container: container.clone(),
                    detail: "simulated".into(),
                })
            };
            let _ = match manner {
                SubmitFate::Taken => answer.send(Ok(JobId(this.accept(&order, false).to_string()))),
                SubmitFate::Refused => answer.send(Err(SchedulerError::Refused {
                    scheduler: SCHEDULER_NAME,
                    container: container.clone(),
                    detail: "simulated".into(),
                })),
                SubmitFate::RejectedUnclear => answer.send(unclear()),
                SubmitFate::AcceptedUnclear => {
                    this.accept(&order, false);
                    answer.send(unclear())
                }
                SubmitFate::Late(delay) => {
                    let sent = answer.send(unclear());
                    sleep(delay).await;
                    this.accept(&order, true);
                    sent
                }
            };
        });
        reply.await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    async fn stop_once(&self, job: &JobId, urgency: StopMode) -> Result<(), SchedulerError> {
        let (fails, time) = {
            let mut world = self.world.get();
            world.tally.commands += 1;
            let fails = world.faults.stop_fails;
            (
                world.draw(fails),
                world.random_duration(Duration::from_millis(200)),
            )
        };
        sleep(time).await;
        if fails {
            return Err(self.no_answer());
        }
        let id: u64 = job.0.parse().map_err(|_| self.no_answer())?;
        let over = {
            let mut world = self.world.get();
            world.record_event(|| format!("job {id} is to end: {urgency:?}"));
            world.check_stop(id);
            let Some(job) = world.jobs.get_mut(&id) else {
                return Ok(());
            };
            job.stopped = true;
            job.term.notify_one();
            let foreign = job.label != self.label;
            let forced = urgency == StopMode::Force;
            if let (true, Some(executor)) = (forced, &job.executor) {
                executor.abort();
            }
            let over = forced || job.phase == JobPhase::Pending;
            // crunch-run takes a second request as "end at once".
            let is_request = urgency == StopMode::Graceful && job.phase == JobPhase::Active;
            let mut requested = self
                .stops_requested
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if is_request && !requested.insert(id) {
                world.violation(format!("job {id} was cancelled twice"));
            }
            if foreign {
                world.violation(format!("job {id} of another dispatcher was cancelled"));
            }
            over
        };
        if over {
            end_job(&self.world, id);
            start_pending_jobs(&self.world, &self.wake);
        }
        Ok(())
    }
}

/// Starts pending jobs as far as there are slots.
pub fn start_pending_jobs(shared: &SharedWorld, wake: &Arc<Notify>) {
    let mut world = shared.get();
    while world.active < world.slots {
        let pending = world
            .jobs
            .iter()
            .find(|(_, job)| job.phase == JobPhase::Pending);
        let Some(id) = pending.map(|(id, _)| *id) else {
            return;
        };
        world.active += 1;
        let Some(job) = world.jobs.get_mut(&id) else {
            return;
        };
        job.phase = JobPhase::Active;
        let (container, attempt) = (job.container.clone(), job.attempt.clone());
        let (term, shared, ring) = (job.term.clone(), shared.clone(), wake.clone());
        let task = tokio::spawn(async move {
            let api = SimApi::new(shared.clone(), usize::MAX, Arc::default());
            execute(api, container, attempt, &term).await;
            end_job(&shared, id);
            start_pending_jobs(&shared, &ring);
            ring.notify_one();
        });
        job.executor = Some(task.abort_handle());
    }
}

/// Marks the job as ended.
pub fn end_job(shared: &SharedWorld, id: u64) {
    let mut world = shared.get();
    let shown = world.random_duration(ENDED_JOB_RETENTION);
    let Some(job) = world.jobs.get_mut(&id) else {
        return;
    };
    if !matches!(job.phase, JobPhase::Ended(_)) {
        let active = usize::from(job.phase == JobPhase::Active);
        job.phase = JobPhase::Ended(Instant::now() + shown);
        world.active -= active;
        world.record_event(|| format!("job {id} ended"));
    }
}

fn listing(world: &mut SimWorld, label: usize) -> Vec<Job> {
    let now = Instant::now();
    let gone = |job: &state::Job| matches!(job.phase, JobPhase::Ended(until) if until < now);
    world.jobs.retain(|_, job| !gone(job));
    let ours = world.jobs.iter().filter(|(_, job)| job.label == label);
    let is_confused = world.seeded_bug == Some(SeededBug::Holder);
    let shown = ours.map(|(id, job)| Job {
        id: JobId(id.to_string()),
        container: job.container.clone(),
        attempt: Some(match is_confused {
            true => TokenUuid::generate("sim00"),
            false => job.attempt.clone(),
        }),
        ended: matches!(job.phase, JobPhase::Ended(_)),
        node: None,
    });
    shown.collect()
}

impl Cluster {
    async fn submit_one(&self, request: SubmitRequest) -> Result<JobId, SchedulerError> {
        let answer = self.submit_once(request.clone()).await;
        let seeded_bug = self.world.get().seeded_bug == Some(SeededBug::Resubmit);
        match answer {
            Err(SchedulerError::Ambiguous { .. }) if seeded_bug => self.submit_once(request).await,
            answer => answer,
        }
    }

    async fn cancel_one(&self, job: &JobId, mode: StopMode) -> Result<(), SchedulerError> {
        let answer = self.stop_once(job, mode).await;
        let seeded_bug = self.world.get().seeded_bug == Some(SeededBug::Stop);
        match answer {
            Ok(()) if seeded_bug => self.stop_once(job, mode).await,
            answer => answer,
        }
    }
}

impl Scheduler for Cluster {
    fn name(&self) -> &'static str {
        SCHEDULER_NAME
    }

    fn submit_host(&self) -> Option<&Precondition> {
        Some(&self.host)
    }

    fn admit(&self, candidates: &[Candidate], _: &[Candidate]) -> Vec<Admission> {
        candidates.iter().map(|_| Admission::Now).collect()
    }

    async fn list_jobs(&self) -> Result<Vec<Job>, SchedulerError> {
        use std::sync::atomic::Ordering::Relaxed;
        let (fails, lists_nothing, before, after) = {
            let mut world = self.world.get();
            world.tally.listings += 1;
            let faults = world.faults.clone();
            let fails = world.draw(faults.list_fails);
            let lists_nothing = world.draw(faults.list_empty) && !self.listed_nothing.load(Relaxed);
            let most = Duration::from_secs(2);
            (
                fails,
                lists_nothing,
                world.random_duration(most),
                world.random_duration(most),
            )
        };
        sleep(before).await;
        let jobs = listing(&mut self.world.get(), self.label);
        sleep(after).await;
        let seeded_bug = self.world.get().seeded_bug == Some(SeededBug::Listing);
        match (fails, lists_nothing) {
            (true, _) if seeded_bug => Ok(Vec::new()),
            (true, _) => Err(self.no_answer()),
            (false, true) => {
                self.listed_nothing.store(true, Relaxed);
                Ok(Vec::new())
            }
            (false, false) => {
                self.listed_nothing.store(false, Relaxed);
                let mut world = self.world.get();
                for id in jobs.iter().filter_map(|job| job.id.0.parse().ok()) {
                    if let Some(job) = world.jobs.get_mut(&id) {
                        job.knowable_since.get_or_insert_with(Instant::now);
                    }
                }
                Ok(jobs)
            }
        }
    }

    /// Refuses some batches as such; otherwise submits each request by itself.
    async fn submit(&self, requests: Vec<SubmitRequest>) -> Vec<Result<JobId, SchedulerError>> {
        let is_refused = {
            let mut world = self.world.get();
            let probability = world.faults.batch_refused;
            requests.len() > 1 && world.draw(probability)
        };
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(match is_refused {
                true => Err(SchedulerError::RefusedInBatch {
                    scheduler: SCHEDULER_NAME,
                    container: request.container,
                    detail: "simulated".into(),
                }),
                false => self.submit_one(request).await,
            });
        }
        answers
    }

    async fn cancel(&self, jobs: &[JobId], mode: StopMode) -> Vec<Result<(), SchedulerError>> {
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            answers.push(self.cancel_one(job, mode).await);
        }
        answers
    }

    /// One dispatcher submits and cancels in batches, another one by one.
    fn capabilities(&self) -> Capabilities {
        let max_batch = match self.label % 2 {
            0 => 5,
            _ => 1,
        };
        Capabilities {
            max_submit_batch: max_batch,
            max_cancel_batch: max_batch,
            min_uniform_batch: self.world.get().equal_batches_only.then_some(3),
            ..Capabilities::default()
        }
    }

    async fn job_exit(&self, container: &ContainerUuid, _: &TokenUuid) -> JobExit {
        let mut world = self.world.get();
        world.tally.commands += 1;
        let unknown = world.faults.exit_unknown;
        if world.draw(unknown) {
            let why = "simulated".to_owned();
            return JobExit::uncertain(match world.draw(0.5) {
                true => Uncertainty::MayBeRunning(why),
                false => Uncertainty::ResultsUnknown(why),
            });
        }
        JobExit {
            reason: format!("the job of {container} was lost"),
            ..JobExit::default()
        }
    }

    async fn attempts_with_directory(&self) -> Vec<(ContainerUuid, TokenUuid)> {
        let world = self.world.get();
        let directories = world.directories.iter();
        let ours = directories.filter(|((label, _), _)| *label == self.label);
        ours.map(|((_, container), attempt)| (container.clone(), attempt.clone()))
            .collect()
    }

    async fn cleanup(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        let directory = (self.label, container.clone());
        self.world.get().directories.remove(&directory);
        Ok(())
    }

    async fn job_exited(&self) {
        self.wake.notified().await;
    }
}
