//! One seed: dispatchers, users and executors under faults, then without faults until everything
//! has settled; and the checks of the end state.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use dispatch_core::config::settings::CommandRate;
use dispatch_core::{Controller, Health, Settings};
use fastrand::Rng;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::SimApi;
use crate::cluster::{Cluster, end_job, start_pending_jobs};
use crate::faults::{Faults, SeededBug};
use crate::state::{JobPhase, Record, SharedWorld, SimWorld, Tally};

/// Maximum simulated time from the end of the faults until everything has settled.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Simulated time after that until orphaned tokens must be revoked: a scan each ten minutes, and
/// two of grace.
const TOKEN_CLEANUP_TIME: Duration = Duration::from_secs(1500);
/// Maximum number of containers of an ordinary seed.
const MAX_CONTAINERS: usize = 200;
/// See [`MAX_CONTAINERS`].
const LARGE_SEED_INTERVAL: u64 = 100;
/// See [`MAX_CONTAINERS`].
const LARGE_SEED_CONTAINERS: usize = 10_000;

/// How to run a seed.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Number of containers; none: drawn from the seed.
    pub containers: Option<usize>,
    /// A rule of the dispatcher to break.
    pub seeded_bug: Option<SeededBug>,
    /// Print every event.
    pub trace: bool,
    /// Run without faults, on a server like Arvados, which has no bulk calls.
    pub without_faults: bool,
}

/// The result of a seed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The rules that were violated.
    pub violations: Vec<String>,
    /// Hash of all events; equal for equal seeds.
    pub digest: u64,
    /// Number of containers.
    pub containers: usize,
    /// Counters of a seed.
    pub tally: Tally,
    /// Simulated time.
    pub elapsed: Duration,
    /// Interval between two polls while nothing happens.
    pub poll_interval: Duration,
    /// Number of dispatchers.
    pub dispatchers: usize,
}

/// Runs one seed in this thread.
pub fn run(seed: u64, options: &Options) -> Outcome {
    // The dispatcher draws random names from this generator.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(run_scenario(seed, options))
}

/// A dispatcher that is killed and started again.
struct Dispatcher {
    label: usize,
    /// Index of the user whose token it has.
    user: usize,
    api_event: Arc<Notify>,
    job_event: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Dispatcher {
    fn start(world: &SharedWorld, label: usize, user: usize, settings: &Settings) -> Self {
        let (api_event, job_event): (Arc<Notify>, Arc<Notify>) = Default::default();
        let task = spawn_dispatcher(world, label, user, settings, &api_event, &job_event);
        Self {
            label,
            user,
            api_event,
            job_event,
            task,
        }
    }

    fn kill(&self) {
        self.task.abort();
    }

    fn restart(&mut self, world: &SharedWorld, settings: &Settings) {
        self.task = spawn_dispatcher(
            world,
            self.label,
            self.user,
            settings,
            &self.api_event,
            &self.job_event,
        );
    }
}

fn spawn_dispatcher(
    world: &SharedWorld,
    label: usize,
    user: usize,
    settings: &Settings,
    api_event: &Arc<Notify>,
    job_event: &Arc<Notify>,
) -> JoinHandle<()> {
    world.get().users.insert(label, user);
    let api = SimApi::new(world.clone(), user, api_event.clone());
    let cluster = Cluster::new(world.clone(), label, job_event.clone());
    let settings = Settings {
        label: format!("d{label}"),
        ..settings.clone()
    };
    let health = Health::new(Duration::from_secs(60), None);
    let engine = Controller::new(api, cluster, settings, health, None);
    tokio::spawn(async move {
        let _ = engine.run(CancellationToken::new()).await;
    })
}

async fn run_scenario(seed: u64, options: &Options) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let count = options
        .containers
        .unwrap_or(match seed % LARGE_SEED_INTERVAL {
            0 => LARGE_SEED_CONTAINERS,
            _ => rng.usize(1..=MAX_CONTAINERS),
        });
    let fault_phase = Duration::from_secs(rng.u64(600..=3600));
    let settings = Settings {
        poll_interval: Duration::from_secs(rng.u64(2..=20)),
        max_pending: (count / rng.usize(1..=10)).max(1),
        stop_grace: Duration::from_secs(60),
        asked_by_name: [500, 5][rng.usize(..2)],
        token_margin: Duration::from_secs(rng.u64(600..=86_400)),
        undelivered_wait: Duration::from_secs([0, 300, 86_400][rng.usize(..3)]),
        ..Settings::default()
    };
    let two = rng.bool();
    let users = [0, rng.usize(0..2)];
    let slots = rng.usize(1..=count.max(2));
    let work = Duration::from_secs(rng.u64(1..=600));
    let mut world = SimWorld::new(rng, options.seeded_bug, options.trace);
    world.slots = slots;
    if options.without_faults {
        world.faults = Faults::default();
        world.max_bulk = 1;
    }
    let world = SharedWorld::new(world);
    let mut dispatchers = vec![Dispatcher::start(&world, 0, users[0], &settings)];
    if two {
        dispatchers.push(Dispatcher::start(&world, 1, users[1], &settings));
    }
    let mut made = 0;
    let mut next = Instant::now();
    let quiesce_at = Instant::now() + fault_phase;
    while Instant::now() < quiesce_at {
        if made < count && Instant::now() >= next {
            // Half of the containers are created at once, the others a few at a time.
            let batch = match made {
                0 => count.div_ceil(2),
                _ => (count / 20).max(1).min(count - made),
            };
            for n in made..made + batch {
                add_container(&world, n, work);
            }
            made += batch;
            dispatchers.iter().for_each(|d| d.api_event.notify_one());
            next = Instant::now() + fault_phase / 25;
        }
        sleep(Duration::from_secs(1)).await;
        inject_faults(&world, &mut dispatchers, &settings).await;
    }
    quiesce(&world);
    let before = Instant::now();
    while !is_settled(&world) && before.elapsed() < SETTLE_TIMEOUT {
        sleep(Duration::from_secs(10)).await;
    }
    sleep(TOKEN_CLEANUP_TIME).await;
    check_end_state(&world, &settings, dispatchers.len());
    let world = world.get();
    Outcome {
        violations: world.violations.clone(),
        digest: world.digest(),
        containers: count,
        tally: world.tally.clone(),
        elapsed: world.began.elapsed(),
        poll_interval: settings.poll_interval,
        dispatchers: dispatchers.len(),
    }
}

