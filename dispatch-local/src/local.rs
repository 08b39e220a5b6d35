//! This machine as a scheduler: one detached crunch-run per container, found again by its directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::home::Home;
use dispatch_core::needs::{Amount, Fit, Room};
use dispatch_core::scheduler::{
    Candidate, Doubt, Ending, Order, Scheduler, SchedulerError, StillInUse, Urgency,
};
use dispatch_core::world::{Job, JobId};
use rustix::process::Signal;
use tokio::sync::Notify;

use crate::admit::{Running, Waiting, admit, latest_end};
use crate::executor::Executor;
use crate::job_dir::{End, JobDir, Notes, Sign};
use crate::load::{Kind, Load};
use crate::machine::{Machine, Offer};
use crate::process::Worker;
use crate::undelivered::{Deliveries, UNDELIVERED};

mod start;

const NAME: &str = "local";
/// An ended job whose final state was recorded is forgotten after this; the dispatcher may still ask how it ended.
const KEEP_ENDED: Duration = Duration::from_secs(60);

/// How long a crunch-run that has nothing more to say may take to tidy up, and how often it is looked whether it has.
const TIDY: Duration = Duration::from_secs(5);
const TIDY_LOOK: Duration = Duration::from_millis(20);

/// The scheduler.
#[derive(Debug)]
pub struct Local {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    run_dir: Home,
    scratch: PathBuf,
    offer: Offer,
    executor: Executor,
    deliveries: Arc<Deliveries>,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    jobs: BTreeMap<ContainerUuid, Known>,
    /// Being started by this process right now.
    starting: BTreeSet<ContainerUuid>,
}

/// A job that takes room.
#[derive(Debug)]
struct Known {
    notes: Option<Notes>,
    worker: Option<Arc<Worker>>,
    /// When this process started it; a look that began before cannot have seen it.
    started: Option<Instant>,
}

impl Local {
    /// This machine, with job directories in `run_dir` and scratch space in `scratch`.
    pub fn new(
        run_dir: Home,
        scratch: PathBuf,
        offer: Offer,
        executor: Executor,
    ) -> io::Result<Self> {
        let machine = Machine::probe(&scratch, &offer)?;
        tracing::info!(
            cpus = machine.cpu_quota,
            ram = %Kind::Ram.figure(machine.ram),
            scratch = %Kind::Scratch.figure(machine.scratch),
            gpus = machine.gpus.len(),
            "this machine offers"
        );
        let state = State {
            machine,
            jobs: BTreeMap::new(),
            starting: BTreeSet::new(),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                run_dir,
                scratch,
                offer,
                executor,
                deliveries: Arc::default(),
                state: Mutex::new(state),
                ended: Notify::new(),
            }),
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dir(&self, container: &ContainerUuid) -> JobDir {
        JobDir::of(self.run_dir.path(), container)
    }

    /// Reads every job directory.
    fn look(self: &Arc<Self>) -> io::Result<Vec<Job>> {
        let began = Instant::now();
        let mut jobs = Vec::new();
        let mut alive = BTreeMap::new();
        for dir in JobDir::all(self.run_dir.path())? {
            let container = dir.container.clone();
            // Its lock is about to be taken by crunch-run: not to be tried by us.
            if self.state().starting.contains(&container) {
                continue;
            }
            let notes = dir.notes();
            let attempt = notes.as_ref().map(|n| n.attempt.clone());
            match dir.sign()? {
                Sign::Alive(worker) => {
                    let id = job_id(&container, worker.as_ref());
                    let known = Known {
                        notes,
                        worker: worker.map(Arc::new),
                        started: None,
                    };
                    alive.insert(container.clone(), known);
                    jobs.push(Job {
                        id,
                        container,
                        attempt,
                        ended: false,
                        node: None,
                    });
                }
                Sign::Ended(End::Code(0)) if dir.age().is_some_and(|age| age > KEEP_ENDED) => {
                    self.clear(&dir)?
                }
                Sign::Ended(end) => {
                    self.deliveries.go_on(&self.executor, &dir, end);
                    jobs.push(Job {
                        id: job_id(&container, None),
                        container,
                        attempt,
                        ended: true,
                        node: None,
                    });
                }
            }
        }
        self.learn(alive, began);
        Ok(jobs)
    }

