//! The control loop of a dispatcher: observe, plan, act.
//!
//! Input: snapshots of scheduler and API server, change events, job exits and task results. Output:
//! spawned tasks, decisions for the log, audit file and metrics, and health updates.
//!
//! The loop is level-triggered: events, job exits and finished tasks only make the next poll come
//! sooner. Polls run in tasks of their own, so a slow server or scheduler delays no running action.

mod running_tasks;
mod shutdown;
pub mod snapshots;
mod token_reads;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::retry::RefusalTimer;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::act::TaskRunner;
use crate::act::attempt_tokens::AttemptTokens;
use crate::act::runner::TaskResults;
use crate::api::Api;
use crate::api::log_writer::{ApiLog, api_log_channel};
use crate::config::settings::{CommandRate, Settings};
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::world::MonotonicTime;
use crate::observe::change_feed::ChangeFeed;
use crate::observe::owners::OwnerNames;
use crate::observe::poll_schedule::PollSchedule;
use crate::observe::scheduler_silence::SchedulerSilence;
use crate::observe::token_scans::TokenScans;
use crate::reconcile::Reconciler;
use crate::report::alike_lines::{self, AlikeLines};
use crate::report::audit::Audit;
use crate::report::health::Health;
use crate::scheduler::submit_host::Precondition;
use crate::scheduler::{Scheduler, SchedulerError};

use running_tasks::RunningTasks;
use snapshots::{ApiReply, ListingReply, RefusalLog, SchedulerSnapshot};
use token_reads::{TokenReads, TokenScan};

/// Time limit for writing the last entries of the API log at shutdown.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval between two reorders of pending jobs. Users rarely change only one priority.
const REORDER_INTERVAL: Duration = Duration::from_secs(2);

/// Error: the user of the dispatch token is not an administrator.
#[derive(Debug, thiserror::Error)]
#[error(
    "the dispatch token cannot be used: the API server says that its user is no administrator, who could neither see nor \
     lock the containers of others; give the token of an administrator or of the system user (--token-file, \
     SystemRootToken or ARVADOS_API_TOKEN)"
)]
pub struct NotAdmin;

/// The controller of one dispatcher process.
pub struct Controller<A, S> {
    runner: TaskRunner<A, S>,
    reconciler: Reconciler,
    poll_schedule: PollSchedule,
    health: Arc<Health>,
    audit: Option<Audit>,
    started: Instant,
    alike_lines: AlikeLines,
    silence: SchedulerSilence,
    /// That the scheduler does not answer, if that is so.
    outage: Option<String>,
    /// Schedule of the scans for orphaned attempt tokens.
    token_scans: TokenScans,
    /// The reads of tokens under way.
    token_reads: TokenReads,
    /// The scan of tokens under way.
    token_scan: Option<JoinHandle<TokenScan>>,
    /// Whether the job directories of earlier runs were read.
    has_read_directories: bool,
    /// Whether these found tokens that no poll was told of.
    has_found_tokens: bool,
    /// Whether a job may have ended since the last job listing started.
    job_exit_signaled: Arc<AtomicBool>,
    /// Start time of the last poll.
    poll_began: Instant,
    /// A job listing that exceeded the wait time of its poll and is still running.
    late_listing: Option<JoinHandle<ListingReply>>,
    /// The scheduler's upkeep after the last listing, until a poll has seen its end.
    upkeep: Option<JoinHandle<()>>,
    /// Whether the controller is shutting down and starts nothing new.
    draining: bool,
    /// Measures how long the server has been refusing the dispatch token.
    refused: RefusalTimer,
    refusal_window: Duration,
    /// Whether the server reported that the user of the dispatch token is no administrator.
    no_admin: bool,
    /// Names of users and projects.
    owner_names: Arc<OwnerNames>,
    refusal_log: RefusalLog,
    /// Number of locks lost to others since the last API snapshot.
    lost_locks: usize,
}

