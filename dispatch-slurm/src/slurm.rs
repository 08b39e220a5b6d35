//! Slurm as a scheduler: sbatch, squeue, scontrol, scancel, and sinfo and sacct where they tell something.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::{AttemptDir, token_name};
use dispatch_core::command::Command;
use dispatch_core::handover::hand_over;
use dispatch_core::home::Home;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{
    Candidate, Ending, Order, Scheduler, SchedulerError, StillInUse, Urgency, Waiting, Wanted,
};
use dispatch_core::world::{Job, JobId};
use jiff::Timestamp;

use crate::accounting::Accounting;
use crate::arrays::{Arrays, LEAST};
use crate::capacity::Asked;
use crate::gathering::Gathering;
use crate::haste::Haste;
use crate::nodes::Nodes;
use crate::refusals::Refusals;
use crate::settings::Settings;
use crate::squeue::{self, LISTING, Memory, Row, TIME_FORMAT};
use crate::start::{self, Unusable};
use crate::submission;
use crate::waiting::waiting;
use crate::wake::Bell;

mod cancel;
mod end;
mod order;
mod together;

use self::cancel::STOPS;
use self::order::Arranged;
use self::together::Elements;

const NAME: &str = "slurm";
/// Between two looks whether a job that is being put away is to be asked for again.
const LOOK: Duration = Duration::from_millis(100);
/// How far apart waiting jobs are put in Slurm's priority, where the admin does not say.
const SPREAD: i64 = 10;

/// The scheduler.
#[derive(Debug)]
pub struct Slurm {
    settings: Settings,
    /// On a file system that every node sees.
    shared: Home,
    /// Tells our jobs from those of another dispatcher of the same user.
    label: String,
    /// How long a command may take.
    patience: Duration,
    /// See [`Slurm::spread`].
    spread: i64,
    accounting: Accounting,
    nodes: Nodes,
    refusals: Refusals,
    /// The newest listing.
    queue: Mutex<Vec<Row>>,
    arranged: Mutex<Arranged>,
    /// Which attempt of a container had which job: accounting need not know attempts.
    jobs: Mutex<BTreeMap<ContainerUuid, (TokenUuid, String)>>,
    /// Rung by epilogs.
    bell: Bell,
    arrays: Arrays,
    elements: Mutex<Elements>,
    /// Arrays in a row whose elements got no names.
    unnamed: AtomicU32,
    haste: Mutex<Haste>,
    /// Commands beside those that the engine counts.
    unpaced: AtomicU32,
    /// Jobs that are asked for by their number, and by their name, because they seem to be gone.
    numbers: Gathering,
    names: Gathering,
    /// Waiting jobs that we cancelled: nobody else did.
    cancelled: Mutex<BTreeMap<String, Instant>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}

impl Slurm {
    /// Slurm as the commands in PATH know it.
    pub fn new(settings: Settings, shared: Home, label: String, patience: Duration) -> Self {
        Self {
            nodes: Nodes::new(Asked::by(&settings)),
            patience,
            settings,
            bell: Bell::in_directory(shared.path()),
            shared,
            label,
            spread: SPREAD,
            accounting: Accounting::default(),
            refusals: Refusals::default(),
            queue: Mutex::default(),
            arranged: Mutex::default(),
            jobs: Mutex::default(),
            arrays: Arrays::default(),
            elements: Mutex::new(Elements::NotOurs),
            unnamed: AtomicU32::new(0),
            haste: Mutex::default(),
            unpaced: AtomicU32::new(0),
            numbers: Gathering::default(),
            names: Gathering::default(),
            cancelled: Mutex::default(),
        }
    }

    /// With waiting jobs so far apart in Slurm's priority; below 1 means the usual.
    pub fn spread(mut self, spread: i64) -> Self {
        self.spread = if spread < 1 { SPREAD } else { spread };
        self
    }

    /// Whether Slurm can be used at all, at the start. Whether it answers, the first listing tells.
    pub async fn check(&self) -> Result<(), Unusable> {
        self.bell.hang();
        *locked(&self.elements) = Elements::Unasked;
        start::check().await
    }

