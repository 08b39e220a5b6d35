//! Polls as the control loop starts and applies them: scheduler first, then API server.
//!
//! Input: what the server can do, the job listing and the API snapshot. Output: updates of the
//! reconciler, the poll schedule and the health status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arvados_client::api::Bulk;
use arvados_client::error::StatusCode;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::act::TaskRunner;
use crate::api::Api;
use crate::api::error_hint::WithHint;
use crate::api::log_writer::ApiLog;
use crate::controller::Controller;
use crate::model::owner::{Charge, KnownOwner};
use crate::model::snapshot::ApiSnapshot;
use crate::model::world::{Job, MonotonicTime};
use crate::observe::api_snapshot::fetch_snapshot;
use crate::observe::change_feed::ChangeFeed;
use crate::report::health::SiteState;
use crate::scheduler::rejections::Rejections;
use crate::scheduler::submit_host::Precondition;
use crate::scheduler::{Scheduler, SchedulerError};

/// Maximum time a poll waits for the job listing, and then for the scheduler's upkeep, before it
/// reads the API. The records should be younger than the listing.
const LISTING_WAIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two log lines about a refused token, at the start.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(600);

/// The time the job listing started, and its result.
pub(crate) type ListingReply = (MonotonicTime, Result<Vec<Job>, SchedulerError>);

/// The first half of a poll. Jobs are listed before records are read. So when a job is missing from
/// the listing, the record already has everything the job wrote.
pub(crate) struct SchedulerSnapshot {
    /// What the server can do, if that was due.
    server: Option<Result<ServerFacts, Error>>,
    /// The job listing, if one was due and finished in time.
    listing: Option<ListingReply>,
    /// The job listing that is still running.
    late_listing: Option<JoinHandle<ListingReply>>,
}

/// What the server can do for the dispatch token.
struct ServerFacts {
    /// Whether the user of the dispatch token is an administrator. None: its scopes do not permit
    /// to ask.
    is_admin: Option<bool>,
    /// The server's limits for bulk calls, if they were fetched.
    bulk: Option<Bulk>,
}

impl ServerFacts {
    async fn read<A: Api, S: Scheduler>(runner: &TaskRunner<A, S>) -> Result<Self, Error> {
        runner.attempts.read_dispatch_token().await?;
        Ok(Self {
            is_admin: match runner.api.can_read_all().await {
                Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => None,
                answer => Some(answer?),
            },
            bulk: runner.api.bulk().await.ok(),
        })
    }
}

/// The second half of a poll: the API snapshot, and the scheduler's upkeep beside it.
pub(crate) struct ApiReply {
    snapshot: Result<ApiSnapshot, Error>,
    upkeep: UpkeepState,
}

/// What became of the scheduler's upkeep during a poll.
enum UpkeepState {
    /// No upkeep was due.
    NotDue,
    /// It has ended.
    Done,
    /// It exceeded the wait time and is still running.
    Late(JoinHandle<()>),
}

/// Logs that the server refuses the dispatch token, the first time and then once per interval.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog(Option<Instant>);

impl RefusalLog {
    fn log(&mut self, error: &WithHint<'_>) {
        if self.0.is_some_and(|at| at.elapsed() < REFUSAL_LOG_INTERVAL) {
            return;
        }
        self.0 = Some(Instant::now());
        tracing::error!(%error, event = "token_refused", "the API server refuses the dispatch token: no container is started until it accepts the token");
    }
}

impl<A: Api, S: Scheduler> Controller<A, S> {
    /// Starts a poll: reads what the server can do and lists the jobs, each if it is due.
    pub(crate) fn observe(&mut self) -> JoinHandle<SchedulerSnapshot> {
        self.poll_began = Instant::now();
        let list = self.should_list();
        let server_read_due = self.token_scans.is_server_read_due(self.poll_began);
        let is_server_known = self.token_scans.is_server_known();
        if is_server_known {
            self.start_token_reads();
        }
        let (runner, started) = (self.runner.clone(), self.started);
        tokio::spawn(async move {
            let server = match server_read_due {
                true => Some(ServerFacts::read(&runner).await),
                false => None,
            };
            let (mut listing, mut late_listing) = (None, None);
            if list {
                let began = MonotonicTime(started.elapsed());
                let scheduler = runner.scheduler.clone();
                let mut query = tokio::spawn(async move { (began, scheduler.list_jobs().await) });
                match tokio::time::timeout(LISTING_WAIT_TIMEOUT, &mut query).await {
                    Ok(listed) => listing = listed.ok(),
                    // The API snapshot does not wait for this listing any longer.
                    Err(_) => late_listing = Some(query),
                }
            }
            if let Some(host) = runner.scheduler.submit_host() {
                let suspects = matches!(listing, Some((_, Err(_))));
                host.check(suspects).await;
            }
            SchedulerSnapshot {
                server,
                listing,
                late_listing,
            }
        })
    }