impl<A: Api, S: Scheduler> Controller<A, S> {
    /// Creates a controller that has not polled yet.
    pub fn new(
        api: A,
        scheduler: S,
        mut settings: Settings,
        health: Arc<Health>,
        audit: Option<Audit>,
    ) -> Self {
        // A single-machine scheduler runs no commands, so they need no rate limit. Its size limits
        // the workflow runners: their steps need memory, too.
        if let Some(capacity) = scheduler.capacity() {
            let cpus = (capacity.total.cpus as usize).max(1);
            settings.max_supervisors = settings.max_supervisors.min(cpus);
            settings.max_supervisor_ram = Some(capacity.total.ram / 2);
            settings.command_rate = CommandRate::Unlimited;
        }
        let capabilities = scheduler.capabilities();
        let attempts = AttemptTokens::new(
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
            refusal_log: RefusalLog::default(),
            owner_names: Arc::default(),
            token_scans: TokenScans::new(settings.poll_interval),
            token_reads: None,
            token_scan: None,
            has_read_directories: false,
            has_found_tokens: false,
            poll_schedule: PollSchedule::new(settings.poll_interval, settings.min_poll_interval),
            runner: TaskRunner {
                storage: Arc::new(file_storage(&api, scheduler.submit_host())),
                api,
                scheduler: Arc::new(scheduler),
                attempts,
                gateway: settings.gateway.take(),
                max_evictions: settings.max_evictions,
                stopping: CancellationToken::new(),
            },
            reconciler: Reconciler::new(settings, capabilities),
            health,
            audit,
            started: Instant::now(),
            alike_lines: AlikeLines::default(),
            silence: SchedulerSilence::default(),
            outage: None,
            job_exit_signaled: Arc::default(),
            poll_began: Instant::now(),
            late_listing: None,
            upkeep: None,
            draining: false,
        }
    }

    fn now(&self) -> MonotonicTime {
        MonotonicTime(self.started.elapsed())
    }

