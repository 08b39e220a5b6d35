//! A dispatcher that is stopped, out of files, out of time, or gone at a bad moment; and a crunch-run that is stopped.

use std::fs;
use std::path::Path;
use std::time::Duration;

use arvados_client::records::ContainerState;
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::exit_status::says_undelivered;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::batch::Batch;
use crate::lab::Lab;
use crate::place::{Place, everywhere};
use crate::points::Points;
use crate::processes::crunch_run_of;
use crate::stack::{Stack, wait_for};
use crate::starts::Gate;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process stands still.
const STILL: Duration = Duration::from_secs(10);

fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw as i32).unwrap()
}

/// STOP, ten seconds, CONT.
async fn stand_still(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    tokio::time::sleep(STILL).await;
    kill_process(process, Signal::CONT).unwrap();
}

everywhere!(
    a_dispatcher_that_stood_still_goes_on,
    |place: Place| async move {
        let stack = place.stack().await;
        let batch = Batch::submit(&stack, 6, 1.0).await;
        wait_for("a start", PATIENCE, || (batch.started() > 0).then_some(()));
        stand_still(pid(stack.dispatcher.pid().unwrap())).await;
        batch.all_complete_once(&stack).await;
    }
);

// Its container ends meanwhile; nobody takes the silence for its death.
everywhere!(
    a_crunch_run_that_stood_still_goes_on,
    |place: Place| async move {
        let stack = place.stack().await;
        let gate = Gate::closed();
        let batch = Batch::of_one_behind(&gate, &stack).await;
        let container = &batch.jobs[0].1;
        stack
            .wait_until(container, PATIENCE, |c| c.state == ContainerState::Running)
            .await;
        wait_for("its start", PATIENCE, || {
            (batch.started() == 1).then_some(())
        });
        let crunch_run = crunch_run_of(container).unwrap();
        kill_process(crunch_run, Signal::STOP).unwrap();
        gate.open();
        tokio::time::sleep(STILL).await;
        kill_process(crunch_run, Signal::CONT).unwrap();
        batch.all_complete_once(&stack).await;
        assert_eq!(stack.container(container).await.lock_count, 1);
    }
);

fn soft_limit_of_files(process: Pid) -> String {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    line.unwrap().split_whitespace().next().unwrap().to_owned()
}

// No new file or socket for a while: nothing is concluded from what could not be looked at.
everywhere!(
    a_dispatcher_out_of_files_goes_on_when_it_has_some,
    |place: Place| async move {
        let stack = place.stack().await;
        let mut batch = Batch::submit(&stack, 2, 3.0).await;
        wait_for("the starts", PATIENCE, || {
            (batch.started() == 2).then_some(())
        });
        let dispatcher = pid(stack.dispatcher.pid().unwrap());
        let earlier = soft_limit_of_files(dispatcher);
        place.limit_files(dispatcher, "3");
        for _ in 0..3 {
            batch.add(&stack, 0.1).await;
        }
        wait_for("the dispatcher to miss files", PATIENCE, || {
            let said = stack.dispatcher.said();
            said.contains("Too many open files").then_some(())
        });
        // Those that ran end; without files nobody hears of it.
        for (_, container) in &batch.jobs[..2] {
            stack.end(container, PATIENCE).await;
        }
        place.limit_files(dispatcher, &earlier);
        batch.all_complete_once(&stack).await;
    }
);