    /// Takes over what is alive, and follows those that are new.
    fn learn(self: &Arc<Self>, mut alive: BTreeMap<ContainerUuid, Known>, began: Instant) {
        let mut state = self.state();
        for (container, known) in &state.jobs {
            if state.starting.contains(container) || known.started.is_some_and(|at| at >= began) {
                let known = Known {
                    notes: known.notes.clone(),
                    worker: known.worker.clone(),
                    started: known.started,
                };
                alive.entry(container.clone()).or_insert(known);
            }
        }
        for (container, known) in &alive {
            let followed = state.jobs.get(container).and_then(|j| j.worker.as_ref());
            if let Some(worker) = &known.worker
                && followed.is_none_or(|followed| followed.pid() != worker.pid())
            {
                self.follow(worker);
            }
        }
        state.jobs = alive;
        if state.jobs.is_empty() && state.starting.is_empty() {
            // Nothing of ours is on the disk or in the memory: what is free now is what there is.
            match Machine::probe(&self.scratch, &self.offer) {
                Ok(machine) => state.machine = machine,
                Err(error) => tracing::warn!(%error, "could not look at this machine again"),
            }
        }
    }

    /// Wakes the dispatcher when the worker ends.
    fn follow(self: &Arc<Self>, worker: &Worker) {
        match worker.end() {
            Ok(end) => {
                let shared = self.clone();
                tokio::spawn(async move {
                    end.await;
                    shared.ended.notify_one();
                });
            }
            Err(error) => tracing::debug!(%error, "a job's end will be seen by polling only"),
        }
    }
}

