//! Faults of processes: a dispatcher or crunch-run that is stopped, a dispatcher without file
//! descriptors, a clock that jumps, a crash between lock and record.

use std::fs;
use std::path::Path;
use std::time::Duration;

use arvados_client::records::ContainerState;
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::backend::{Backend, on_every_backend};
use crate::batch::Batch;
use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::lab::Lab;
use suite_tests::processes::{crunch_run_of, is_gone};
use suite_tests::stack::{Stack, complete, wait_for};
use suite_tests::start_log::Gate;

/// Duration for which a process is stopped by SIGSTOP.
const STOPPED_TIME: Duration = Duration::from_secs(10);

fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw as i32).unwrap()
}

/// STOP, ten seconds, CONT.
async fn stop_for_a_while(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    tokio::time::sleep(STOPPED_TIME).await;
    kill_process(process, Signal::CONT).unwrap();
}

async fn a_dispatcher_that_stood_still_goes_on(backend: Backend) {
    let stack = backend.stack().await;
    let batch = Batch::submit(&stack, 6, 1.0).await;
    wait_for("a start", STEP_TIMEOUT, || {
        (batch.started() > 0).then_some(())
    });
    stop_for_a_while(pid(stack.dispatcher.pid().unwrap())).await;
    batch.all_complete_once(&stack).await;
}
on_every_backend!(a_dispatcher_that_stood_still_goes_on);

/// Many services read their configuration again on SIGHUP; a dispatcher says that it does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_says_that_sighup_changes_nothing() {
    let stack = Stack::up().await;
    kill_process(pid(stack.dispatcher.pid().unwrap()), Signal::HUP).unwrap();
    let told = "flags and the configuration file are read only at the start";
    wait_for("the log line", STEP_TIMEOUT, || {
        stack.dispatcher.log_contains(told).then_some(())
    });
    let (_, container) = stack.submit("after", "true", json!({})).await;
    complete(&stack.end(&container, STEP_TIMEOUT).await);
}

/// The container ends while crunch-run is stopped. The stopped crunch-run does not count as dead.
async fn a_crunch_run_that_stood_still_goes_on(backend: Backend) {
    let stack = backend.stack().await;
    let gate = Gate::closed();
    let batch = Batch::of_one_behind(&gate, &stack).await;
    let container = &batch.jobs[0].1;
    stack
        .wait_until(container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;
    wait_for("the container's start", STEP_TIMEOUT, || {
        (batch.started() == 1).then_some(())
    });
    let crunch_run = crunch_run_of(container).unwrap();
    kill_process(crunch_run, Signal::STOP).unwrap();
    gate.open();
    tokio::time::sleep(STOPPED_TIME).await;
    kill_process(crunch_run, Signal::CONT).unwrap();
    batch.all_complete_once(&stack).await;
    assert_eq!(stack.container(container).await.lock_count, 1);
}
on_every_backend!(a_crunch_run_that_stood_still_goes_on);

fn soft_limit_of_files(process: Pid) -> String {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    line.unwrap().split_whitespace().next().unwrap().to_owned()
}

/// The dispatcher cannot open files or sockets for a while: it concludes nothing from failed reads.
async fn a_dispatcher_out_of_files_goes_on_when_it_has_some(backend: Backend) {
    let stack = backend.stack().await;
    let mut batch = Batch::submit(&stack, 2, 3.0).await;
    wait_for("the starts", STEP_TIMEOUT, || {
        (batch.started() == 2).then_some(())
    });
    let dispatcher = pid(stack.dispatcher.pid().unwrap());
    let earlier = soft_limit_of_files(dispatcher);
    backend.limit_files(dispatcher, "3");
    for _ in 0..3 {
        batch.add(&stack, 0.1).await;
    }
    wait_for("the dispatcher to miss files", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains("Too many open files").then_some(())
    });
    // The running containers end; without file descriptors the dispatcher does not notice.
    for (_, container) in &batch.jobs[..2] {
        stack.end(container, STEP_TIMEOUT).await;
    }
    backend.limit_files(dispatcher, &earlier);
    batch.all_complete_once(&stack).await;
}
on_every_backend!(a_dispatcher_out_of_files_goes_on_when_it_has_some);