/// The server is away for longer than crunch-run waits for it; the results are on the disk meanwhile, and delivered when
/// it is back, by nobody's hand.
#[tokio::test(flavor = "multi_thread")]
async fn results_that_could_not_be_delivered_are_delivered_later() {
    let mut stack = Stack::with(|servers, dir| {
        let run = dir.join("run");
        let run = run.to_str().unwrap();
        let args = ["--run-dir", run, "--crunch-run-argument=--deliver-for=1s"];
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    // It must not end before the server is gone.
    let gate = Gate::closed();
    let batch = Batch::of_one_behind(&gate, &stack).await;
    let container = batch.jobs[0].1.clone();
    stack
        .wait_until(&container, PATIENCE, |c| c.state == ContainerState::Running)
        .await;
    wait_for("its start", PATIENCE, || {
        (batch.started() == 1).then_some(())
    });
    stack.api.kill();
    gate.open();
    let exit = stack.run_dir().join(container.as_str()).join("exit");
    wait_for("crunch-run to give up", PATIENCE, || {
        fs::read_to_string(&exit).ok()?.contains("77").then_some(())
    });
    // By these words a dispatcher knows it whose scheduler has forgotten the job.
    let words = AttemptDir::of(&stack.run_dir(), &container).last_words();
    assert!(says_undelivered(&words), "{words}");
    stack.api.start();
    batch.all_complete_once(&stack).await;
    let record = stack.container(&container).await;
    assert_eq!(record.lock_count, 1);
    let status = record.runtime_status;
    assert_eq!((status.warning, status.activity), (None, None));
    wait_for("the directory to go", PATIENCE, || {
        (!exit.parent().unwrap().exists()).then_some(())
    });
}

/// libfaketime's offset for processes that read it from this file.
fn set_clock(file: &Path, offset: &str) {
    let partial = file.with_extension("partial");
    fs::write(&partial, format!("{offset}\n")).unwrap();
    fs::rename(partial, file).unwrap();
}

/// Not on HTCondor: the library cannot be loaded into programs of another C library, as the lab's are.
mod a_clock_that_jumps_an_hour_both_ways_changes_nothing {
    use crate::place::Place;

    #[tokio::test(flavor = "multi_thread")]
    async fn local() {
        super::the_clock_jumps(Place::Local).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slurm() {
        super::the_clock_jumps(Place::slurm()).await;
    }
}

async fn the_clock_jumps(place: Place) {
    let library = Path::new("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1");
    assert!(library.is_file(), "libfaketime is not installed");
    let stack = Stack::with(|servers, dir| {
        let clock = dir.join("clock");
        set_clock(&clock, "+0");
        let env = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ];
        place.dispatcher(servers, dir, &[], &env)
    })
    .await;
    let clock = stack.dir.path().join("clock");
    let mut batch = Batch::submit(&stack, 2, 4.0).await;
    for offset in ["+3600", "-3600", "+0"] {
        let before = batch.started();
        wait_for("a start", PATIENCE, || {
            (batch.started() >= before.max(1)).then_some(())
        });
        set_clock(&clock, offset);
        batch.add(&stack, 0.5).await;
        // Log lines carry the dispatcher's own time: it does see the jump.
        let said = stack.dispatcher.said().lines().count();
        wait_for("a line after the jump", PATIENCE, || {
            (stack.dispatcher.said().lines().count() > said).then_some(())
        });
    }
    batch.all_complete_once(&stack).await;
    let hours = |line: &str| line.get(11..13).and_then(|hour| hour.parse::<u32>().ok());
    let said = stack.dispatcher.said();
    let seen: std::collections::BTreeSet<u32> = said.lines().filter_map(hours).collect();
    assert!(seen.len() >= 3, "the clock did not jump: {seen:?}");
}

// The request for the lock waits in the server while the dispatcher dies and comes back; then it is granted.
everywhere!(
    a_lock_granted_after_the_dispatcher_died_is_not_lost,
    |place: Place| async move {
        let mut stack = place.stack().await;
        let points = Points::of(&stack.points_dir());
        let waiting = |points: &Points| {
            let passed = points.passed();
            let locks = passed.iter().filter(|p| p.point == "api.lock.accepted");
            locks.count()
        };
        points.hold("api.lock.accepted");
        let batch = Batch::submit(&stack, 1, 0.2).await;
        wait_for("the request", PATIENCE, || {
            (waiting(&points) == 1).then_some(())
        });
        stack.dispatcher.kill();
        stack.dispatcher.start();
        // The new one knows of no lock and asks for one of its own.
        wait_for("the second request", PATIENCE, || {
            (waiting(&points) >= 2).then_some(())
        });
        points.release("api.lock.accepted");
        batch.all_complete_once(&stack).await;
    }
);

/// As before, and the next life would not start the container itself: the lock is not left to a token that is ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_granted_after_the_dispatcher_died_is_given_back() {
    let mut narrow = None;
    let mut stack = Stack::with(|servers, dir| {
        let run = dir.join("run");
        let args = ["--run-dir", run.to_str().unwrap()];
        let small = ["--run-dir", run.to_str().unwrap(), "--cpus", "1"];
        narrow = Some(servers.dispatcher("dispatch-local", &small, &[]));
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    let points = Points::of(&stack.points_dir());
    points.hold("api.lock.accepted");
    let two = json!({"runtime_constraints": {"vcpus": 2, "ram": 16 << 20}});
    let (_, container) = stack.submit("wide", "true", two).await;
    let asked = |points: &Points| {
        let passed = points.passed();
        passed.iter().any(|p| p.point == "api.lock.accepted")
    };
    wait_for("the request", PATIENCE, || asked(&points).then_some(()));
    stack.dispatcher.kill();
    let mut narrow = narrow.unwrap();
    narrow.start();
    wait_for("the next life to look", PATIENCE, || {
        narrow.said().contains("not run now").then_some(())
    });
    // The request takes so much longer.
    tokio::time::sleep(Duration::from_secs(3)).await;
    points.release("api.lock.accepted");
    stack
        .wait_until(&container, PATIENCE, |c| {
            c.lock_count == 1 && c.state == ContainerState::Queued
        })
        .await;
}

/// Jobs of a real Slurm whose executor only sleeps: the drain must not touch them, and the next life takes them up.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_live_jobs_outlive_a_term() {
    const JOBS: usize = 200;
    let more = ["-n", "1", "-c", "256", "-m", "16000", "-N"];
    let lab = Lab::up("slurm", &more);
    let mut stack = Stack::with(|servers, dir| {
        let shared = dir.join("shared");
        let args = [
            "--shared-dir",
            shared.to_str().unwrap(),
            "--crunch-run",
            "/bin/sh -c 'exec sleep 1000' crunch-run",
            "--max-pending",
            "1000",
        ];
        let slurm_conf = lab.variable("SLURM_CONF");
        servers.dispatcher("dispatch-slurm", &args, &[("SLURM_CONF", slurm_conf)])
    })
    .await;
    let mut containers = Vec::new();
    for n in 0..JOBS {
        let small = json!({"runtime_constraints": {"vcpus": 1, "ram": 1 << 20}});
        containers.push(stack.submit(&format!("n{n}"), "true", small).await.1);
    }
    let jobs = || {
        let listed = lab.ask("squeue", &["--noheader", "--format=%i %j"]);
        let mut jobs: Vec<String> = listed.lines().map(str::to_owned).collect();
        jobs.sort();
        jobs
    };
    // The last elements of an array have no name for a moment.
    let named = |jobs: &Vec<String>| jobs.iter().filter(|job| job.contains("-dz642-")).count();
    let live = wait_for("all jobs", Duration::from_secs(180), || {
        Some(jobs()).filter(|jobs| named(jobs) == JOBS)
    });
    let status = stack.dispatcher.terminate(PATIENCE);
    assert!(status.success(), "{status}");
    assert_eq!(jobs(), live);
    let said = stack.dispatcher.said().lines().count();
    stack.dispatcher.start();
    wait_for("two looks of the next life", PATIENCE, || {
        let found = format!("tokens={JOBS}");
        let all = stack.dispatcher.said();
        all.lines()
            .skip(said)
            .any(|l| l.contains(&found))
            .then_some(())
    });
    let last = stack.submit("last", "true", json!({})).await.1;
    stack
        .wait_until(&last, PATIENCE, |c| c.state == ContainerState::Locked)
        .await;
    wait_for("the job of the next life", PATIENCE, || {
        (jobs().len() == JOBS + 1).then_some(())
    });
    for container in &containers {
        let record = stack.container(container).await;
        assert_eq!(record.state, ContainerState::Locked, "{record:?}");
        assert_eq!(record.lock_count, 1, "{record:?}");
    }
}