fn job_id(container: &ContainerUuid, worker: Option<&Worker>) -> JobId {
    JobId(worker.map_or_else(|| container.to_string(), |w| w.pid().to_string()))
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

impl Scheduler for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn admit(&self, candidates: &[Candidate], started: &[Candidate]) -> Vec<Fit> {
        let state = self.shared.state();
        let now = now();
        let mut running: Vec<Running> = state
            .jobs
            .values()
            .filter_map(|job| job.notes.as_ref())
            .map(|notes| Running {
                load: notes.reservation.load(),
                ends: latest_end(notes.submitted_at, notes.limit),
            })
            .collect();
        // Locked, and not yet a job.
        running.extend(
            started
                .iter()
                .filter(|c| !state.jobs.contains_key(&c.container))
                .filter_map(|c| {
                    Some(Running {
                        load: Load::of(&c.needs).ok()?,
                        ends: latest_end(now, c.needs.max_run_time),
                    })
                }),
        );
        let waiting: Vec<Waiting> = candidates
            .iter()
            .map(|c| Waiting {
                container: c.container.clone(),
                load: Load::of(&c.needs),
                limit: c.needs.max_run_time,
            })
            .collect();
        admit(state.machine.capacity(), &running, &waiting, now)
    }

    fn room(&self) -> Option<Room> {
        let state = self.shared.state();
        let capacity = state.machine.capacity();
        let used = state
            .jobs
            .values()
            .filter_map(|job| job.notes.as_ref())
            .fold(Load::default(), |sum, n| sum.plus(n.reservation.load()));
        Some(Room {
            capacity: amount(capacity),
            free: amount(capacity.minus(used)),
        })
    }

    /// Looking at its own directories costs nobody anything.
    fn listing_gap(&self) -> Duration {
        Duration::ZERO
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
        let shared = self.shared.clone();
        let runtime = tokio::runtime::Handle::current();
        let look = tokio::task::spawn_blocking(move || {
            let _inside = runtime.enter();
            shared.look()
        });
        let no_answer = |detail: String| SchedulerError::NoAnswer {
            scheduler: NAME,
            detail,
        };
        match look.await {
            Ok(Ok(jobs)) => Ok(jobs),
            Ok(Err(error)) => Err(no_answer(format!(
                "cannot read {}: {error}",
                self.shared.run_dir.path().display()
            ))),
            Err(error) => Err(no_answer(error.to_string())),
        }
    }

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        self.shared.start(order).await
    }

    async fn stop(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        let signal = match urgency {
            Urgency::Ask => Signal::TERM,
            // The container cannot outlive its crunch-run: the keeper of its processes ends with it.
            Urgency::Force => Signal::KILL,
        };
        let worker = {
            let state = self.shared.state();
            let of_job = |worker: &&Arc<Worker>| worker.pid().to_string() == job.0;
            let found = state.jobs.values().filter_map(|j| j.worker.as_ref());
            found.into_iter().find(of_job).cloned()
        };
        match worker {
            Some(worker) => worker
                .signal(signal)
                .map_err(|error| SchedulerError::NoAnswer {
                    scheduler: NAME,
                    detail: format!("cannot signal process {}: {error}", job.0),
                }),
            None => Err(SchedulerError::NoAnswer {
                scheduler: NAME,
                detail: format!("it is not known which process runs job {}", job.0),
            }),
        }
    }

    async fn ending(&self, container: &ContainerUuid, _: &TokenUuid) -> Ending {
        let dir = self.shared.dir(container);
        let sign = dir.sign();
        let never_began = matches!(sign, Ok(Sign::Ended(End::NeverStarted)));
        let undelivered = match sign {
            Ok(Sign::Ended(end)) => self.shared.deliveries.may_be_delivered(&dir, end),
            _ => false,
        };
        let reason = match sign {
            Ok(Sign::Ended(end)) => sentence(end, dir.path()),
            Ok(Sign::Alive(_)) => {
                return Ending::doubtful(Doubt::Alive);
            }
            Err(error) => return Ending::doubtful(Doubt::MayBeAlive(error.to_string())),
        };
        Ending {
            reason,
            detail: dir.last_words(),
            never_began,
            undelivered,
            ..Ending::default()
        }
    }

    async fn forget(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        let dir = self.shared.dir(container);
        let until = Instant::now() + TIDY;
        loop {
            if !matches!(dir.sign(), Ok(Sign::Alive(_))) {
                self.shared.deliveries.forget(container);
                match self.shared.clear(&dir) {
                    // Somebody, as `crunch-run resume`, has begun to work there at this moment.
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(error) => {
                        tracing::warn!(%container, %error, "could not remove the job's directory");
                        return Ok(());
                    }
                    Ok(()) => return Ok(()),
                }
            }
            if Instant::now() > until {
                return Err(StillInUse);
            }
            tokio::time::sleep(TIDY_LOOK).await;
        }
    }

    async fn wake(&self) {
        self.shared.ended.notified().await;
    }
}

fn amount(load: Load) -> Amount {
    Amount {
        cpus: load.get(Kind::Cpus) as u32,
        ram: load.get(Kind::Ram),
        scratch: load.get(Kind::Scratch),
        gpus: (load.get(Kind::Cuda) + load.get(Kind::Rocm)) as u32,
    }
}

fn sentence(end: End, dir: &Path) -> String {
    match end {
        End::Code(UNDELIVERED) => format!(
            "the container ran, and its results could not be delivered; its log in {} or in undelivered/ beside it tells where they are",
            dir.display()
        ),
        End::Code(75) => "crunch-run could not start the container here".into(),
        End::Code(76) => {
            "crunch-run found the container's record not to be its own any more".into()
        }
        End::Code(78) => "crunch-run is not set up rightly on this machine".into(),
        End::Code(code) => {
            format!("crunch-run ended with exit code {code} without recording a final state")
        }
        End::Killed => "crunch-run was killed before it could record a final state".into(),
        End::Restarted => "this machine was restarted while the container was running".into(),
        End::NeverStarted => "crunch-run did not start".into(),
    }
}