fn uuid(n: usize) -> ContainerUuid {
    ContainerUuid::parse(&format!("sim00-dz642-{n:015}")).expect("a container's uuid")
}

fn add_container(shared: &SharedWorld, n: usize, work: Duration) {
    let mut world = shared.get();
    let work = world.random_duration(work);
    let record = Record {
        state: ContainerState::Queued,
        priority: world.rng.i64(1..=5) << 50,
        version: 0,
        locked_by: None,
        lock_count: 0,
        modified_at: world.now(),
        error: None,
        log: None,
        work,
        started: 0,
        was_held: false,
    };
    world.containers.insert(uuid(n), record);
    world.change(&uuid(n), |_| {});
}

/// Draws the faults and user actions of one second and applies them.
async fn inject_faults(shared: &SharedWorld, dispatchers: &mut [Dispatcher], settings: &Settings) {
    let faults = shared.get().faults.clone();
    let each = |a_minute: f64| a_minute / 60.0;
    if shared.get().draw(each(faults.outages)) {
        let mut world = shared.get();
        let time = world.random_duration(Duration::from_secs(600));
        world.record_event(|| format!("the API is away for {time:?}"));
        world.api_away_until = Instant::now() + time;
    }
    if shared.get().draw(each(faults.storage_faults)) {
        let mut world = shared.get();
        let time = world.random_duration(Duration::from_secs(1200));
        let is_full = world.rng.bool();
        world.record_event(|| format!("the file storage is away for {time:?}, full: {is_full}"));
        world.storage_fault = Some((Instant::now(), Instant::now() + time, is_full));
    }
    if shared.get().draw(each(faults.host_faults)) {
        let mut world = shared.get();
        let time = world.random_duration(Duration::from_secs(300));
        let label = dispatchers[world.rng.usize(..dispatchers.len())].label;
        world.record_event(|| format!("the host of dispatcher {label} cannot submit for {time:?}"));
        let until = Instant::now() + time;
        world.host_broken_until.insert(label, until);
    }
    if shared.get().draw(each(faults.refusals)) {
        let mut world = shared.get();
        let time = world.random_duration(Duration::from_secs(300));
        let often = [0.3, 0.7, 1.0][world.rng.usize(..3)];
        world.record_event(|| format!("the API refuses tokens for {time:?}, {often} of all calls"));
        world.refuses_tokens = (Instant::now() + time, often);
    }
    if shared.get().draw(each(faults.restarts)) {
        let (which, time) = {
            let mut world = shared.get();
            world.tally.restarts += 1;
            let which = world.rng.usize(..dispatchers.len());
            world.record_event(|| format!("dispatcher {which} is killed"));
            (which, world.random_duration(Duration::from_secs(30)))
        };
        dispatchers[which].kill();
        sleep(time).await;
        let other_user = shared.get().draw(faults.other_user);
        if other_user {
            let mut world = shared.get();
            dispatchers[which].user = world.rng.usize(0..3);
            let user = dispatchers[which].user;
            world.record_event(|| format!("dispatcher {which} has a token of user {user}"));
        }
        dispatchers[which].restart(shared, settings);
    }
    if shared.get().draw(each(faults.kills)) {
        kill(shared, dispatchers);
    }
    if shared.get().draw(each(faults.user_actions)) {
        random_user_action(shared, dispatchers);
    }
}