    /// Whether a job listing is due. If so, resets the job exit signal, because the listing
    /// follows.
    fn should_list(&mut self) -> bool {
        let min_interval = self.runner.scheduler.capabilities().min_listing_interval;
        let is_idle =
            self.late_listing.is_none() && self.upkeep.as_ref().is_none_or(JoinHandle::is_finished);
        let is_due = is_idle
            && self
                .poll_schedule
                .should_list(Instant::now(), self.is_urgent(), min_interval);
        if is_due {
            self.silence.listing_began(Instant::now(), Timestamp::now());
            self.job_exit_signaled.store(false, Ordering::Relaxed);
        }
        is_due
    }

    /// Applies the first half of a poll and starts the second half, the API snapshot. None before
    /// the server has told what the dispatch token may do.
    pub(crate) fn on_scheduler_snapshot(
        &mut self,
        snapshot: SchedulerSnapshot,
        changes: &ChangeFeed,
        api_log: &ApiLog,
    ) -> Option<JoinHandle<ApiReply>> {
        let is_first = !self.token_scans.is_server_known();
        match snapshot.server {
            // Only the first read makes this fatal. A dispatcher that has worked must go on
            // following its jobs.
            Some(Ok(facts)) if facts.is_admin == Some(false) && is_first => {
                self.no_admin = true;
                return None;
            }
            Some(Ok(facts)) => {
                self.token_scans.server_read(Instant::now());
                if let Some(bulk) = facts.bulk {
                    self.reconciler.set_lock_batch_size(bulk.starts);
                    api_log.set_batch_size(bulk.logs);
                }
                if is_first {
                    self.start_token_reads();
                }
            }
            Some(Err(error)) if is_first => {
                let is_refused = error.is_denied();
                let error = self.with_hint(&error);
                if is_refused {
                    self.refusal_log.log(&error)
                } else {
                    tracing::warn!(%error, event = "server_unknown", "the API server has not said what the dispatch token may do; starting no jobs before it does")
                }
            }
            // The next call tells of the same trouble.
            Some(Err(_)) => self.token_scans.server_read(Instant::now()),
            None => {}
        }
        self.late_listing = snapshot.late_listing.or(self.late_listing.take());
        if let Some(listed) = snapshot.listing {
            self.on_listing(listed);
        }
        if !self.token_scans.is_server_known() {
            return None;
        }
        let request = self.reconciler.next_request(self.now(), changes.drain());
        let (api, upkeep) = (self.runner.api.clone(), self.upkeep.take());
        let storage = self.runner.storage.clone();
        let names = self.owner_names.clone();
        Some(tokio::spawn(async move {
            let upkeep = match upkeep {
                None => UpkeepState::NotDue,
                // Admission needs what the upkeep finds out.
                Some(mut running) => {
                    match tokio::time::timeout(LISTING_WAIT_TIMEOUT, &mut running).await {
                        Ok(_) => UpkeepState::Done,
                        Err(_) => UpkeepState::Late(running),
                    }
                }
            };
            let snapshot = fetch_snapshot(&api, &names, &request).await;
            let containers_wait = snapshot.as_ref().is_ok_and(ApiSnapshot::has_queued);
            storage.check_if_due(containers_wait).await;
            ApiReply { snapshot, upkeep }
        }))
    }

    /// Applies the result of a job listing, and starts the scheduler's upkeep after a complete one.
    pub(crate) fn on_listing(&mut self, (began, answer): ListingReply) {
        match answer {
            Ok(jobs) => {
                self.outage = None;
                let took = self.now().since(began);
                let was_outage = self.silence.listing_done(took);
                if self.health.scheduler_answered() || was_outage {
                    tracing::info!(event = "listing_works", "the scheduler answers again");
                }
                self.poll_schedule
                    .listing_done(self.reconciler.world().listing.is_none());
                self.reconciler.apply_listing(began, jobs);
                let scheduler = self.runner.scheduler.clone();
                self.upkeep = Some(tokio::spawn(async move { scheduler.run_upkeep().await }));
            }
            Err(error) => {
                self.health.scheduler_failed(&error);
                self.poll_schedule.listing_failed();
                tracing::warn!(%error, event = "listing_failed", "could not list the scheduler's jobs; the last complete listing still counts");
            }
        }
    }

    /// The scheduler has not answered for too long.
    pub(crate) fn begin_outage(&mut self) {
        self.outage = self.silence.begin_outage(self.runner.scheduler.name());
        if let Some(outage) = &self.outage {
            tracing::warn!(
                event = "scheduler_silent",
                "starting no containers: {outage}"
            );
        }
    }

