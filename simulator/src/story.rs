//! One seed: a storm with dispatchers, users and faults, then calm; and what must hold when it is calm again.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use dispatch_core::{Engine, Health, Settings};
use fastrand::Rng;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::SimApi;
use crate::cluster::{Cluster, end, fill};
use crate::faults::{Broken, Faults};
use crate::world::{JobPhase, Record, Shared, Tally, World};

/// After the storm everything must have settled by then.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Then tokens nobody uses must go: they are looked for every ten minutes and kept for two.
const TIDYING: Duration = Duration::from_secs(1500);
/// How many containers most seeds have, at most; every [`LARGE`]th has [`MANY`].
const FEW: usize = 200;
/// See [`FEW`].
const LARGE: u64 = 100;
/// See [`FEW`].
const MANY: usize = 10_000;

/// How to run a seed.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How many containers; none: as the seed wants.
    pub containers: Option<usize>,
    /// A rule to break.
    pub broken: Option<Broken>,
    /// Print all that happens.
    pub trace: bool,
    /// Nothing goes wrong, and the server is a real Arvados: it takes no many in one call.
    pub plain: bool,
}

/// What came of a seed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What must not happen and did.
    pub violations: Vec<String>,
    /// All that happened, in one number: the same seed gives the same.
    pub digest: u64,
    /// How many containers there were.
    pub containers: usize,
    /// What was counted.
    pub tally: Tally,
    /// Simulated time.
    pub elapsed: Duration,
    /// Time between two looks when nothing happens.
    pub poll_interval: Duration,
    /// How many dispatchers there were.
    pub dispatchers: usize,
}

/// Runs one seed in this thread.
pub fn run(seed: u64, options: &Options) -> Outcome {
    // Names that the engine draws come from here.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(story(seed, options))
}

/// A dispatcher that is killed and started again.
struct Dispatcher {
    label: usize,
    /// Whose token it has.
    user: usize,
    wake: Arc<Notify>,
    ring: Arc<Notify>,
    life: JoinHandle<()>,
}

impl Dispatcher {
    fn start(world: &Shared, label: usize, user: usize, settings: &Settings) -> Self {
        let (wake, ring): (Arc<Notify>, Arc<Notify>) = Default::default();
        let life = live(world, label, user, settings, &wake, &ring);
        Self {
            label,
            user,
            wake,
            ring,
            life,
        }
    }

    fn kill(&self) {
        self.life.abort();
    }

    fn restart(&mut self, world: &Shared, settings: &Settings) {
        self.life = live(
            world, self.label, self.user, settings, &self.wake, &self.ring,
        );
    }
}

fn live(
    world: &Shared,
    label: usize,
    user: usize,
    settings: &Settings,
    wake: &Arc<Notify>,
    ring: &Arc<Notify>,
) -> JoinHandle<()> {
    let api = SimApi::new(world.clone(), user, wake.clone());
    let cluster = Cluster::new(world.clone(), label, ring.clone());
    let settings = Settings {
        label: format!("d{label}"),
        ..settings.clone()
    };
    let health = Health::new(Duration::from_secs(60), None);
    let engine = Engine::new(api, cluster, settings, health, None);
    tokio::spawn(async move {
        let _ = engine.run(CancellationToken::new()).await;
    })
}

async fn story(seed: u64, options: &Options) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let count = options.containers.unwrap_or(match seed % LARGE {
        0 => MANY,
        _ => rng.usize(1..=FEW),
    });
    let storm = Duration::from_secs(rng.u64(600..=3600));
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
    let mut world = World::new(rng, options.broken, options.trace);
    world.slots = slots;
    if options.plain {
        world.faults = Faults::default();
        world.bulk = 1;
    }
    let world = Shared::new(world);
    let mut dispatchers = vec![Dispatcher::start(&world, 0, users[0], &settings)];
    if two {
        dispatchers.push(Dispatcher::start(&world, 1, users[1], &settings));
    }
    let mut made = 0;
    let mut next = Instant::now();
    let calm_at = Instant::now() + storm;
    while Instant::now() < calm_at {
        if made < count && Instant::now() >= next {
            // Many at once, then some now and then.
            let batch = match made {
                0 => count.div_ceil(2),
                _ => (count / 20).max(1).min(count - made),
            };
            for n in made..made + batch {
                add(&world, n, work);
            }
            made += batch;
            dispatchers.iter().for_each(|d| d.wake.notify_one());
            next = Instant::now() + storm / 25;
        }
        sleep(Duration::from_secs(1)).await;
        mischief(&world, &mut dispatchers, &settings).await;
    }
    calm(&world);
    let before = Instant::now();
    while !is_settled(&world) && before.elapsed() < PATIENCE {
        sleep(Duration::from_secs(10)).await;
    }
    sleep(TIDYING).await;
    judge(&world, &settings, dispatchers.len());
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

