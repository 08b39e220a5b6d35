//! The loop: observe, plan, act. Level-triggered: events, ended jobs and finished actions only make the next look
//! come sooner. A look runs aside, so that a slow server or scheduler holds up no action under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error};
use futures_util::{StreamExt, stream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::act::{Hands, Outcome, Report};
use crate::api::Api;
use crate::attempts::Attempts;
use crate::audit::Audit;
use crate::events::Event;
use crate::health::Health;
use crate::mind::Mind;
use crate::news::News;
use crate::observe::Look;
use crate::records::{Records, records};
use crate::scheduler::{Scheduler, SchedulerError};
use crate::settings::Settings;
use crate::tempo::Tempo;
use crate::world::Moment;

mod looking;

use looking::{Listed, Sight};

/// How long giving back what was not submitted may take at the end.
const FAREWELL: Duration = Duration::from_secs(10);
/// Of them, at once.
const ABREAST: usize = 8;
/// Between two rounds of putting waiting jobs in order, at least: priorities seldom change one at a time.
const ORDER: Duration = Duration::from_secs(2);

/// The dispatch token cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the dispatch token cannot be used: the API server says that its user is no administrator, who could neither see nor \
     lock the containers of others; give the token of an administrator or of the system user (--token-file, \
     SystemRootToken or ARVADOS_API_TOKEN)"
)]
pub struct NotAdmin;

/// What came of a task, for each of its containers.
type Reports = Vec<(ContainerUuid, Report)>;

/// A dispatcher.
pub struct Engine<A, S> {
    hands: Hands<A, S>,
    mind: Mind,
    tempo: Tempo,
    health: Arc<Health>,
    audit: Option<Audit>,
    started: Instant,
    /// When the server was last asked for all our tokens.
    swept: Option<Instant>,
    /// A job may have ended since.
    rung: Arc<AtomicBool>,
    /// When the last look began.
    began: Instant,
    /// A listing of the scheduler whose answer takes long.
    late: Option<JoinHandle<Listed>>,
    /// Nothing new is begun.
    drains: bool,
    /// Since when the server refuses the dispatch token.
    refused: RefusalTimer,
    refusal_window: Duration,
    /// The server said that the dispatch token's user is no admin.
    no_admin: bool,
    /// Locks since the last look that others had first.
    lost_locks: usize,
}

impl<A: Api, S: Scheduler> Engine<A, S> {
    /// A dispatcher that has not looked yet.
    pub fn new(
        api: A,
        scheduler: S,
        mut settings: Settings,
        health: Arc<Health>,
        audit: Option<Audit>,
    ) -> Self {
        // A scheduler that is one machine has no commands to spare, and knows how many workflow runners are too many.
        if let Some(room) = scheduler.room() {
            let half = (room.capacity.cpus as usize / 2).max(1);
            settings.max_supervisors = settings.max_supervisors.min(half);
            settings.commands_per_second = 0.0;
        }
        let batching = scheduler.batching();
        let attempts = Attempts::new(
            api.clone(),
            format!("{}-{}", scheduler.name(), settings.label),
            settings.token_margin,
            settings.token_mode.clone(),
        );
        Self {
            refused: RefusalTimer::new(settings.refusal_window),
            refusal_window: settings.refusal_window,
            no_admin: false,
            lost_locks: 0,
            tempo: Tempo::new(settings.poll_interval, settings.shortest_interval),
            hands: Hands {
                api,
                scheduler: Arc::new(scheduler),
                attempts,
                gateway: settings.gateway.take(),
            },
            mind: Mind::new(settings, batching),
            health,
            audit,
            started: Instant::now(),
            swept: None,
            rung: Arc::default(),
            began: Instant::now(),
            late: None,
            drains: false,
        }
    }

    fn now(&self) -> Moment {
        Moment(self.started.elapsed())
    }

