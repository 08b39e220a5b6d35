//! HTCondor as a scheduler: condor_submit, condor_q, condor_prio, condor_rm, and condor_status and condor_history where
//! they tell something.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::command::{Command, Failure};
use dispatch_core::exit_status;
use dispatch_core::home::Home;
use dispatch_core::instance_types::fit;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{
    Candidate, Doubt, Ending, Order, Scheduler, SchedulerError, StillInUse, Urgency, Waiting,
    Wanted,
};
use dispatch_core::world::{Job, JobId};

use crate::complaint::brief;
use crate::ending;
use crate::events::EventLog;
use crate::hand_over::Suspects;
use crate::listing::{self, Ad, COLUMNS};
use crate::pool::Pool;
use crate::prio;
use crate::submission::{ATTEMPT, CONTAINER, DISPATCHER, Settings};
use crate::unmatched::{COMMANDS, Unmatched};
use crate::waiting;

pub const NAME: &str = "condor";
/// Jobs of one submission, at most.
pub const BATCH: usize = 500;
/// Jobs that one command removes: what it says of them is heard whole.
const REMOVALS: usize = 40;
/// condor_history is asked so often for an end, and so long lies between.
const HISTORY_TRIES: u32 = 3;
const HISTORY_PAUSE: Duration = Duration::from_secs(2);
/// Changes of order at once, at most: each takes a command. The rest follows with the next listing.
const CHANGES: usize = 40;
/// Between two listings at least, and so many times what the last one took: HTCondor is to have other work.
const GAP: Duration = Duration::from_millis(300);
const GAP_PER_LISTING: u32 = 10;

/// The scheduler.
#[derive(Debug)]
pub struct Condor {
    pub(crate) settings: Settings,
    pub(crate) jobs: Home,
    /// Tells our jobs from those of another dispatcher of the same user.
    pub(crate) label: String,
    /// How long a command may take.
    pub(crate) patience: Duration,
    pub(crate) suspects: Mutex<Suspects>,
    /// Commands that the engine does not know of yet.
    pub(crate) unpaced: AtomicU32,
    pub(crate) events: EventLog,
    pub(crate) pool: Pool,
    /// It is asked again and again, not once for an errand.
    serves: bool,
    unmatched: Unmatched,
    /// Jobs whose machine HTCondor has lost, as far as that was told.
    lost: Mutex<BTreeSet<String>>,
    /// The newest listing, and how long it took.
    queue: Mutex<(Vec<Ad>, Duration)>,
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail: brief(&detail),
    }
}

impl Condor {
    /// HTCondor as the commands in PATH know it; `jobs` holds a directory for each job.
    pub fn new(settings: Settings, jobs: Home, label: String, patience: Duration) -> Self {
        Self {
            patience,
            events: EventLog::in_directory(jobs.path()),
            jobs,
            label,
            suspects: Mutex::default(),
            unpaced: AtomicU32::default(),
            pool: Pool::new(settings.pool_grows),
            settings,
            serves: false,
            unmatched: Unmatched::default(),
            lost: Mutex::default(),
            queue: Mutex::default(),
        }
    }

    /// The same for a dispatcher, who keeps an eye on what waits for long and what is lost.
    pub fn that_serves(self) -> Self {
        Self {
            serves: true,
            ..self
        }
    }

