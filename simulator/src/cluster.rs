//! The simulated cluster: jobs, slots, and a scheduler that mumbles.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::Scheduler;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{
    Candidate, Doubt, Ending, Order, SchedulerError, StillInUse, Urgency,
};
use dispatch_core::world::{Job, JobId};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::api::SimApi;
use crate::executor::execute;
use crate::faults::Broken;
use crate::world::{self, JobPhase, Shared, World};

const NAME: &str = "simulated";
/// An ended job is shown for up to so long.
const SHOWN: Duration = Duration::from_secs(30);
/// A submission that was not answered becomes a job at the latest then.
const LATE: Duration = Duration::from_secs(60);

/// The scheduler, as the dispatcher `label` sees it.
#[derive(Debug, Clone)]
pub struct Cluster {
    world: Shared,
    label: usize,
    wake: Arc<Notify>,
    /// The last listing was empty though it should not have been.
    lied: Arc<std::sync::atomic::AtomicBool>,
    /// Running jobs that this life of the dispatcher asked to end.
    asked: Arc<Mutex<BTreeSet<u64>>>,
}

/// What a submission comes to.
enum Manner {
    Taken,
    Refused,
    Swallowed,
    Lost,
    Late(Duration),
}

impl Cluster {
    pub fn new(world: Shared, label: usize, wake: Arc<Notify>) -> Self {
        Self {
            world,
            label,
            wake,
            lied: Arc::default(),
            asked: Arc::default(),
        }
    }

    fn no_answer(&self) -> SchedulerError {
        SchedulerError::NoAnswer {
            scheduler: NAME,
            detail: "simulated".into(),
        }
    }

    /// `late`: nobody could know of it any more.
    fn accept(&self, order: &Order, late: bool) -> u64 {
        let mut world = self.world.get();
        world.made_jobs += 1;
        let id = world.made_jobs;
        let container = order.container.clone();
        world.note(|| format!("job {id} of {container} by {}", order.attempt));
        let label = self.label;
        let job = world::Job {
            label,
            container,
            attempt: order.attempt.clone(),
            phase: JobPhase::Pending,
            stopped: false,
            known: (!late).then(Instant::now),
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
        fill(&self.world, &self.wake);
        id
    }

    async fn submit_once(&self, order: Order) -> Result<JobId, SchedulerError> {
        let (manner, time) = {
            let mut world = self.world.get();
            world.tally.commands += 1;
            let faults = world.faults.clone();
            let manner = if world.happens(faults.submit_refused) {
                Manner::Refused
            } else if world.happens(faults.submit_swallowed) {
                Manner::Swallowed
            } else if world.happens(faults.submit_lost) {
                Manner::Lost
            } else if world.happens(faults.submit_late) {
                Manner::Late(world.upto(LATE))
            } else {
                Manner::Taken
            };
            (manner, world.upto(Duration::from_millis(200)))
        };
        let (answer, reply) = oneshot::channel();
        let (this, container) = (self.clone(), order.container.clone());
        // The scheduler goes on with it when the dispatcher is killed.
        tokio::spawn(async move {
            sleep(time).await;
            let unclear = || {
                Err(SchedulerError::Ambiguous {
                    scheduler: NAME,
                    container: container.clone(),
                    detail: "simulated".into(),
                })
            };
            let _ = match manner {
                Manner::Taken => answer.send(Ok(JobId(this.accept(&order, false).to_string()))),
                Manner::Refused => answer.send(Err(SchedulerError::Refused {
                    scheduler: NAME,
                    container: container.clone(),
                    detail: "simulated".into(),
                })),
                Manner::Lost => answer.send(unclear()),
                Manner::Swallowed => {
                    this.accept(&order, false);
                    answer.send(unclear())
                }
                Manner::Late(delay) => {
                    let told = answer.send(unclear());
                    sleep(delay).await;
                    this.accept(&order, true);
                    told
                }
            };
        });
        reply.await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    async fn stop_once(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        let (fails, time) = {
            let mut world = self.world.get();
            world.tally.commands += 1;
            let fails = world.faults.stop_fails;
            (world.happens(fails), world.upto(Duration::from_millis(200)))
        };
        sleep(time).await;
        if fails {
            return Err(self.no_answer());
        }
        let id: u64 = job.0.parse().map_err(|_| self.no_answer())?;
        let over = {
            let mut world = self.world.get();
            world.note(|| format!("job {id} is to end: {urgency:?}"));
            let Some(job) = world.jobs.get_mut(&id) else {
                return Ok(());
            };
            job.stopped = true;
            job.term.notify_one();
            let foreign = job.label != self.label;
            let forced = urgency == Urgency::Force;
            if let (true, Some(executor)) = (forced, &job.executor) {
                executor.abort();
            }
            let over = forced || job.phase == JobPhase::Pending;
            // A second request means "at once" to crunch-run.
            let asks = urgency == Urgency::Ask && job.phase == JobPhase::Active;
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asks && !asked.insert(id) {
                world.violation(format!("job {id} was asked to end twice"));
            }
            if foreign {
                world.violation(format!("job {id} of another dispatcher was stopped"));
            }
            over
        };
        if over {
            end(&self.world, id);
            fill(&self.world, &self.wake);
        }
        Ok(())
    }
}

/// Starts pending jobs as far as there are slots.
pub fn fill(shared: &Shared, wake: &Arc<Notify>) {
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
            end(&shared, id);
            fill(&shared, &ring);
            ring.notify_one();
        });
        job.executor = Some(task.abort_handle());
    }
}