    /// Runs until `shutdown`, then lets the actions under way finish and leaves the jobs running.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), NotAdmin> {
        let news = Arc::new(News::default());
        let helpers = CancellationToken::new();
        let _stop_helpers = helpers.clone().drop_guard();
        let (hands, heard) = (self.hands.clone(), news.clone());
        let events = async move { hands.api.follow(heard).await };
        tokio::spawn(helpers.clone().run_until_cancelled_owned(events));
        let jobs = follow_jobs(
            self.hands.scheduler.clone(),
            news.clone(),
            self.rung.clone(),
        );
        tokio::spawn(helpers.clone().run_until_cancelled_owned(jobs));
        let (records, writer) = records(self.hands.api.clone());
        let writer = tokio::spawn(writer.run());
        let mut actions = JoinSet::new();
        let mut sight: Option<JoinHandle<Sight>> = None;
        let mut view: Option<JoinHandle<Result<Look, Error>>> = None;
        let mut arranging: Option<JoinHandle<Result<(), SchedulerError>>> = None;
        let mut woken = false;
        let mut disorder = false;
        let mut next_order = Instant::now();
        let mut next_look = Instant::now();
        let mut next_act = Instant::now();
        loop {
            let looking = sight.is_some() || view.is_some();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = actions.join_next(), if !actions.is_empty() => {
                    self.finish(done, &news, &records);
                    while let Some(done) = actions.try_join_next() {
                        self.finish(done, &news, &records);
                    }
                    next_act = next_act.min(Instant::now() + self.mind.breath(self.now()));
                }
                Some(seen) = ready(&mut sight) => {
                    sight = None;
                    view = seen.ok().and_then(|seen| self.heard(seen, &news, &records));
                    if self.no_admin {
                        return Err(NotAdmin);
                    }
                    if view.is_none() {
                        next_look = Instant::now() + self.pause(woken);
                    }
                }
                Some(seen) = ready(&mut view) => {
                    view = None;
                    self.saw(seen, &records);
                    disorder = true;
                    next_look = Instant::now() + self.pause(woken);
                    next_act = Instant::now();
                }
                Some(listed) = ready(&mut self.late) => {
                    self.late = None;
                    if let Ok(listed) = listed {
                        self.listed(listed, &records);
                    }
                    // Records that are younger than it are needed to act on it.
                    next_look = next_look.min(Instant::now() + self.pause(true));
                    next_act = Instant::now();
                }
                Some(arranged) = ready(&mut arranging) => {
                    arranging = None;
                    if let Ok(Err(error)) = arranged {
                        tracing::warn!(%error, "the waiting jobs could not be put in order; it is tried again");
                    }
                }
                () = tokio::time::sleep_until(next_order), if disorder && arranging.is_none() => {
                    disorder = false;
                    arranging = self.arrange();
                    if arranging.is_some() {
                        next_order = Instant::now() + ORDER;
                    }
                }
                () = news.heard() => {
                    woken = true;
                    next_look = next_look.min(Instant::now() + self.tempo.gap(Instant::now()));
                }
                () = tokio::time::sleep_until(next_look), if !looking => {
                    woken = false;
                    sight = Some(self.observe());
                }
                () = tokio::time::sleep_until(next_act) => {
                    self.act(&mut actions);
                    if self.mind.has_used_up_the_queue() {
                        next_look = next_look.min(Instant::now() + self.tempo.gap(Instant::now()));
                    }
                    if self.mind.is_unsettled() {
                        next_look = next_look.min(Instant::now() + self.pause(false));
                    }
                    // What had to wait for its time is found when that has come.
                    let breath = self.mind.breath(self.now());
                    next_act = Instant::now() + (200 * breath).max(Duration::from_secs(1));
                }
            }
        }
        self.drains = true;
        tracing::info!("draining: nothing new is started, jobs are left running");
        for looking in [
            sight.map(|s| s.abort_handle()),
            view.map(|v| v.abort_handle()),
            arranging.map(|a| a.abort_handle()),
            self.late.take().map(|l| l.abort_handle()),
        ] {
            looking.iter().for_each(|handle| handle.abort());
        }
        while let Some(done) = actions.join_next().await {
            self.finish(done, &news, &records);
        }
        let _ = tokio::time::timeout(FAREWELL, self.give_back(&records)).await;
        drop(records);
        let _ = tokio::time::timeout(Duration::from_secs(5), writer).await;
        Ok(())
    }

    /// How long until the next look. `woken`: something happened while the last one was under way.
    fn pause(&self, woken: bool) -> Duration {
        let gap = self.hands.scheduler.listing_gap();
        self.tempo.pause(Instant::now(), woken, self.hurries(), gap)
    }

    /// Something waits to be confirmed by a listing, or a job may have ended.
    fn hurries(&self) -> bool {
        self.mind.is_unsettled() || self.rung.load(Ordering::Relaxed)
    }

    /// Begins to put the waiting jobs in order.
    fn arrange(&self) -> Option<JoinHandle<Result<(), SchedulerError>>> {
        let wanted = self.mind.wanted();
        let scheduler = self.hands.scheduler.clone();
        (!wanted.is_empty()).then(|| tokio::spawn(async move { scheduler.arrange(wanted).await }))
    }

    /// Decides, and begins what was decided.
    fn act(&mut self, actions: &mut JoinSet<Reports>) {
        let attempts = self.hands.attempts.clone();
        let unpaced = self.hands.scheduler.unpaced();
        self.mind.spend(self.now(), unpaced);
        for task in self.mind.decide(self.now(), |token| attempts.is_due(token)) {
            let hands = self.hands.clone();
            actions.spawn(async move { hands.carry_out(task).await });
        }
    }

    fn finish(
        &mut self,
        done: Result<Reports, tokio::task::JoinError>,
        news: &News,
        records: &Records,
    ) {
        for (container, report) in done.into_iter().flatten() {
            // A look tells whether it has the lock. And what a look showed of a container in the middle of an action did
            // not count.
            let unclear = matches!(report.outcome, Outcome::LockUnclear(_) | Outcome::Holds(_));
            if unclear || self.mind.is_unseen(&container) {
                news.ring();
            }
            let why = report.events.iter().rev().find_map(Event::came_to_nothing);
            self.mind.last_attempt(&container, why);
            self.tell(report.events, records);
            let next = self
                .mind
                .learn(self.now(), container, report.outcome, report.hints);
            // Who comes after this process knows nothing of a wait.
            let next = next.filter(|_| !self.drains);
            self.tell(next.into_iter().collect(), records);
        }
    }

    async fn give_back(&mut self, records: &Records) {
        let hands = self.hands.clone();
        let tasks = self.mind.farewell().into_iter();
        let mut given = stream::iter(tasks.map(|task| hands.carry_out(task))).buffered(ABREAST);
        while let Some(reports) = given.next().await {
            for (_, report) in reports {
                self.tell(report.events, records);
            }
        }
    }

    fn tell(&mut self, events: Vec<Event>, records: &Records) {
        for event in events {
            event.log();
            self.lost_locks += usize::from(matches!(event, Event::LockFailed { lost: true, .. }));
            self.health.count(&event);
            if let Some(Err(error)) = self.audit.as_mut().map(|audit| audit.write(&event)) {
                tracing::error!(%error, "the audit file could not be written");
            }
            records.keep(event);
        }
    }
}

/// What a task that runs aside came to; never, if there is none.
async fn ready<T>(handle: &mut Option<JoinHandle<T>>) -> Option<Result<T, tokio::task::JoinError>> {
    match handle {
        Some(handle) => Some(handle.await),
        None => std::future::pending().await,
    }
}

/// Wakes the loop when a job may have ended.
async fn follow_jobs<S: Scheduler>(scheduler: Arc<S>, news: Arc<News>, rung: Arc<AtomicBool>) {
    loop {
        scheduler.wake().await;
        rung.store(true, Ordering::Relaxed);
        news.ring();
    }
}