    /// Reads what the scheduler found out during its upkeep.
    fn on_upkeep_done(&mut self, api_log: &ApiLog) {
        let capabilities = self.runner.scheduler.capabilities();
        self.reconciler.set_capabilities(capabilities);
        let reasons = self.runner.scheduler.pending_reasons();
        let events = self.reconciler.set_pending_reasons(self.now(), reasons);
        self.emit(events, api_log);
    }

    /// Applies the second half of a poll. A failed API snapshot changes no container state.
    pub(crate) fn on_api_snapshot(
        &mut self,
        reply: Result<ApiReply, tokio::task::JoinError>,
        api_log: &ApiLog,
    ) {
        let is_first = !self.poll_schedule.has_polled();
        self.poll_schedule.poll_done(self.poll_began.elapsed());
        if is_first {
            self.start_token_reads();
        }
        self.log_alike_lines(Instant::now());
        let lost = std::mem::take(&mut self.lost_locks);
        if lost > 0 {
            tracing::info!(
                event = "locks_lost",
                containers = lost,
                "another dispatcher or a user changed containers before they were locked"
            );
        }
        let Ok(ApiReply { snapshot, upkeep }) = reply else {
            self.reconciler.snapshot_failed();
            return;
        };
        match upkeep {
            UpkeepState::NotDue => {}
            UpkeepState::Done => self.on_upkeep_done(api_log),
            UpkeepState::Late(running) => self.upkeep = Some(running),
        }
        match snapshot {
            Ok(mut snapshot) => {
                snapshot.charges = self.charges(&snapshot);
                self.health.api_answered();
                self.refused = RefusalTimer::new(self.refusal_window);
                let events = self.reconciler.apply_snapshot(self.now(), snapshot);
                self.emit(events, api_log);
            }
            Err(error) => {
                self.reconciler.snapshot_failed();
                let error = self.with_hint(&error);
                tracing::warn!(%error, event = "snapshot_failed", "could not fetch the container records; the last snapshot still counts");
            }
        }
        for report in self.runner.storage.take_refuted() {
            if let Some(node) = report.node {
                let (now, container) = (self.now(), &report.container);
                self.reconciler.record_failed_attempt(now, container, node);
            }
        }
        let (fault, outage) = (self.host_fault(), self.outage.clone());
        self.reconciler.set_obstacles(fault, outage);
        let (waiting, started) = self.reconciler.candidates(self.now());
        let fits = self.runner.scheduler.admit(&waiting, &started);
        let events = self.reconciler.apply_admission(&waiting, fits);
        self.emit(events, api_log);
        let site = SiteState {
            capacity: self.runner.scheduler.capacity(),
            breaker_open: self.reconciler.is_breaker_open(self.now()),
            host_fault: self.host_fault(),
            outage: self.outage.clone(),
            rejected_kinds: (self.runner.scheduler.rejections()).map_or(0, Rejections::count),
            excluded_nodes: self.reconciler.excluded_nodes(self.now()),
        };
        let (world, places) = (self.reconciler.world(), self.reconciler.places());
        self.health.update(world, &places, site);
    }

    /// How the jobs of the containers in `snapshot` whose owners were read are charged.
    fn charges(&self, snapshot: &ApiSnapshot) -> BTreeMap<ContainerUuid, Arc<Charge>> {
        let mut of_owner: BTreeMap<&KnownOwner, Option<Arc<Charge>>> = BTreeMap::new();
        let charge = |owner: &KnownOwner| self.runner.scheduler.charge(owner).map(Arc::new);
        let charges = snapshot.owners.iter().filter_map(|(container, owner)| {
            let charge = of_owner.entry(owner).or_insert_with(|| charge(owner));
            Some((container.clone(), charge.clone()?))
        });
        charges.collect()
    }

    /// Whether starts wait for the end of a trial, of the storage or of this host.
    pub(crate) fn awaits_trial(&self) -> bool {
        let host = self.runner.scheduler.submit_host();
        self.runner.storage.is_awaited() || host.is_some_and(Precondition::is_awaited)
    }

    /// Why nothing can be started, if that is so: this host cannot submit jobs, or the file storage
    /// takes no data.
    pub(crate) fn host_fault(&self) -> Option<String> {
        let host = self.runner.scheduler.submit_host();
        let fault = host.and_then(Precondition::fault);
        fault.or_else(|| self.runner.storage.fault())
    }

    /// Records a failed API call in the health status and the poll schedule. Returns the error with
    /// a hint for administrators.
    pub(crate) fn with_hint<'a>(&mut self, error: &'a Error) -> WithHint<'a> {
        let is_over = self
            .refused
            .record_failure(error, Instant::now().into_std());
        // A refusal before the server was known counts as persistent at once.
        let is_persistent = is_over || !self.token_scans.is_server_known();
        let with_hint = WithHint {
            error,
            is_persistent,
        };
        self.health.api_failed(&with_hint);
        self.poll_schedule
            .poll_failed(Instant::now(), error.retry_after());
        with_hint
    }
}