/// The server is down for longer than crunch-run retries. The results stay on the disk, and are
/// delivered without a person's help when the server is back.
#[tokio::test(flavor = "multi_thread")]
async fn results_that_could_not_be_delivered_are_delivered_later() {
    let mut stack = Stack::with(|servers, dir| {
        let run = dir.join("run");
        let run = run.to_str().unwrap();
        let args = [
            "--state-dir",
            run,
            "--crunch-run-argument=--delivery-timeout=1s",
        ];
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    // The container must not end before the server is down.
    let gate = Gate::closed();
    let batch = Batch::of_one_behind(&gate, &stack).await;
    let container = batch.jobs[0].1.clone();
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;
    wait_for("the container's start", STEP_TIMEOUT, || {
        (batch.started() == 1).then_some(())
    });
    stack.api.kill();
    gate.open();
    let exit = stack
        .dispatcher_state_dir()
        .join(container.as_str())
        .join("exit");
    wait_for("crunch-run to give up", STEP_TIMEOUT, || {
        fs::read_to_string(&exit).ok()?.contains("77").then_some(())
    });
    // A dispatcher whose scheduler has forgotten the job reads it in the status line.
    let tail = AttemptDir::of(&stack.dispatcher_state_dir(), &container).output_tail();
    assert!(tail.is_undelivered(), "{tail:?}");
    stack.api.start();
    batch.all_complete_once(&stack).await;
    let record = stack.container(&container).await;
    assert_eq!(record.lock_count, 1);
    let status = record.runtime_status;
    assert_eq!((status.warning, status.activity), (None, None));
    wait_for("the directory to go", STEP_TIMEOUT, || {
        (!exit.parent().unwrap().exists()).then_some(())
    });
}

/// The dispatcher and the server are gone for good. crunch-run tries to deliver the results, and
/// holds nothing of the machine meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_only_delivers_holds_no_cpus() {
    let mut stack = Stack::with(|servers, dir| {
        let [run, machine] = ["run", "machine"].map(|name| dir.join(name).display().to_string());
        let args = ["--state-dir", &run, "--machine-dir", &machine];
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    let gate = Gate::closed();
    let batch = Batch::of_one_behind(&gate, &stack).await;
    let container = batch.jobs[0].1.clone();
    wait_for("the container's start", STEP_TIMEOUT, || {
        (batch.started() == 1).then_some(())
    });
    let claims = || {
        let files = fs::read_dir(stack.dir.path().join("machine")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.ends_with(container.as_str()))
            .count()
    };
    assert_eq!(claims(), 1);
    let worker = crunch_run_of(&container).unwrap();
    stack.dispatcher.kill();
    stack.api.kill();
    gate.open();
    wait_for("the claim to go", STEP_TIMEOUT, || {
        (claims() == 0).then_some(())
    });
    assert!(!is_gone(worker));
    for program in [&mut stack.api, &mut stack.dispatcher] {
        program.start();
    }
    batch.all_complete_once(&stack).await;
}

/// libfaketime's offset for processes that read it from this file.
fn set_clock(file: &Path, offset: &str) {
    let partial = file.with_extension("partial");
    fs::write(&partial, format!("{offset}\n")).unwrap();
    fs::rename(partial, file).unwrap();
}

/// Not on HTCondor: the library cannot be loaded into programs of another C library, such as the
/// lab's.
mod a_clock_that_jumps_an_hour_both_ways_changes_nothing {
    use crate::backend::Backend;

    #[tokio::test(flavor = "multi_thread")]
    async fn local() {
        super::the_clock_jumps(Backend::Local).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slurm() {
        super::the_clock_jumps(Backend::slurm()).await;
    }
}

async fn the_clock_jumps(backend: Backend) {
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
        backend.dispatcher(servers, dir, &[], &env)
    })
    .await;
    let clock = stack.dir.path().join("clock");
    let mut batch = Batch::submit(&stack, 2, 4.0).await;
    for offset in ["+3600", "-3600", "+0"] {
        let before = batch.started();
        wait_for("a start", STEP_TIMEOUT, || {
            (batch.started() >= before.max(1)).then_some(())
        });
        set_clock(&clock, offset);
        batch.add(&stack, 0.5).await;
        // Log lines have the dispatcher's own time, which jumps.
        let lines_before = stack.dispatcher.log_text().lines().count();
        wait_for("a line after the jump", STEP_TIMEOUT, || {
            (stack.dispatcher.log_text().lines().count() > lines_before).then_some(())
        });
    }
    batch.all_complete_once(&stack).await;
    let hours = |line: &str| line.get(11..13).and_then(|hour| hour.parse::<u32>().ok());
    let log = stack.dispatcher.log_text();
    let seen: std::collections::BTreeSet<u32> = log.lines().filter_map(hours).collect();
    assert!(seen.len() >= 3, "the clock did not jump: {seen:?}");
}

/// The lock request waits in the server while the dispatcher is killed and restarted; then it is
/// granted.
async fn a_lock_granted_after_the_dispatcher_died_is_not_lost(backend: Backend) {
    let mut stack = backend.stack().await;
    let points = FailPointDir::of(&stack.points_dir());
    let waiting = |points: &FailPointDir| {
        let passed = points.passed();
        let locks = passed.iter().filter(|p| p.point == "api.lock.accepted");
        locks.count()
    };
    points.block_at("api.lock.accepted");
    let batch = Batch::submit(&stack, 1, 0.2).await;
    wait_for("the request", STEP_TIMEOUT, || {
        (waiting(&points) == 1).then_some(())
    });
    stack.dispatcher.kill();
    stack.dispatcher.start();
    // The new dispatcher knows of no lock request and makes its own.
    wait_for("the second request", STEP_TIMEOUT, || {
        (waiting(&points) >= 2).then_some(())
    });
    points.unblock("api.lock.accepted");
    batch.all_complete_once(&stack).await;
}
on_every_backend!(a_lock_granted_after_the_dispatcher_died_is_not_lost);

/// As before, and the next dispatcher would not start the container itself: the lock must not stay
/// with a revoked token.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_granted_after_the_dispatcher_died_is_given_back() {
    let mut narrow = None;
    let mut stack = Stack::with(|servers, dir| {
        let run = dir.join("run");
        let args = ["--state-dir", run.to_str().unwrap()];
        let small = ["--state-dir", run.to_str().unwrap(), "--cpus", "1"];
        narrow = Some(servers.dispatcher("dispatch-local", &small, &[]));
        servers.dispatcher("dispatch-local", &args, &[])
    })
    .await;
    let points = FailPointDir::of(&stack.points_dir());
    // Before that, the server would not lock for a client that is gone.
    points.block_at("api.lock.before-commit");
    let two = json!({"runtime_constraints": {"vcpus": 2, "ram": 16 << 20}});
    let (_, container) = stack.submit("wide", "true", two).await;
    let is_requested = |points: &FailPointDir| {
        let passed = points.passed();
        passed.iter().any(|p| p.point == "api.lock.before-commit")
    };
    wait_for("the request", STEP_TIMEOUT, || {
        is_requested(&points).then_some(())
    });
    stack.dispatcher.kill();
    let mut narrow = narrow.unwrap();
    narrow.start();
    wait_for("a decision of the next dispatcher", STEP_TIMEOUT, || {
        narrow
            .log_text()
            .contains(r#"event="decided_not_to_run""#)
            .then_some(())
    });
    // The lock request is delayed by this time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    points.unblock("api.lock.before-commit");
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.lock_count == 1 && c.state == ContainerState::Queued
        })
        .await;
}

