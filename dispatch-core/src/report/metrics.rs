//! The metrics of a dispatcher. Input: decisions, and the state after each poll. Output: text in
//! the OpenMetrics format. docs/metrics.md lists the names; a test compares.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime};

use arvados_client::records::ContainerState;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use crate::model::decision::Decision;
use crate::model::owner::Owner;
use crate::model::resources::Capacity;
use crate::model::world::{Job, JobListing, LockHolder, ObservedContainer, World};
use crate::report::state_durations::{StateDuration, StateDurations};

/// Maximum number of values of a label that users can invent. The rest counts as [`OTHER`].
const MAX_LABEL_VALUES: usize = 100;
/// Maximum number of characters of such a value.
const MAX_LABEL_LENGTH: usize = 64;
/// Label of all further values.
const OTHER: &str = "other";
/// Label of what has no partition or no known user.
const NONE: &str = "none";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabel {
    partition: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UserLabel {
    user: String,
    state: String,
}

/// What keeps containers from being started, and where they can be.
#[derive(Debug, Default, Clone)]
pub struct SiteState {
    /// Total and free resources, if the scheduler is one machine.
    pub capacity: Option<Capacity>,
    /// Whether the circuit breaker is open, so that no container is started.
    pub breaker_open: bool,
    /// Number of kinds of jobs that the scheduler rejects.
    pub rejected_kinds: usize,
    /// Why this host cannot submit jobs, if that is so.
    pub host_fault: Option<String>,
    /// That the scheduler does not answer, if that is so.
    pub outage: Option<String>,
    /// Nodes excluded from new submissions.
    pub excluded_nodes: Vec<String>,
}

/// A time as seconds since 1970.
type TimeGauge = Gauge<f64, AtomicU64>;

/// All metrics of one dispatcher.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    events: Family<EventLabel, Counter>,
    containers: Family<StateLabel, Gauge>,
    by_partition: Family<PartitionLabel, Gauge>,
    by_user: Family<UserLabel, Gauge>,
    jobs: Family<StateLabel, Gauge>,
    oldest_queued: TimeGauge,
    api_answered: TimeGauge,
    scheduler_answered: TimeGauge,
    locked: Histogram,
    running: Histogram,
    breaker: Gauge,
    host_failed: Gauge,
    excluded_nodes: Gauge,
    rejected_kinds: Gauge,
    durations: Mutex<StateDurations>,
}

impl Default for Metrics {
    #[rustfmt::skip]
    fn default() -> Self {
        let mut registry = Registry::with_prefix("arvados_dispatch");
        let all = &mut registry;
        let histogram = || Histogram::new(exponential_buckets(1.0, 4.0, 10));
        Self {
            jobs: add(all, "jobs", "Jobs of this dispatcher in the newest listing of the scheduler, by state"),
            containers: add(all, "containers", "Known containers, by state"),
            oldest_queued: add(all, "oldest_queued_seconds", "Age of the oldest queued container that may start; 0 if there is none"),
            api_answered: add(all, "api_answered_timestamp_seconds", "Time of the last complete poll of the API server"),
            scheduler_answered: add(all, "scheduler_answered_timestamp_seconds", "Time of the last complete listing of the scheduler"),
            breaker: add(all, "breaker_open", "1 while no job is submitted, because several attempts in a row failed"),
            host_failed: add(all, "submit_host_failed", "1 while no job is submitted, because this host cannot write the files of jobs or run the submit command, or the file storage takes no data"),
            excluded_nodes: add(all, "nodes_shunned", "Nodes that get no new jobs, because the attempts of several containers failed there"),
            rejected_kinds: add(all, "rejected_job_kinds", "Kinds of jobs that are held back, because the scheduler rejects them"),
            locked: register(all, "locked_seconds", "Time from the lock of a container until its command runs", histogram()),
            running: register(all, "running_seconds", "Time for which containers were Running", histogram()),
            by_partition: add(all, "partition_containers", "Known containers, by their first partition and by state"),
            by_user: add(all, "user_containers", "Known containers, by user and by state"),
            events: add(all, "events", "Decisions and failures, by kind"),
            durations: Mutex::default(),
            registry,
        }
    }
}

impl Metrics {
    /// Counts one decision.
    pub(super) fn count(&self, event: &Decision) {
        let label = EventLabel {
            event: event.name(),
        };
        self.events.get_or_create(&label).inc();
    }

    /// Records a complete poll of the API server.
    pub(super) fn api_answered(&self) {
        self.api_answered.set(unix_seconds());
    }

    /// Records a complete listing of the scheduler.
    pub(super) fn scheduler_answered(&self) {
        self.scheduler_answered.set(unix_seconds());
    }