    /// Runs until `shutdown`, then waits for running tasks. Jobs keep running.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), NotAdmin> {
        self.runner.stopping = shutdown.clone();
        let changes = Arc::new(ChangeFeed::default());
        let watchers = CancellationToken::new();
        let _stop_watchers = watchers.clone().drop_guard();
        self.spawn_watchers(&watchers, &changes);
        let (api_log, log_writer) = api_log_channel(self.runner.api.clone());
        let log_writer = tokio::spawn(log_writer.run());
        let mut tasks = RunningTasks::default();
        // The two halves of the poll under way.
        let mut scheduler_half: Option<JoinHandle<SchedulerSnapshot>> = None;
        let mut api_half: Option<JoinHandle<ApiReply>> = None;
        let mut reorder: Option<JoinHandle<Result<(), SchedulerError>>> = None;
        let mut woken = false;
        let mut reorder_due = false;
        let mut next_reorder = Instant::now();
        let mut next_poll = Instant::now();
        let mut next_decision = Instant::now();
        loop {
            let is_polling = scheduler_half.is_some() || api_half.is_some();
            let outage = self.silence.outage_begins();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = tasks.next(), if !tasks.is_empty() => {
                    self.on_task_done(done, &changes, &api_log);
                    while let Some(done) = tasks.try_next() {
                        self.on_task_done(done, &changes, &api_log);
                    }
                    let interval = self.reconciler.decision_interval(self.now());
                    next_decision = next_decision.min(Instant::now() + interval);
                }
                Some(snapshot) = ready(&mut scheduler_half) => {
                    scheduler_half = None;
                    api_half = snapshot.ok().and_then(|snapshot| {
                        self.on_scheduler_snapshot(snapshot, &changes, &api_log)
                    });
                    if self.no_admin {
                        return Err(NotAdmin);
                    }
                    if api_half.is_none() {
                        next_poll = Instant::now() + self.next_poll_in(woken);
                    }
                }
                Some(reply) = ready(&mut api_half) => {
                    api_half = None;
                    self.on_api_snapshot(reply, &api_log);
                    reorder_due = true;
                    next_poll = Instant::now() + self.next_poll_in(woken);
                    next_decision = Instant::now();
                }
                Some(read) = ready(&mut self.token_reads) => {
                    self.token_reads = None;
                    if read.is_ok_and(|reply| self.on_token_reply(reply)) {
                        next_poll = next_poll.min(self.earliest_poll());
                    }
                }
                Some(scan) = ready(&mut self.token_scan) => {
                    self.token_scan = None;
                    if let Ok(scan) = scan {
                        self.on_token_scan(scan);
                    }
                }
                Some(listed) = ready(&mut self.late_listing) => {
                    self.late_listing = None;
                    if let Ok(listed) = listed {
                        self.on_listing(listed);
                    }
                    // Acting on this listing takes records that are read after it.
                    next_poll = next_poll.min(Instant::now() + self.next_poll_in(true));
                    next_decision = Instant::now();
                }
                Some(reordered) = ready(&mut reorder) => {
                    reorder = None;
                    if let Ok(Err(error)) = reordered {
                        tracing::warn!(%error, "could not reorder the pending jobs by priority; the next poll retries");
                    }
                }
                () = tokio::time::sleep_until(next_reorder), if reorder_due && reorder.is_none() => {
                    reorder_due = false;
                    reorder = self.start_reorder();
                    if reorder.is_some() {
                        next_reorder = Instant::now() + REORDER_INTERVAL;
                    }
                }
                () = tokio::time::sleep_until(outage.unwrap_or(next_poll)), if outage.is_some() => {
                    self.begin_outage();
                    // Its users are told by the poll.
                    next_poll = Instant::now();
                }
                () = changes.notified() => {
                    woken = true;
                    next_poll = next_poll.min(self.earliest_poll());
                }
                () = tokio::time::sleep_until(next_poll), if !is_polling => {
                    woken = false;
                    scheduler_half = Some(self.observe());
                }
                () = tokio::time::sleep_until(next_decision) => {
                    self.start_tasks(&mut tasks);
                    if self.reconciler.needs_poll(self.now()) {
                        next_poll = next_poll.min(self.earliest_poll());
                    }
                    if self.reconciler.awaiting_confirmation() {
                        next_poll = next_poll.min(Instant::now() + self.next_poll_in(false));
                    }
                    // Tasks that are due at a later time are found by this periodic pass.
                    let interval = self.reconciler.decision_interval(self.now());
                    next_decision = Instant::now() + (200 * interval).max(Duration::from_secs(1));
                }
            }
        }
        tracing::info!("draining: starting no more jobs and leaving running jobs alone");
        for handle in [
            scheduler_half.map(|half| half.abort_handle()),
            api_half.map(|half| half.abort_handle()),
            reorder.map(|reorder| reorder.abort_handle()),
            self.late_listing
                .take()
                .map(|listing| listing.abort_handle()),
            self.upkeep.take().map(|upkeep| upkeep.abort_handle()),
            self.token_reads.take().map(|reads| reads.abort_handle()),
            self.token_scan.take().map(|scan| scan.abort_handle()),
        ] {
            handle.iter().for_each(|handle| handle.abort());
        }
        self.drain(tasks, &changes, &api_log).await;
        self.log_alike_lines(Instant::now() + alike_lines::WINDOW);
        drop(api_log);
        let _ = tokio::time::timeout(LOG_FLUSH_TIMEOUT, log_writer).await;
        Ok(())
    }

    /// Watches for change events of the API server and for ended jobs, until `watchers` is
    /// cancelled.
    fn spawn_watchers(&self, watchers: &CancellationToken, changes: &Arc<ChangeFeed>) {
        let (api, feed) = (self.runner.api.clone(), changes.clone());
        let events = async move { api.subscribe(feed).await };
        tokio::spawn(watchers.clone().run_until_cancelled_owned(events));
        let exits = watch_job_exits(
            self.runner.scheduler.clone(),
            changes.clone(),
            self.job_exit_signaled.clone(),
        );
        tokio::spawn(watchers.clone().run_until_cancelled_owned(exits));
    }

    /// The earliest time of the next poll.
    fn earliest_poll(&self) -> Instant {
        Instant::now() + self.poll_schedule.min_interval(Instant::now())
    }

    /// Delay until the next poll. `woken`: a change was reported while the last poll was running.
    fn next_poll_in(&self, woken: bool) -> Duration {
        let min_interval = self.runner.scheduler.capabilities().min_listing_interval;
        self.poll_schedule
            .next_poll_in(Instant::now(), woken, self.is_urgent(), min_interval)
    }

    /// Whether a change awaits confirmation by a job listing, a job may have ended, or containers
    /// wait for a test after it or for a trial. The end of any job matters while the
    /// scheduler takes no more of them.
    fn is_urgent(&self) -> bool {
        let rejections = self.runner.scheduler.rejections();
        self.reconciler.awaiting_confirmation()
            || self.job_exit_signaled.load(Ordering::Relaxed)
            || self.awaits_trial()
            || rejections.is_some_and(|known| {
                known.awaits_poll() || known.count() > 0 && self.reconciler.has_ending_jobs()
            })
    }

    /// Starts a reorder of the pending jobs. None if there are none.
    fn start_reorder(&mut self) -> Option<JoinHandle<Result<(), SchedulerError>>> {
        let wanted = self.reconciler.desired_order();
        let scheduler = self.runner.scheduler.clone();
        (!wanted.is_empty()).then(|| tokio::spawn(async move { scheduler.reorder(wanted).await }))
    }

    /// Decides on tasks and spawns them.
    fn start_tasks(&mut self, tasks: &mut RunningTasks) {
        let attempts = self.runner.attempts.clone();
        let commands = self.runner.scheduler.take_extra_commands();
        self.reconciler.charge_commands(self.now(), commands);
        let (fault, outage) = (self.host_fault(), self.outage.clone());
        self.reconciler.set_obstacles(fault, outage);
        for task in self
            .reconciler
            .next_tasks(self.now(), |token| attempts.needs_renewal(token))
        {
            tasks.spawn(self.runner.clone(), task);
        }
    }

    fn on_task_done(&mut self, done: TaskResults, changes: &ChangeFeed, api_log: &ApiLog) {
        for (container, result) in done {
            // A poll shows whether the attempt holds the lock. A poll must also follow if a
            // snapshot ignored a change of this container because its task was running.
            let is_unknown = matches!(
                result.outcome,
                Outcome::LockUnknown(_) | Outcome::LockGranted(_)
            );
            if is_unknown || self.reconciler.has_pending_change(&container) {
                changes.notify();
            }
            if let Some(reason) = result.events.iter().rev().find_map(Decision::failure) {
                self.reconciler.record_failure(&container, reason);
            }
            self.emit(result.events, api_log);
            let event = self.reconciler.apply_outcome(
                self.now(),
                container,
                result.outcome,
                result.feedback,
            );
            // A restarted dispatcher has no record of this wait.
            let event = event.filter(|_| !self.draining);
            self.emit(event.into_iter().collect(), api_log);
        }
    }

    /// Logs how many decisions had no line of their own, once they are old enough at this time.
    pub(crate) fn log_alike_lines(&mut self, now: Instant) {
        for (event, containers) in self.alike_lines.take_due(now) {
            event.log_alike(containers);
        }
    }

    fn emit(&mut self, events: Vec<Decision>, api_log: &ApiLog) {
        for event in events {
            if self.alike_lines.admits(&event, Instant::now()) {
                event.log();
            }
            self.lost_locks +=
                usize::from(matches!(event, Decision::LockFailed { lost: true, .. }));
            self.health.count(&event);
            if let Decision::Dispatched { container, job, .. } = &event {
                self.reconciler.record_dispatched(container, job);
            }
            let (job, owner) = self.reconciler.job_and_owner(event.container());
            let audit = self.audit.as_mut();
            if let Some(Err(error)) = audit.map(|audit| audit.write(&event, job, owner)) {
                tracing::error!(%error, "could not write to the audit file");
            }
            api_log.enqueue(event);
        }
    }
}

/// The file storage behind an API server.
fn file_storage<A: Api>(api: &A, host: Option<&Precondition>) -> Precondition {
    let api = api.clone();
    let state_dir = host.and_then(Precondition::state_dir);
    let reached = state_dir.map(|dir| dir.join("storage-reached"));
    Precondition::file_storage(reached, move || {
        let api = api.clone();
        async move { api.store_trial_block().await }
    })
}

/// Waits for a spawned task and returns its output. Never resolves if there is no task.
async fn ready<T>(handle: &mut Option<JoinHandle<T>>) -> Option<Result<T, tokio::task::JoinError>> {
    match handle {
        Some(handle) => Some(handle.await),
        None => std::future::pending().await,
    }
}

/// Wakes the loop whenever the scheduler signals that a job may have ended.
async fn watch_job_exits<S: Scheduler>(
    scheduler: Arc<S>,
    changes: Arc<ChangeFeed>,
    job_exit_signaled: Arc<AtomicBool>,
) {
    loop {
        scheduler.job_exited().await;
        job_exit_signaled.store(true, Ordering::Relaxed);
        changes.notify();
    }
}
