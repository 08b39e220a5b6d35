//! `kill -9` at every fail point of every program, repeatedly: no container is lost, and none runs
//! twice.
//!
//! `KILL_ROUNDS=n` for more rounds than the usual ones, `KILL_SEED=n` to repeat a run.

mod checks;
mod rounds;
mod tables;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use suite_tests::STEP_TIMEOUT;

use serde_json::Value;
use tokio::task::JoinSet;

use rounds::{KillTarget, Victim};
use suite_tests::condor_lab::Pool;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::lab::Lab;
use suite_tests::program::{Program, binary};
use suite_tests::stack::{Stack, client, wait_for};
use tables::{API, API_FIRST_START, COMMAND, DISPATCHER, EXECUTOR, LOCAL, Point, WORKER, all};

/// Number of rounds of each loop under `make test`, over all its stacks.
const ROUNDS: usize = 20;
/// Number of rounds on a real Slurm or HTCondor, which takes longer for each job.
const SCHEDULER_ROUNDS: usize = 4;
/// Number of fail points per round.
const POINTS_PER_ROUND: usize = 3;

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

/// Each point is part of about as many rounds as any other.
fn deal(points: &[Point], rounds: usize, random: &mut fastrand::Rng) -> Vec<Vec<Point>> {
    let mut deck: Vec<Point> = Vec::new();
    let mut picked = Vec::new();
    for _ in 0..rounds {
        let mut hand: Vec<Point> = Vec::new();
        while hand.len() < POINTS_PER_ROUND {
            if deck.is_empty() {
                deck.extend(points);
                random.shuffle(&mut deck);
            }
            let next = deck.swap_remove(0);
            if hand.iter().all(|point| point.name != next.name) {
                hand.push(next);
            }
        }
        picked.push(hand);
    }
    picked
}