    /// Whether there is an HTCondor to ask; the error is for the admin, at the start. A schedd that is away is waited for.
    pub async fn check(&self) -> Result<(), SchedulerError> {
        if let Err(error) = self.events.open() {
            let log = self.events.path().display();
            tracing::warn!(%log, %error, "HTCondor cannot tell when a job has ended");
        }
        let version = Command::new("condor_q").args(["-version"]);
        let version = version.patience(self.patience).succeed().await;
        if let Err(failure) = version
            && failure.is_not_started()
        {
            return Err(no_answer(failure.to_string()));
        }
        match self.list().await {
            Ok(_) => Ok(()),
            Err(error) if is_without_configuration(&error) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "HTCondor does not answer yet; it is waited for");
                Ok(())
            }
        }
    }

    /// Looks at what the pool offers, for what is decided by it.
    pub async fn look_at_pool(&self) {
        self.pool.look(self.patience).await;
    }

    pub(crate) fn dir(&self, container: &ContainerUuid) -> AttemptDir {
        AttemptDir::of(self.jobs.path(), container)
    }

    /// The ads that `program` knows for `constraint`.
    async fn ads(
        &self,
        program: &str,
        constraint: &str,
        more: &[&str],
    ) -> Result<Vec<Ad>, SchedulerError> {
        let command = Command::new(program)
            .patience(self.patience)
            .args(["-json", "-attributes", COLUMNS, "-constraint", constraint])
            .args(more);
        let answer = command
            .succeed()
            .await
            .map_err(|e| no_answer(e.to_string()))?;
        // Without a job it writes nothing at all: then only what it complains of tells that from a failure.
        let failed = ["Failed", "Error", "ERROR"]
            .iter()
            .any(|word| answer.complaint.contains(word));
        if answer.output.trim().is_empty() && failed {
            return Err(no_answer(answer.complaint));
        }
        listing::parse(&answer.output).map_err(|error| {
            no_answer(format!(
                "{program} wrote something that cannot be read: {error}"
            ))
        })
    }

    /// Says once of each running job that its machine is lost, and once that it is there again, as soon as the schedd
    /// knows: a shadow tells it at its next update (SHADOW_QUEUE_UPDATE_INTERVAL). HTCondor waits for it, and
    /// so do we.
    fn tell_of_lost(&self, ads: &[Ad]) {
        let mut told = locked(&self.lost);
        let lost = waiting::lost(ads);
        for (job, (container, words)) in &lost {
            if !told.contains(job) {
                tracing::warn!(container, job, "its running job waits {words}");
            }
        }
        let runs = |job: &String| {
            let mut ads = ads
                .iter()
                .filter(|ad| ad.state() == listing::State::Running);
            ads.any(|ad| ad.id() == *job)
        };
        let back = told
            .iter()
            .filter(|job| !lost.contains_key(*job) && runs(job));
        for job in back {
            tracing::info!(job, "HTCondor does not miss its machine any more");
        }
        *told = lost.into_keys().collect();
    }

    async fn remove(&self, how: &[&str], jobs: &[JobId]) -> Result<(), SchedulerError> {
        let numbers = jobs.iter().map(|job| job.0.as_str());
        let command = Command::new("condor_rm").patience(self.patience);
        let command = command.args(how.iter().copied()).args(numbers);
        match command.succeed().await {
            // Where it removed some, it tells of the others and does not fail.
            Ok(answer) => match refused(&answer.complaint, jobs) {
                None => Ok(()),
                Some(line) => Err(no_answer(line.to_owned())),
            },
            Err(Failure::Said(said)) if jobs.len() == 1 && is_removed(&said) => Ok(()),
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }

    async fn history(&self, constraint: &str) -> Result<Vec<Ad>, SchedulerError> {
        self.ads("condor_history", constraint, &["-limit", "1"])
            .await
    }

    /// Gives these jobs another JobPrio. What is gone is told of, and no failure.
    async fn set_prio(&self, prio: i64, jobs: &[String]) -> Result<(), SchedulerError> {
        let command = Command::new("condor_prio").patience(self.patience);
        let value = prio.to_string();
        let arguments = ["-p", &value]
            .into_iter()
            .chain(jobs.iter().map(String::as_str));
        self.unpaced.fetch_add(1, Ordering::Relaxed);
        let answer = command.args(arguments).succeed().await;
        // Whatever it did, the next listing shows it.
        for ad in &mut locked(&self.queue).0 {
            if jobs.contains(&ad.id()) {
                ad.job_prio = prio;
            }
        }
        answer
            .map(drop)
            .map_err(|failure| no_answer(format!("its jobs could not be put in order: {failure}")))
    }
}