/// The job is over for the scheduler.
pub fn end(shared: &Shared, id: u64) {
    let mut world = shared.get();
    let shown = world.upto(SHOWN);
    let Some(job) = world.jobs.get_mut(&id) else {
        return;
    };
    if !matches!(job.phase, JobPhase::Ended(_)) {
        let active = usize::from(job.phase == JobPhase::Active);
        job.phase = JobPhase::Ended(Instant::now() + shown);
        world.active -= active;
        world.note(|| format!("job {id} ended"));
    }
}

fn listing(world: &mut World, label: usize) -> Vec<Job> {
    let now = Instant::now();
    let gone = |job: &world::Job| matches!(job.phase, JobPhase::Ended(until) if until < now);
    world.jobs.retain(|_, job| !gone(job));
    let ours = world.jobs.iter().filter(|(_, job)| job.label == label);
    let shown = ours.map(|(id, job)| Job {
        id: JobId(id.to_string()),
        container: job.container.clone(),
        attempt: Some(job.attempt.clone()),
        ended: matches!(job.phase, JobPhase::Ended(_)),
        node: None,
    });
    shown.collect()
}

impl Scheduler for Cluster {
    fn name(&self) -> &'static str {
        NAME
    }

    fn admit(&self, candidates: &[Candidate], _: &[Candidate]) -> Vec<Fit> {
        candidates.iter().map(|_| Fit::Now).collect()
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
        use std::sync::atomic::Ordering::Relaxed;
        let (fails, lies, before, after) = {
            let mut world = self.world.get();
            world.tally.listings += 1;
            let faults = world.faults.clone();
            let fails = world.happens(faults.list_fails);
            let lies = world.happens(faults.list_empty) && !self.lied.load(Relaxed);
            let most = Duration::from_secs(2);
            (fails, lies, world.upto(most), world.upto(most))
        };
        sleep(before).await;
        let jobs = listing(&mut self.world.get(), self.label);
        sleep(after).await;
        let broken = self.world.get().broken == Some(Broken::Listing);
        match (fails, lies) {
            (true, _) if broken => Ok(Vec::new()),
            (true, _) => Err(self.no_answer()),
            (false, true) => {
                self.lied.store(true, Relaxed);
                Ok(Vec::new())
            }
            (false, false) => {
                self.lied.store(false, Relaxed);
                let mut world = self.world.get();
                for id in jobs.iter().filter_map(|job| job.id.0.parse().ok()) {
                    if let Some(job) = world.jobs.get_mut(&id) {
                        job.known.get_or_insert_with(Instant::now);
                    }
                }
                Ok(jobs)
            }
        }
    }

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        let answer = self.submit_once(order.clone()).await;
        let broken = self.world.get().broken == Some(Broken::Resubmit);
        match answer {
            Err(SchedulerError::Ambiguous { .. }) if broken => self.submit_once(order).await,
            answer => answer,
        }
    }

    /// Some batches are not taken as such; else each is handed over by itself.
    async fn submit_all(&self, orders: Vec<Order>) -> Vec<Result<JobId, SchedulerError>> {
        let apart = {
            let mut world = self.world.get();
            let most = world.faults.not_together;
            orders.len() > 1 && world.happens(most)
        };
        let mut answers = Vec::with_capacity(orders.len());
        for order in orders {
            answers.push(match apart {
                true => Err(SchedulerError::NotTogether {
                    scheduler: NAME,
                    container: order.container,
                    detail: "simulated".into(),
                }),
                false => self.submit(order).await,
            });
        }
        answers
    }

    async fn stop(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        let answer = self.stop_once(job, urgency).await;
        let broken = self.world.get().broken == Some(Broken::Stop);
        match answer {
            Ok(()) if broken => self.stop_once(job, urgency).await,
            answer => answer,
        }
    }

    fn stops(&self) -> usize {
        self.batch()
    }

    /// One dispatcher hands over and ends in batches, another one by one.
    fn batch(&self) -> usize {
        match self.label % 2 {
            0 => 5,
            _ => 1,
        }
    }

    fn alike(&self) -> Option<usize> {
        self.world.get().alike.then_some(3)
    }

    async fn ending(&self, container: &ContainerUuid, _: &TokenUuid) -> Ending {
        let mut world = self.world.get();
        world.tally.commands += 1;
        let unknown = world.faults.end_unknown;
        if world.happens(unknown) {
            let why = "simulated".to_owned();
            return Ending::doubtful(match world.happens(0.5) {
                true => Doubt::MayBeAlive(why),
                false => Doubt::MayHaveResults(why),
            });
        }
        Ending {
            reason: format!("the job of {container} was lost"),
            ..Ending::default()
        }
    }

    async fn forget(&self, _: &ContainerUuid) -> Result<(), StillInUse> {
        Ok(())
    }

    async fn wake(&self) {
        self.wake.notified().await;
    }
}