/// The rounds, dealt out to the targets, which play at the same time: much of each is waiting.
async fn survive(targets: Vec<KillTarget>, victim: Victim, points: &[Point], rounds: usize) {
    let mut random = fastrand::Rng::with_seed(seed());
    let picked = deal(points, rounds, &mut random);
    let share = picked.len().div_ceil(targets.len());
    let mut playing = JoinSet::new();
    for (mut target, picked) in targets.into_iter().zip(picked.chunks(share)) {
        let (picked, mut random) = (picked.to_vec(), random.fork());
        playing.spawn(async move {
            for (round, hand) in picked.iter().enumerate() {
                target.round(round, victim, hand, &mut random).await;
            }
            target.finish_clean(victim).await;
        });
    }
    while let Some(played) = playing.join_next().await {
        if let Err(error) = played {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

async fn local() -> KillTarget {
    let stack = Stack::with(|servers, dir| {
        let run = dir.join("run");
        let run = run.to_str().unwrap();
        let args = ["--state-dir", run, "--poll-interval", "200ms"];
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    let run = stack.dispatcher_state_dir();
    let dirs = vec![run.join("scratch"), run.clone()];
    KillTarget::new(stack, "crunch-run was killed", dirs)
        .with_cache(run.join("cache"))
        .with_deliveries()
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_local_is_killed_at_every_step() {
    let points = [DISPATCHER, LOCAL].concat();
    let targets = vec![local().await, local().await];
    survive(targets, Victim::Dispatcher, &points, rounds(ROUNDS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crunch_run_is_killed_at_every_step() {
    let points = [EXECUTOR, WORKER].concat();
    let targets = vec![local().await, local().await];
    survive(targets, Victim::Executor, &points, rounds(ROUNDS)).await;
}

/// These rounds take longest, because clients back off while the server is down.
#[tokio::test(flavor = "multi_thread")]
async fn dispatch_api_is_killed_at_every_step() {
    let targets = vec![local().await, local().await];
    survive(targets, Victim::Api, API, rounds(ROUNDS)).await;
}

async fn slurm(lab: &Lab) -> KillTarget {
    let (crunch_run, slurm_conf) = (binary("crunch-run"), lab.variable("SLURM_CONF"));
    let stack = Stack::with(|servers, dir| {
        let (shared, tmp) = (dir.join("shared"), dir.join("tmp"));
        fs::create_dir(&tmp).unwrap();
        // A crunch-run that is killed in the foreground leaves its directory there.
        let crunch_run = format!("env TMPDIR={} {}", tmp.display(), crunch_run.display());
        let shared = shared.to_str().unwrap();
        let mut args = vec!["--state-dir", shared, "--crunch-run", &crunch_run];
        args.extend(["--poll-interval", "500ms"]);
        servers.dispatcher("dispatch-slurm", &args, &[("SLURM_CONF", slurm_conf)])
    })
    .await;
    let shared = stack.dir.path().join("shared");
    KillTarget::new(stack, "Slurm job", vec![shared])
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_slurm_is_killed_at_every_step() {
    let lab = Lab::up("slurm", &["-n", "1", "-c", "4", "-m", "4000", "-N"]);
    let points = [DISPATCHER, COMMAND].concat();
    let targets = vec![slurm(&lab).await];
    survive(
        targets,
        Victim::Dispatcher,
        &points,
        rounds(SCHEDULER_ROUNDS),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crunch_run_is_killed_at_every_step_as_a_slurm_job() {
    let lab = Lab::up("slurm", &["-n", "1", "-c", "4", "-m", "4000", "-N"]);
    let targets = vec![slurm(&lab).await];
    survive(
        targets,
        Victim::Executor,
        EXECUTOR,
        rounds(SCHEDULER_ROUNDS),
    )
    .await;
}

async fn condor(pool: &Pool) -> KillTarget {
    let stack = pool.stack(&["--poll-interval", "500ms"]).await;
    let jobs = stack.dir.path().join("jobs");
    KillTarget::new(stack, "killed by signal 9", vec![jobs])
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_condor_is_killed_at_every_step() {
    let pool = Pool::up(&["--slots", "4"]);
    let targets = vec![condor(&pool).await];
    survive(
        targets,
        Victim::Dispatcher,
        &[DISPATCHER, COMMAND].concat(),
        rounds(SCHEDULER_ROUNDS),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crunch_run_is_killed_at_every_step_as_a_condor_job() {
    let pool = Pool::up(&["--slots", "4"]);
    let targets = vec![condor(&pool).await];
    survive(
        targets,
        Victim::Executor,
        EXECUTOR,
        rounds(SCHEDULER_ROUNDS),
    )
    .await;
}

/// The next start completes a state directory that was only partly created.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_its_first_start_comes_up() {
    for point in API_FIRST_START {
        let dir = tempfile::tempdir().unwrap();
        let (state, points_dir) = (dir.path().join("state"), dir.path().join("points"));
        fs::create_dir(&points_dir).unwrap();
        let points = FailPointDir::of(&points_dir);
        points.arm(point.name, 1);
        let args = ["--state-dir", state.to_str().unwrap()];
        let env = [(fail_points::VARIABLE, points_dir.to_str().unwrap())];
        let mut api = Program::new("dispatch-api", &dir.path().join("api"), &args, &env);
        api.start();
        let status = wait_for(point.name, STEP_TIMEOUT, || api.has_ended());
        assert_eq!(
            status.signal(),
            Some(9),
            "{}: {}",
            point.name,
            api.log_text()
        );
        api.start();
        let ready: Value = wait_for("dispatch-api to be ready", STEP_TIMEOUT, || {
            serde_json::from_str(api.stdout_text().lines().next()?).ok()
        });
        for who in ["root", "user", "dispatch"] {
            let user = client(&ready, who).current_user().await;
            assert!(user.is_ok(), "{who} after {}: {user:?}", point.name);
        }
    }
}

/// Points without a round. Two programs reach the first, so no round can tell which one is killed
/// there; the attack on removal kills dispatch-local at it: `security::deletion`. At the second, a
/// dispatcher has done nothing yet. No container runs at the others: the tests of `dispatch-api`
/// kill it there.
const POINTS_WITHOUT_ROUND: [&str; 11] = [
    "trash.removing",
    "dispatcher.started",
    "api.garbage.marked",
    "api.garbage.removed",
    "api.follow-up.before-commit",
    "api.backup.database-copied",
    "api.backup.before-rename",
    "api.backup.after-rename",
    "api.restore.begun",
    "api.restore.files-copied",
    "api.restore.before-end",
];

/// Every fail point must be part of a round.
#[test]
fn every_point_in_the_programs_has_its_rounds() {
    let root = suite_tests::workspace();
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
    let mut rounds: BTreeSet<String> = all().map(|point| point.name.to_owned()).collect();
    rounds.extend(POINTS_WITHOUT_ROUND.map(str::to_owned));
    assert_eq!(found, rounds);
}