    /// Replaces the gauges that describe containers and jobs.
    pub(super) fn update(&self, world: &World, now: Timestamp) {
        let all = || world.containers.values();
        replace(
            &self.containers,
            counts(all(), |_| String::new()),
            |(_, state)| StateLabel { state },
        );
        replace(
            &self.by_partition,
            counts(all(), partition),
            |(partition, state)| PartitionLabel { partition, state },
        );
        replace(&self.by_user, counts(all(), user), |(user, state)| {
            UserLabel { user, state }
        });
        let zero = |state: &str| ((String::new(), state.to_owned()), 0);
        let mut jobs = BTreeMap::from(["pending", "running", "ended"].map(zero));
        for job in world.listing.iter().flat_map(JobListing::jobs) {
            let state = job_state(job, world).to_owned();
            *jobs.entry((String::new(), state)).or_default() += 1;
        }
        replace(&self.jobs, jobs, |(_, state)| StateLabel { state });
        self.oldest_queued.set(oldest_queued(world, now));
        let ours = |(_, known): &(_, &ObservedContainer)| {
            known.state.is_final() || matches!(known.holder, LockHolder::Ours(_))
        };
        let states = world.containers.iter().filter(ours);
        let states = states.map(|(uuid, known)| (uuid, &known.state));
        let mut durations = self.durations.lock();
        for measured in durations.record(states, Instant::now()) {
            match measured {
                StateDuration::Locked(took) => self.locked.observe(took.as_secs_f64()),
                StateDuration::Running(took) => self.running.observe(took.as_secs_f64()),
            }
        }
    }

    /// Replaces the gauges about the dispatcher itself.
    pub(super) fn update_site(&self, site: &SiteState) {
        self.breaker.set(i64::from(site.breaker_open));
        self.host_failed.set(i64::from(site.host_fault.is_some()));
        self.excluded_nodes.set(site.excluded_nodes.len() as i64);
        self.rejected_kinds.set(site.rejected_kinds as i64);
    }

    /// The metrics as text.
    pub(super) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    register(registry, name, help, M::default())
}

fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Number of containers by label and state. Only the most frequent labels are kept.
fn counts<'a>(
    containers: impl Iterator<Item = &'a ObservedContainer>,
    label: impl Fn(&ObservedContainer) -> String,
) -> BTreeMap<(String, String), i64> {
    let mut counts: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for known in containers {
        let states = counts.entry(label(known)).or_default();
        *states.entry(known.state.to_string()).or_default() += 1;
    }
    let mut labels: Vec<(i64, String)> = counts
        .iter()
        .map(|(label, states)| (-states.values().sum::<i64>(), label.clone()))
        .collect();
    labels.sort();
    let mut kept: BTreeMap<(String, String), i64> = BTreeMap::new();
    for (rank, (_, label)) in labels.into_iter().enumerate() {
        let states = counts.remove(&label).unwrap_or_default();
        let label = match rank < MAX_LABEL_VALUES {
            true => label,
            false => OTHER.to_owned(),
        };
        for (state, count) in states {
            *kept.entry((label.clone(), state)).or_default() += count;
        }
    }
    kept
}

fn partition(known: &ObservedContainer) -> String {
    let first = known.needs.partitions.first();
    let first = first.map(|name| name.chars().take(MAX_LABEL_LENGTH).collect());
    first.unwrap_or_else(|| NONE.to_owned())
}

fn user(known: &ObservedContainer) -> String {
    let user = known.owner.as_deref().and_then(Owner::user_label);
    user.unwrap_or(NONE).to_owned()
}

fn job_state(job: &Job, world: &World) -> &'static str {
    match (job.ended, &job.node) {
        (true, _) => "ended",
        (false, None) => "pending",
        (false, Some(_)) if world.pending.contains_key(&job.container) => "pending",
        (false, Some(_)) => "running",
    }
}

/// Age in seconds of the oldest queued container that may start.
fn oldest_queued(world: &World, now: Timestamp) -> f64 {
    let queued = world.containers.values();
    let queued = queued.filter(|known| known.state == ContainerState::Queued && known.priority > 0);
    let oldest = queued.filter_map(|known| known.created_at).min();
    oldest.map_or(0.0, |at| {
        (now - at).total(jiff::Unit::Second).unwrap_or(0.0).max(0.0)
    })
}

/// Replaces all values of a family.
fn replace<L>(
    family: &Family<L, Gauge>,
    counts: BTreeMap<(String, String), i64>,
    label: impl Fn((String, String)) -> L,
) where
    L: Clone + std::hash::Hash + Eq,
{
    family.clear();
    for (key, count) in counts {
        family.get_or_create(&label(key)).set(count);
    }
}

#[cfg(test)]
mod tests;