    fn dir(&self, container: &ContainerUuid) -> AttemptDir {
        AttemptDir::of(self.shared.path(), container)
    }

    fn client(&self, program: &str) -> Command {
        self.settings.client(program).patience(self.patience)
    }

    async fn squeue(&self, more: &[&str]) -> Result<String, SchedulerError> {
        let user = rustix::process::getuid().as_raw().to_string();
        let arguments = ["--noheader", "--all", "--user", &user];
        let (variable, format) = TIME_FORMAT;
        let command = self
            .client("squeue")
            .envs([(variable.into(), format.into())])
            .args(arguments)
            .args(more);
        let answer = command
            .succeed()
            .await
            .map_err(|e| no_answer(e.to_string()))?;
        // It says some errors with exit status 0.
        match answer.complaint.contains("error") {
            true => Err(no_answer(answer.complaint)),
            false => Ok(answer.output),
        }
    }

    async fn sbatch(&self, order: &Order) -> Result<JobId, SchedulerError> {
        let container = order.container.clone();
        let refused = |detail: String| SchedulerError::Refused {
            scheduler: NAME,
            container: container.clone(),
            detail,
        };
        let dir = self.dir(&container);
        let comment = squeue::comment(&order.attempt, &self.label);
        let arguments = self
            .settings
            .sbatch(submission::Job {
                container: &container,
                needs: &order.needs,
                comment: &comment,
                output: &dir.output_file(),
                avoid: &order.avoid,
            })
            .map_err(|error| refused(error.to_string()))?;
        let script = self
            .settings
            .script(&container, &dir.token_file_of(&order.attempt))
            .map_err(|error| refused(error.to_string()))?;
        let command = self.settings.command(arguments, script);
        let command = command.patience(self.patience);
        hand_over(NAME, order, &dir, command, ";").await
    }

    /// Which jobs these attempts have.
    fn remember(&self, rows: &[Row]) {
        let mut jobs = locked(&self.jobs);
        for row in rows {
            if let Some(attempt) = &row.attempt {
                let job = (attempt.clone(), row.id.clone());
                jobs.insert(row.container.clone(), job);
            }
        }
    }

    fn is_suspended(&self, job: &JobId) -> bool {
        let queue = locked(&self.queue);
        let row = queue.iter().find(|row| row.id == job.0);
        row.is_some_and(|row| matches!(row.state.as_str(), "SUSPENDED" | "STOPPED"))
    }

    /// Resolves when a job that rang, and was still there, may be gone by now.
    async fn departure(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let leaves = |row: &Row| row.state == "COMPLETING";
            if locked(&self.haste).is_due(Instant::now()) && locked(&self.queue).iter().any(leaves)
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

    /// Slurm queues what does not fit now, and says why; how much it is given at once is `max_pending`'s matter. What no
    /// node could ever run is not given to it.
    fn admit(&self, candidates: &[Candidate], _started: &[Candidate]) -> Vec<Fit> {
        let fit = |candidate: &Candidate| match self.settings.fit(&candidate.needs) {
            Fit::Now => self.nodes.fit(&candidate.needs),
            other => other,
        };
        let fit = |candidate: &Candidate| match fit(candidate) {
            Fit::Now => {
                let hold = self.refusals.hold(&candidate.container, &candidate.needs);
                hold.map_or(Fit::Now, Fit::Later)
            }
            other => other,
        };
        candidates.iter().map(fit).collect()
    }

    fn listing_gap(&self) -> Duration {
        locked(&self.haste).gap(Instant::now())
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
        let asked = self.arrays.now();
        locked(&self.haste).lists(Instant::now());
        let listing = self.squeue(&["--array", "--format", LISTING]).await?;
        let rows = squeue::parse(&listing, &self.label, self)
            .map_err(|error| no_answer(error.to_string()))?;
        self.remember(&rows);
        let jobs = rows.iter().map(Row::job).collect();
        locked(&self.arranged).compare(&rows);
        *locked(&self.queue) = rows;
        let elements = *locked(&self.elements);
        if elements != Elements::NotOurs {
            let nameless = self.arrays.abandoned(&listing, &self.label, &asked);
            if !nameless.is_empty() {
                self.cancel_nameless(&nameless).await;
            }
        }
        if elements == Elements::Unasked {
            let asked = self.array_limit().await;
            *locked(&self.elements) = asked;
        }
        let [sinfo, scontrol] = ["sinfo", "scontrol"].map(|program| self.settings.client(program));
        self.nodes.look(sinfo, scontrol, self.patience).await;
        self.refusals.ask_again(&self.settings).await;
        Ok(jobs)
    }

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        let submitted = self.sbatch(&order).await;
        match &submitted {
            Ok(job) => {
                self.refusals.taken(&order.container, &order.needs);
                let job = (order.attempt, job.0.clone());
                locked(&self.jobs).insert(order.container, job);
            }
            Err(error) => {
                self.nodes.doubt();
                self.refusals.failed(&self.settings, &order, error).await;
            }
        }
        submitted
    }