fn add(shared: &Shared, n: usize, work: Duration) {
    let mut world = shared.get();
    let work = world.upto(work);
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
    };
    world.containers.insert(uuid(n), record);
    world.change(&uuid(n), |_| {});
}

/// What happens in one second besides what dispatchers and executors do.
async fn mischief(shared: &Shared, dispatchers: &mut [Dispatcher], settings: &Settings) {
    let faults = shared.get().faults.clone();
    let each = |a_minute: f64| a_minute / 60.0;
    if shared.get().happens(each(faults.outages)) {
        let mut world = shared.get();
        let time = world.upto(Duration::from_secs(600));
        world.note(|| format!("the API is away for {time:?}"));
        world.api_away_until = Instant::now() + time;
    }
    if shared.get().happens(each(faults.refusals)) {
        let mut world = shared.get();
        let time = world.upto(Duration::from_secs(300));
        let often = [0.3, 0.7, 1.0][world.rng.usize(..3)];
        world.note(|| format!("the API refuses tokens for {time:?}, {often} of all calls"));
        world.refuses_tokens = (Instant::now() + time, often);
    }
    if shared.get().happens(each(faults.restarts)) {
        let (which, time) = {
            let mut world = shared.get();
            world.tally.restarts += 1;
            let which = world.rng.usize(..dispatchers.len());
            world.note(|| format!("dispatcher {which} is killed"));
            (which, world.upto(Duration::from_secs(30)))
        };
        dispatchers[which].kill();
        sleep(time).await;
        dispatchers[which].restart(shared, settings);
    }
    if shared.get().happens(each(faults.kills)) {
        kill(shared, dispatchers);
    }
    if shared.get().happens(each(faults.whims)) {
        whim(shared, dispatchers);
    }
}

/// A job is lost with its node; or the scheduler only thinks so, and its executor goes on.
fn kill(shared: &Shared, dispatchers: &[Dispatcher]) {
    let id = {
        let mut world = shared.get();
        world.tally.kills += 1;
        let live = |(id, job): (&u64, &crate::world::Job)| {
            (!matches!(job.phase, JobPhase::Ended(_))).then_some(*id)
        };
        let live: Vec<u64> = world.jobs.iter().filter_map(live).collect();
        if live.is_empty() {
            return;
        }
        let id = live[world.rng.usize(..live.len())];
        let stale = world.rng.bool();
        world.note(|| format!("job {id} is lost, its executor goes on: {stale}"));
        if !stale && let Some(executor) = &world.jobs[&id].executor {
            executor.abort();
        }
        id
    };
    end(shared, id);
    fill(shared, &dispatchers[0].ring);
}

/// A user changes her mind about a container.
fn whim(shared: &Shared, dispatchers: &[Dispatcher]) {
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
    world.note(|| format!("{chosen} has priority {priority}"));
    world.change(&chosen, |record| record.priority = priority);
    drop(world);
    dispatchers.iter().for_each(|d| d.wake.notify_one());
}

fn calm(shared: &Shared) {
    let mut world = shared.get();
    world.note(|| "calm".into());
    world.faults = Faults::default();
    world.api_away_until = Instant::now();
    world.refuses_tokens = (Instant::now(), 0.0);
}

/// Every container is final or on hold, and no job is left.
fn is_settled(shared: &Shared) -> bool {
    let world = shared.get();
    let over = |record: &Record| {
        let on_hold = record.state == ContainerState::Queued && record.priority == 0;
        record.state.is_final() || on_hold
    };
    let ended = |job: &crate::world::Job| matches!(job.phase, JobPhase::Ended(_));
    world.containers.values().all(over) && world.jobs.values().all(ended)
}

/// What must hold in the end.
fn judge(shared: &Shared, settings: &Settings, dispatchers: usize) {
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
                found.push(format!("{uuid} was Cancelled without a word"));
            }
            ContainerState::Cancelled => {}
            ref other => found.push(format!(
                "{uuid} is still {other} with priority {}",
                record.priority
            )),
        }
    }
    for (id, job) in &world.jobs {
        if !matches!(job.phase, JobPhase::Ended(_)) {
            found.push(format!("job {id} of {} is still there", job.container));
        }
    }
    for (uuid, token) in &world.tokens {
        found.push(format!(
            "token {uuid} of {:?} is still there",
            token.container
        ));
    }
    // One listing each interval, or each gap while something is to be confirmed; commands by the bucket.
    let time = world.began.elapsed().as_secs_f64();
    let lives = (dispatchers as u64 + world.tally.restarts) as f64;
    let listings = time / 2.0 * dispatchers as f64 + lives;
    let commands = time * settings.commands_per_second * dispatchers as f64 + lives * 60.0;
    let tally = world.tally.clone();
    if tally.listings as f64 > listings {
        found.push(format!("{} listings in {time:.0} s", tally.listings));
    }
    if tally.commands as f64 > commands {
        found.push(format!("{} commands in {time:.0} s", tally.commands));
    }
    found.into_iter().for_each(|what| world.violation(what));
}