/// Jobs of a real Slurm whose executor only sleeps: the drain does not touch them, and the next
/// dispatcher adopts them.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_live_jobs_outlive_a_term() {
    const JOBS: usize = 200;
    let more = ["-n", "1", "-c", "256", "-m", "16000", "-N"];
    let lab = Lab::up("slurm", &more);
    let mut stack = Stack::with(|servers, dir| {
        let shared = dir.join("shared");
        let args = [
            "--state-dir",
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
        let listed = lab.run("squeue", &["--noheader", "--format=%i %j"]);
        let mut jobs: Vec<String> = listed.lines().map(str::to_owned).collect();
        jobs.sort();
        jobs
    };
    // The last elements of an array have no name for a moment.
    let named = |jobs: &Vec<String>| jobs.iter().filter(|job| job.contains("-dz642-")).count();
    let live = wait_for("all jobs", STEP_TIMEOUT, || {
        Some(jobs()).filter(|jobs| named(jobs) == JOBS)
    });
    let status = stack.dispatcher.terminate(STEP_TIMEOUT);
    assert!(status.success(), "{status}");
    assert_eq!(jobs(), live);
    let lines_before = stack.dispatcher.log_text().lines().count();
    stack.dispatcher.start();
    wait_for("two polls of the next dispatcher", STEP_TIMEOUT, || {
        let found = format!("tokens={JOBS}");
        let all = stack.dispatcher.log_text();
        all.lines()
            .skip(lines_before)
            .any(|l| l.contains(&found))
            .then_some(())
    });
    let last = stack.submit("last", "true", json!({})).await.1;
    stack
        .wait_until(&last, STEP_TIMEOUT, |c| c.state == ContainerState::Locked)
        .await;
    wait_for("the job of the next dispatcher", STEP_TIMEOUT, || {
        (jobs().len() == JOBS + 1).then_some(())
    });
    for container in &containers {
        let record = stack.container(container).await;
        assert_eq!(record.state, ContainerState::Locked, "{record:?}");
        assert_eq!(record.lock_count, 1, "{record:?}");
    }
}