    fn batch(&self) -> usize {
        match *locked(&self.elements) {
            Elements::AtMost(most) if most >= LEAST => most,
            Elements::AtMost(_) | Elements::NotOurs | Elements::Unasked => 1,
        }
    }

    fn alike(&self) -> Option<usize> {
        (self.batch() > 1).then_some(LEAST)
    }

    async fn submit_all(&self, orders: Vec<Order>) -> Vec<Result<JobId, SchedulerError>> {
        match <[Order; 1]>::try_from(orders) {
            Ok([order]) => vec![self.submit(order).await],
            Err(orders) => self.submit_together(orders).await,
        }
    }

    fn waiting(&self) -> BTreeMap<ContainerUuid, Waiting> {
        let (queue, now) = (locked(&self.queue), Timestamp::now());
        let waits = queue
            .iter()
            .filter_map(|row| Some((row.container.clone(), waiting(row, now)?)));
        waits.collect()
    }

    async fn arrange(&self, wanted: Vec<Wanted>) -> Result<(), SchedulerError> {
        self.put_in_order(&wanted).await
    }

    fn unpaced(&self) -> u32 {
        self.unpaced.swap(0, Ordering::Relaxed)
    }

    async fn stop(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        self.end(job, urgency).await
    }

    fn stops(&self) -> usize {
        STOPS
    }

    async fn stop_all(&self, jobs: &[JobId], urgency: Urgency) -> Vec<Result<(), SchedulerError>> {
        self.end_all(jobs, urgency).await
    }

    fn counts_endings(&self) -> bool {
        true
    }

    async fn ending(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Ending {
        self.how_it_ended(container, attempt).await
    }

    async fn forget(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        let job = locked(&self.jobs).remove(container);
        if let Some((_, job)) = job {
            locked(&self.cancelled).remove(&job);
        }
        self.refusals.forget(container);
        self.dir(container).forget().await;
        Ok(())
    }

    /// Only squeue tells; an epilog says when to ask.
    async fn wake(&self) {
        tokio::select! {
            () = self.bell.rung() => locked(&self.haste).rang(Instant::now()),
            () = self.departure() => {}
        }
    }
}

impl Memory for Slurm {
    /// As far as its job was seen, or its token's file is there.
    fn container(&self, attempt: &TokenUuid) -> Option<ContainerUuid> {
        let jobs = locked(&self.jobs);
        if let Some((container, _)) = jobs.iter().find(|(_, (of, _))| of == attempt) {
            return Some(container.clone());
        }
        let dirs = std::fs::read_dir(self.shared.path()).ok()?.flatten();
        let mut its = dirs.filter(|dir| dir.path().join(token_name(attempt)).exists());
        ContainerUuid::parse(its.next()?.file_name().to_str()?).ok()
    }

    fn attempt(&self, container: &ContainerUuid, id: &str) -> Option<TokenUuid> {
        let jobs = locked(&self.jobs);
        let (attempt, job) = jobs.get(container)?;
        (job == id).then(|| attempt.clone())
    }
}