impl Scheduler for Condor {
    fn name(&self) -> &'static str {
        NAME
    }

    /// HTCondor queues what does not fit now; how much it is given at once is `max_pending`'s matter. What no slot could
    /// ever run is not given to it.
    fn admit(&self, candidates: &[Candidate], _started: &[Candidate]) -> Vec<Fit> {
        let fit = |candidate: &Candidate| match fit(&self.settings.types, &candidate.needs) {
            Fit::Now => {
                let Candidate { container, needs } = candidate;
                let asked = self.settings.asked(container, needs);
                match asked {
                    Ok(_) => self.pool.fit(needs),
                    Err(error) => Fit::Never(error.to_string()),
                }
            }
            never => never,
        };
        candidates.iter().map(fit).collect()
    }

    fn listing_gap(&self) -> Duration {
        let (_, took) = *locked(&self.queue);
        GAP.max(took * GAP_PER_LISTING)
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
        let began = Instant::now();
        let constraint = format!("{DISPATCHER} == \"{}\"", self.label);
        let ads = self.ads("condor_q", &constraint, &[]).await?;
        let jobs = ads.iter().filter_map(Ad::job).collect();
        let took = began.elapsed();
        if self.serves {
            self.tell_of_lost(&ads);
            // Where machines come when they are needed, what no slot meets today says nothing.
            if !self.settings.pool_grows && self.unmatched.ask(&ads, self.patience) {
                self.unpaced.fetch_add(COMMANDS, Ordering::Relaxed);
            }
        }
        *locked(&self.queue) = (ads, took);
        self.pool.look(self.patience).await;
        Ok(jobs)
    }

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        self.hand_over_one(order).await
    }

    /// One command takes a thousand jobs in the time of two.
    fn batch(&self) -> usize {
        BATCH
    }

    async fn submit_all(&self, orders: Vec<Order>) -> Vec<Result<JobId, SchedulerError>> {
        self.hand_over(&orders).await
    }

    fn unpaced(&self) -> u32 {
        self.unpaced.swap(0, Ordering::Relaxed)
    }

    fn waiting(&self) -> BTreeMap<ContainerUuid, Waiting> {
        let fit = |ad: &Ad| self.pool.fit(&ad.needs());
        let ads = &locked(&self.queue).0;
        waiting::all(ads, fit, &self.unmatched.all(ads))
    }

    /// One command for each value, the highest first: what is to start next is in order first.
    async fn arrange(&self, wanted: Vec<Wanted>) -> Result<(), SchedulerError> {
        let changes = prio::changes(&locked(&self.queue).0, &wanted);
        for (Reverse(value), jobs) in changes.into_iter().take(CHANGES) {
            for some in jobs.chunks(BATCH) {
                self.set_prio(value, some).await?;
            }
        }
        Ok(())
    }

    /// HTCondor itself asks first (TERM) and kills after the vacate time of the submit description. By force a job
    /// leaves the queue also where its node does not answer; but only one that was removed before.
    async fn stop(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        let job = std::slice::from_ref(job);
        self.remove(&[], job).await?;
        match urgency {
            Urgency::Ask => Ok(()),
            Urgency::Force => self.remove(&["-forcex"], job).await,
        }
    }

    fn stops(&self) -> usize {
        REMOVALS
    }

    /// To remove what is being removed already changes nothing: where one was not removed, all are asked for again.
    async fn stop_all(&self, jobs: &[JobId], urgency: Urgency) -> Vec<Result<(), SchedulerError>> {
        let mut removed = self.remove(&[], jobs).await;
        if removed.is_ok() && urgency == Urgency::Force {
            removed = self.remove(&["-forcex"], jobs).await;
        }
        vec![removed; jobs.len()]
    }

    async fn ending(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Ending {
        let constraint = format!("{CONTAINER} == \"{container}\" && {ATTEMPT} == \"{attempt}\"");
        let queued = self.ads("condor_q", &constraint, &[]).await;
        let is_there = |ads: Vec<Ad>| ads.iter().filter_map(Ad::job).any(|job| !job.ended);
        match queued.map(is_there) {
            Ok(true) => return Ending::doubtful(Doubt::Alive),
            Err(error) => return Ending::doubtful(Doubt::MayBeAlive(error.to_string())),
            Ok(false) => {}
        }
        let mut history = self.history(&constraint).await;
        for _ in 1..HISTORY_TRIES {
            if history.is_ok() {
                break;
            }
            // The schedd may just be starting; and results that are left on a node would be given up.
            tokio::time::sleep(HISTORY_PAUSE).await;
            history = self.history(&constraint).await;
        }
        let words = self.dir(container).last_words_in_time().await;
        let unread = words.as_ref().err().map(ToString::to_string);
        let detail = words.unwrap_or_default();
        let said = exit_status::says_undelivered(&detail);
        let mut doubt = None;
        let (reason, ad) = match history.map(|ads| ads.into_iter().next()) {
            Ok(Some(ad)) => (ending::verdict(&ad), Some(ad)),
            Ok(None) => {
                doubt = unread.map(Doubt::MayHaveResults);
                ("HTCondor does not know its job".to_owned(), None)
            }
            Err(error) => {
                let why = error.to_string();
                let reason = format!("it cannot be told how its job ended: {why}");
                doubt = Some(Doubt::MayHaveResults(why)).filter(|_| !said);
                (reason, None)
            }
        };
        Ending {
            reason,
            detail,
            node: ad.as_ref().and_then(Ad::node),
            doubt,
            never_began: ad.as_ref().is_some_and(ending::never_began),
            undelivered: ad.as_ref().map_or(said, ending::is_undelivered),
        }
    }

    async fn forget(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        self.dir(container).forget().await;
        Ok(())
    }

    /// Only condor_q tells; the event log says when to ask.
    async fn wake(&self) {
        self.events.rung().await
    }
}

/// What is said of one of these jobs that is still there.
fn refused<'a>(said: &'a str, jobs: &[JobId]) -> Option<&'a str> {
    let of_ours = |line: &&str| jobs.iter().any(|job| line.contains(&job.0));
    said.lines().filter(of_ours).find(|line| !is_removed(line))
}

/// There is no such job any more, or it is being removed already.
fn is_removed(said: &str) -> bool {
    let over = ["not found", "Couldn't find", "already marked for removal"];
    over.iter().any(|words| said.contains(words))
}

/// HTCondor's own configuration is not found. That of a schedd which is away it mentions too, as advice.
fn is_without_configuration(error: &SchedulerError) -> bool {
    matches!(error, SchedulerError::NoAnswer { detail, .. } if detail.contains("contain a condor_config source"))
}
