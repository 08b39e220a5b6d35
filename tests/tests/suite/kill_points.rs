//! `kill -9` at every named step of every program, again and again: no container is lost, and none runs twice.
//!
//! `KILL_ROUNDS=n` for more rounds than the usual ones, `KILL_SEED=n` to repeat a run.

mod scene;
mod tables;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use crate::condor_lab::Pool;
use crate::lab::Lab;
use crate::points::Points;
use crate::program::{Program, binary};
use crate::stack::{Stack, client, wait_for};
use scene::{Scene, Victim};
use tables::{API, API_FIRST_START, COMMAND, DISPATCHER, EXECUTOR, LOCAL, Point, WORKER, all};

/// Rounds of each loop under `make test`, over all its stacks.
const ROUNDS: usize = 20;
/// A real Slurm or HTCondor takes longer over each job.
const SCHEDULER_ROUNDS: usize = 4;
/// Points of one round.
const EACH: usize = 3;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}

fn rounds(usual: usize) -> usize {
    number("KILL_ROUNDS").map_or(usual, |n| n as usize)
}

fn seed() -> u64 {
    let seed = number("KILL_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("to repeat this: KILL_SEED={seed}");
    seed
}

/// Each point is as often a part of a round as any other.
fn deal(points: &[Point], rounds: usize, random: &mut fastrand::Rng) -> Vec<Vec<Point>> {
    let mut deck: Vec<Point> = Vec::new();
    let mut hands = Vec::new();
    for _ in 0..rounds {
        let mut hand: Vec<Point> = Vec::new();
        while hand.len() < EACH {
            if deck.is_empty() {
                deck.extend(points);
                random.shuffle(&mut deck);
            }
            let next = deck.swap_remove(0);
            if hand.iter().all(|point| point.name != next.name) {
                hand.push(next);
            }
        }
        hands.push(hand);
    }
    hands
}

/// The rounds, dealt out to the scenes, which play at the same time: much of each is waiting.
async fn survive(scenes: Vec<Scene>, victim: Victim, points: &[Point], rounds: usize) {
    let mut random = fastrand::Rng::with_seed(seed());
    let hands = deal(points, rounds, &mut random);
    let share = hands.len().div_ceil(scenes.len());
    let mut playing = JoinSet::new();
    for (mut scene, hands) in scenes.into_iter().zip(hands.chunks(share)) {
        let (hands, mut random) = (hands.to_vec(), random.fork());
        playing.spawn(async move {
            for (round, hand) in hands.iter().enumerate() {
                scene.round(round, victim, hand, &mut random).await;
            }
            scene.ends_clean(victim).await;
        });
    }
    while let Some(played) = playing.join_next().await {
        if let Err(error) = played {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

async fn local() -> Scene {
    let stack = Stack::with(|servers, dir| {
        let run = dir.join("run");
        let run = run.to_str().unwrap();
        let args = ["--run-dir", run, "--poll-interval", "200ms"];
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    let run = stack.run_dir();
    let places = vec![run.join("scratch"), run.clone()];
    Scene::new(stack, "crunch-run was killed", places)
        .with_cache(run.join("cache"))
        .with_deliveries()
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_local_is_killed_at_every_step() {
    let points = [DISPATCHER, LOCAL].concat();
    let scenes = vec![local().await, local().await];
    survive(scenes, Victim::Dispatcher, &points, rounds(ROUNDS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crunch_run_is_killed_at_every_step() {
    let points = [EXECUTOR, WORKER].concat();
    let scenes = vec![local().await, local().await];
    survive(scenes, Victim::Executor, &points, rounds(ROUNDS)).await;
}

/// Clients wait before they ask a server again that was gone, so these rounds take longest.
#[tokio::test(flavor = "multi_thread")]
async fn dispatch_api_is_killed_at_every_step() {
    let scenes = vec![local().await, local().await];
    survive(scenes, Victim::Api, API, rounds(ROUNDS)).await;
}

async fn slurm(lab: &Lab) -> Scene {
    let (crunch_run, slurm_conf) = (binary("crunch-run"), lab.variable("SLURM_CONF"));
    let stack = Stack::with(|servers, dir| {
        let (shared, tmp) = (dir.join("shared"), dir.join("tmp"));
        fs::create_dir(&tmp).unwrap();
        // A crunch-run that is killed in the foreground leaves its directory there.
        let crunch_run = format!("env TMPDIR={} {}", tmp.display(), crunch_run.display());
        let shared = shared.to_str().unwrap();
        let mut args = vec!["--shared-dir", shared, "--crunch-run", &crunch_run];
        args.extend(["--poll-interval", "500ms"]);
        servers.dispatcher("dispatch-slurm", &args, &[("SLURM_CONF", slurm_conf)])
    })
    .await;
    let shared = stack.dir.path().join("shared");
    Scene::new(stack, "Slurm job", vec![shared])
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_slurm_is_killed_at_every_step() {
    let lab = Lab::up("slurm", &["-n", "1", "-c", "4", "-m", "4000", "-N"]);
    let points = [DISPATCHER, COMMAND].concat();
    let scenes = vec![slurm(&lab).await];
    survive(
        scenes,
        Victim::Dispatcher,
        &points,
        rounds(SCHEDULER_ROUNDS),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crunch_run_is_killed_at_every_step_as_a_slurm_job() {
    let lab = Lab::up("slurm", &["-n", "1", "-c", "4", "-m", "4000", "-N"]);
    let scenes = vec![slurm(&lab).await];
    survive(scenes, Victim::Executor, EXECUTOR, rounds(SCHEDULER_ROUNDS)).await;
}

async fn condor(pool: &Pool) -> Scene {
    let stack = pool.stack(&["--poll-interval", "500ms"]).await;
    let jobs = stack.dir.path().join("jobs");
    Scene::new(stack, "killed by signal 9", vec![jobs])
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_condor_is_killed_at_every_step() {
    let pool = Pool::up(&["--slots", "4"]);
    let scenes = vec![condor(&pool).await];
    survive(
        scenes,
        Victim::Dispatcher,
        &[DISPATCHER, COMMAND].concat(),
        rounds(SCHEDULER_ROUNDS),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crunch_run_is_killed_at_every_step_as_a_condor_job() {
    let pool = Pool::up(&["--slots", "4"]);
    let scenes = vec![condor(&pool).await];
    survive(scenes, Victim::Executor, EXECUTOR, rounds(SCHEDULER_ROUNDS)).await;
}

/// Whatever of its state is there and whatever is not yet, the next start makes it whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_its_first_start_comes_up() {
    for point in API_FIRST_START {
        let dir = tempfile::tempdir().unwrap();
        let (state, place) = (dir.path().join("state"), dir.path().join("points"));
        fs::create_dir(&place).unwrap();
        let points = Points::of(&place);
        points.arm(point.name, 1);
        let args = ["--state", state.to_str().unwrap()];
        let env = [(fail_points::VARIABLE, place.to_str().unwrap())];
        let mut api = Program::new("dispatch-api", &dir.path().join("api"), &args, &env);
        api.start();
        let patience = Duration::from_secs(90);
        let status = wait_for(point.name, patience, || api.has_ended());
        assert_eq!(status.signal(), Some(9), "{}: {}", point.name, api.said());
        api.start();
        let ready: Value = wait_for("it to be ready", patience, || {
            serde_json::from_str(api.answered().lines().next()?).ok()
        });
        for who in ["root", "user", "dispatch"] {
            let user = client(&ready, who).current_user().await;
            assert!(user.is_ok(), "{who} after {}: {user:?}", point.name);
        }
    }
}

/// A point that is added without a round to it would prove nothing.
#[test]
fn every_point_in_the_programs_has_its_rounds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let aside = ["target", "tests", "fail-points", ".git"];
            if path.is_dir() && !aside.iter().any(|dir| name == *dir) {
                open.push(path);
            } else if name.to_string_lossy().ends_with(".rs") {
                let text = fs::read_to_string(path).unwrap();
                let points = text.split("fail_point(\"").skip(1);
                found.extend(points.map(|rest| rest.split('"').next().unwrap().to_owned()));
            }
        }
    }
    let rounds: BTreeSet<String> = all().map(|point| point.name.to_owned()).collect();
    assert_eq!(found, rounds);
}