/// A job is lost with its node, or only the scheduler reports so and its executor goes on.
fn kill(shared: &SharedWorld, dispatchers: &[Dispatcher]) {
    let id = {
        let mut world = shared.get();
        world.tally.kills += 1;
        let live = |(id, job): (&u64, &crate::state::Job)| {
            (!matches!(job.phase, JobPhase::Ended(_))).then_some(*id)
        };
        let live: Vec<u64> = world.jobs.iter().filter_map(live).collect();
        if live.is_empty() {
            return;
        }
        let id = live[world.rng.usize(..live.len())];
        let stale = world.rng.bool();
        world.record_event(|| format!("job {id} is lost, its executor goes on: {stale}"));
        if !stale && let Some(executor) = &world.jobs[&id].executor {
            executor.abort();
        }
        id
    };
    end_job(shared, id);
    start_pending_jobs(shared, &dispatchers[0].job_event);
}

/// A random user action: changes the priority of a container, or sets it to 0.
fn random_user_action(shared: &SharedWorld, dispatchers: &[Dispatcher]) {
    let mut world = shared.get();
    let open: Vec<ContainerUuid> = world
        .containers
        .iter()
        .filter(|(_, record)| !record.state.is_final())
        .map(|(uuid, _)| uuid.clone())
        .collect();
    if open.is_empty() {
        return;
    }
    let chosen = open[world.rng.usize(..open.len())].clone();
    let hold = world.rng.bool();
    let priority = match hold {
        true => 0,
        false => world.rng.i64(1..=5) << 50,
    };
    world.record_event(|| format!("{chosen} has priority {priority}"));
    world.change(&chosen, |record| record.priority = priority);
    drop(world);
    dispatchers.iter().for_each(|d| d.api_event.notify_one());
}

fn quiesce(shared: &SharedWorld) {
    let mut world = shared.get();
    world.record_event(|| "calm".into());
    world.faults = Faults::default();
    world.api_away_until = Instant::now();
    world.storage_fault = None;
    world.host_broken_until.clear();
    world.refuses_tokens = (Instant::now(), 0.0);
}

/// Every container is final or on hold, and no job is left.
fn is_settled(shared: &SharedWorld) -> bool {
    let world = shared.get();
    let over = |record: &Record| {
        let on_hold = record.state == ContainerState::Queued && record.priority == 0;
        record.state.is_final() || on_hold || world.is_hidden_lock(record)
    };
    let ended = |job: &crate::state::Job| matches!(job.phase, JobPhase::Ended(_));
    world.containers.values().all(over) && world.jobs.values().all(ended)
}

/// Checks the end state: every container has ended or is on hold, and no job and no token is left.
fn check_end_state(shared: &SharedWorld, settings: &Settings, dispatchers: usize) {
    let mut world = shared.get();
    let mut found = Vec::new();
    for (uuid, record) in &world.containers {
        match record.state {
            ContainerState::Queued if record.priority == 0 => {}
            ContainerState::Complete if record.started != 1 => {
                found.push(format!(
                    "{uuid} is Complete and was started {} times",
                    record.started
                ));
            }
            ContainerState::Complete => {}
            ContainerState::Cancelled if record.error.is_none() && record.started > 0 => {
                found.push(format!("{uuid} was Cancelled without an error"));
            }
            ContainerState::Cancelled => {}
            // Only the former user's token can unlock it.
            ContainerState::Locked if world.is_hidden_lock(record) => {}
            ref other => found.push(format!(
                "{uuid} is still {other} with priority {}",
                record.priority
            )),
        }
    }
    for (id, job) in &world.jobs {
        if !matches!(job.phase, JobPhase::Ended(_)) {
            found.push(format!("job {id} of {} has not ended", job.container));
        }
    }
    let visible = world
        .tokens
        .iter()
        .filter(|(_, token)| !world.is_hidden(token));
    for (uuid, token) in visible {
        found.push(format!(
            "token {uuid} of {:?} is still there",
            token.container
        ));
    }
    // One listing per interval, or per minimum interval while a job is unconfirmed; commands up to
    // the rate limit.
    let time = world.began.elapsed().as_secs_f64();
    let lives = (dispatchers as u64 + world.tally.restarts) as f64;
    let listings = time / 2.0 * dispatchers as f64 + lives;
    let rate = match settings.command_rate {
        CommandRate::PerSecond(rate) => rate,
        CommandRate::Unlimited => f64::INFINITY,
    };
    // Submissions and cancellations have this rate each.
    let commands = 2.0 * (time * rate * dispatchers as f64 + lives * 60.0);
    let tally = world.tally.clone();
    if tally.listings as f64 > listings {
        found.push(format!("{} listings in {time:.0} s", tally.listings));
    }
    if tally.commands as f64 > commands {
        found.push(format!("{} commands in {time:.0} s", tally.commands));
    }
    found.into_iter().for_each(|what| world.violation(what));
}
