//! dispatch-condor on a real HTCondor pool while daemons are killed, jobs are evicted, or an
//! administrator changes jobs.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use serde_json::{Value, json};

use crate::batch::Batch;
use suite_tests::STEP_TIMEOUT;
use suite_tests::condor_lab::Pool;
use suite_tests::processes::{crunch_run_of, script_ignoring_term, sleep_process};
use suite_tests::stack::{Stack, complete, wait_for};
use suite_tests::start_log::StartLog;

/// Evictions count, so that one container of a request can be followed to its end.
const ONE_CONTAINER: [&str; 2] = ["--max-evictions", "0"];

async fn submit(stack: &Stack, name: &str, script: &str, more: Value) -> ContainerUuid {
    stack.submit(name, script, more).await.1
}

async fn running(stack: &Stack, container: &ContainerUuid) {
    let is_running = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(container, STEP_TIMEOUT, is_running).await;
}

/// Waits until the command has started, which is a moment after Running.
fn started(starts: &StartLog, name: &str) {
    wait_for("the container's start", STEP_TIMEOUT, || {
        (starts.count(name) == 1).then_some(())
    });
}

/// Checks that the record is Cancelled, with one of these texts.
async fn cancelled(stack: &Stack, container: &ContainerUuid, says: &[&str]) {
    let record = stack.end(container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(says.iter().any(|words| why.contains(words)), "{why}");
}

/// A container with this machine's network, because it reports its start.
fn talking() -> Value {
    json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}})
}

/// A job that never ran the container moves to another machine up to three starts; then the
/// container is unlocked.
#[tokio::test(flavor = "multi_thread")]
async fn what_never_ran_is_started_three_times_on_other_machines() {
    let pool = Pool::up(&["--slots", "2", "--machines", "2"]);
    // Runs in place of crunch-run: records the attempt and the machine.
    let script = format!(
        "echo $2 $(sed -n 's/^Machine = //p' .machine.ad) >>{}; exit 75",
        pool.notes().display()
    );
    let command = shlex::try_join(["/bin/sh", "-c", &script]).unwrap();
    let stack = pool.stack(&["--crunch-run", &command]).await;
    let container = submit(&stack, "moves", "true", json!({})).await;
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| c.lock_count > 1)
        .await;
    let mut machines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let first = pool
        .noted()
        .first()
        .unwrap()
        .split(' ')
        .next()
        .map(str::to_owned);
    for line in pool.noted() {
        let (attempt, machine) = line.split_once(' ').unwrap();
        let of_attempt = machines.entry(attempt.to_owned()).or_default();
        of_attempt.push(machine.to_owned());
    }
    let machines_of_first = &machines[&first.unwrap()];
    assert_eq!(machines_of_first.len(), 3, "{machines:?}");
    assert!(
        machines_of_first.windows(2).all(|two| two[0] != two[1]),
        "{machines_of_first:?}"
    );
    let log = stack.dispatcher.log_text();
    assert!(log.contains("exit code 75"), "{log}");
}

/// A container evicted while it runs ends once and is not started again, whatever happens to its
/// job.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_evicted_while_it_ran_is_never_started_again() {
    let pool = Pool::up(&["--slots", "2", "--machines", "2"]);
    let stack = pool.stack(&ONE_CONTAINER).await;
    let starts = StartLog::listen();
    let vacated = submit(&stack, "v", &starts.script("v", 1000.0), talking()).await;
    started(&starts, "v");
    let job = pool.job(&vacated, |ad| ad["JobStatus"] == 2);
    pool.lab.run("condor_vacate_job", &[&job]);
    cancelled(&stack, &vacated, &["taken off"]).await;
    pool.is_empty_soon();
    assert_eq!(starts.count("v"), 1);
    assert_eq!(pool.history(&vacated)[0]["NumJobStarts"], 1);
}

/// The second start of a job whose first start ran the container finds the record Running, and does
/// not run it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_that_htcondor_makes_all_the_same_runs_nothing() {
    let pool = Pool::up(&["--slots", "2", "--machines", "2"]);
    let wait = ["--requirements", "MY.MayStart =?= true"];
    let stack = pool.stack(&[&wait[..], &ONE_CONTAINER].concat()).await;
    let starts = StartLog::listen();
    let container = submit(&stack, "twice", &starts.script("twice", 1000.0), talking()).await;
    // Submit lines cannot cause this.
    let job = pool.job(&container, |ad| ad["JobStatus"] == 1);
    for (name, value) in [
        ("OnExitRemove", "ExitCode =?= 76"),
        ("PeriodicRemove", "false"),
        ("MayStart", "true"),
    ] {
        pool.lab.run("condor_qedit", &[&job, name, value]);
    }
    running(&stack, &container).await;
    wait_for("the container's start", STEP_TIMEOUT, || {
        (starts.count("twice") == 1).then_some(())
    });
    let executor = crunch_run_of(&container).expect("a crunch-run of it");
    rustix::process::kill_process(executor, rustix::process::Signal::KILL).unwrap();
    cancelled(&stack, &container, &["ended with exit code 76"]).await;
    pool.is_empty_soon();
    assert_eq!(starts.count("twice"), 1);
    assert_eq!(pool.history(&container)[0]["NumJobStarts"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedd_that_is_killed_changes_nothing() {
    let pool = Pool::up(&["--slots", "4"]);
    let stack = pool.stack(&["--command-timeout", "5s"]).await;
    let mut batch = Batch::submit(&stack, 3, 6.0).await;
    wait_for("a start", STEP_TIMEOUT, || {
        (batch.started() > 0).then_some(())
    });
    pool.kill("condor_schedd");
    for _ in 0..3 {
        batch.add(&stack, 0.1).await;
    }
    batch.all_complete_once(&stack).await;
    pool.is_empty_soon();
}

/// A container on a machine whose startd dies ends once and starts once; later containers run
/// there.
#[tokio::test(flavor = "multi_thread")]
async fn a_startd_that_is_killed_ends_what_runs_there_at_most() {
    let pool = Pool::up(&["--slots", "2"]);
    // The time for which HTCondor waits for a startd that does not answer.
    let lease = "job_lease_duration = 10";
    let lease = ["--submit-line", lease];
    let stack = pool.stack(&[&lease[..], &ONE_CONTAINER].concat()).await;
    let starts = StartLog::listen();
    let first = submit(&stack, "first", &starts.script("first", 8.0), talking()).await;
    started(&starts, "first");
    pool.kill("condor_startd");
    let record = stack.end(&first, STEP_TIMEOUT).await;
    println!(
        "after the startd was killed: {:?} {:?}",
        record.state, record.runtime_status.error
    );
    let later = submit(&stack, "later", &starts.script("later", 0.1), talking()).await;
    complete(&stack.end(&later, STEP_TIMEOUT).await);
    pool.is_empty_soon();
    assert_eq!((starts.count("first"), starts.count("later")), (1, 1));
    wait_for("the end of its crunch-run", STEP_TIMEOUT, || {
        crunch_run_of(&first).is_none().then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_does_to_a_job_is_respected() {
    let pool = Pool::up(&["--slots", "1"]);
    let grace = ["--stop-grace", "10s"];
    let stack = pool.stack(&[&grace[..], &ONE_CONTAINER].concat()).await;
    let first = submit(&stack, "first", "sleep 1000", json!({})).await;
    running(&stack, &first).await;

    // A pending job is held: its record says so. Released, it runs.
    let held = submit(&stack, "held", "true", json!({})).await;
    let job = pool.job(&held, |ad| ad["JobStatus"] == 1);
    pool.lab
        .run("condor_hold", &["-reason", "for a look", &job]);
    let says = |c: &Container| {
        let activity = c.runtime_status.activity.clone().unwrap_or_default();
        let all = ["to be released", "for a look", "code 1"];
        all.iter().all(|words| activity.contains(words))
    };
    stack.wait_until(&held, STEP_TIMEOUT, says).await;
    // A pending job is removed: the container is unlocked and tried again.
    let again = submit(&stack, "again", "true", json!({})).await;
    let idle = pool.job(&again, |ad| ad["JobStatus"] == 1);
    pool.lab.run("condor_rm", &[&idle]);
    let locked_again = |c: &Container| c.lock_count > 1;
    stack.wait_until(&again, STEP_TIMEOUT, locked_again).await;
    stack.wait_for_log_line(&again, r#"event="cleaned_up_"#, STEP_TIMEOUT);
    stack.wait_for_log_line(&again, r#"event="decided_not_to_run""#, STEP_TIMEOUT);
    // Removed while it runs.
    let job_of_first = pool.job(&first, |ad| ad["JobStatus"] == 2);
    pool.lab.run("condor_rm", &[&job_of_first]);
    cancelled(&stack, &first, &["was removed: via condor_rm (by user"]).await;
    wait_for("the end of its crunch-run", STEP_TIMEOUT, || {
        crunch_run_of(&first).is_none().then_some(())
    });

    stack.wait_for_log_line(&first, "Cancelled", STEP_TIMEOUT);

    complete(&stack.end(&again, STEP_TIMEOUT).await);
    stack.wait_for_log_line(&again, r#"event="ended""#, STEP_TIMEOUT);
    assert_eq!(pool.find(&held).unwrap()["JobStatus"], 5);
    pool.lab.run("condor_release", &[&job]);
    assert_eq!(
        complete(&stack.end(&held, STEP_TIMEOUT).await).lock_count,
        1
    );
}

/// Nothing tells how its job ended. The record ends all the same, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_removed_in_a_pool_without_history() {
    let pool = Pool::with(&["--slots", "1"], "HISTORY =\n");
    let stack = pool.stack(&["--stop-grace", "10s"]).await;
    let container = submit(&stack, "removed", "sleep 1000", json!({})).await;
    running(&stack, &container).await;
    let job = pool.job(&container, |ad| ad["JobStatus"] == 2);
    pool.lab.run("condor_rm", &[&job]);
    cancelled(&stack, &container, &["this pool keeps no history of jobs"]).await;
}

/// A job that is held for too long is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_held_for_too_long_is_given_back() {
    let pool = Pool::up(&["--slots", "1"]);
    let stack = pool
        .stack(&["--start-timeout", "3s", "--requirements", "Nowhere"])
        .await;
    let container = submit(&stack, "held", "true", json!({})).await;
    let job = pool.job(&container, |ad| ad["JobStatus"] == 1);
    pool.lab.run("condor_hold", &[&job]);
    let locked_again = |c: &Container| c.lock_count > 1;
    stack
        .wait_until(&container, STEP_TIMEOUT, locked_again)
        .await;
}

/// Held by the pool because of its memory, while it runs, at less than crunch-run allows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_held_for_its_memory_ends_with_that_reason() {
    let rule = "SYSTEM_PERIODIC_HOLD = JobStatus == 2 && MemoryUsage > RequestMemory / 2\n\
                SYSTEM_PERIODIC_HOLD_REASON = \"it used more memory than it asked for\"\n";
    let pool = Pool::with(&["--slots", "1"], rule);
    let stack = pool.stack(&[]).await;
    let script = "dd if=/dev/zero of=/dev/null bs=400M count=100000";
    let memory = json!({"runtime_constraints": {"vcpus": 1, "ram": 500 << 20}});
    let container = submit(&stack, "large", script, memory).await;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    println!("held for memory: {:?}", record.runtime_status);
    assert_eq!(record.state, ContainerState::Cancelled);
    pool.is_empty_soon();
    let job = &pool.history(&container)[0];
    assert_eq!(job["NumJobStarts"], 1, "{job}");
    let held = ["HoldReason", "LastHoldReason"].map(|name| job[name].as_str().unwrap_or_default());
    let held = held.concat();
    assert!(held.contains("more memory than it asked for"), "{job}");
}

/// A request that no slot can hold stays in the queue and is not submitted.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_pool_cannot_run_waits_in_the_queue() {
    let pool = Pool::up(&["--slots", "4", "--memory", "4000"]);
    let stack = pool.stack(&[]).await;
    let large = json!({"runtime_constraints": {"vcpus": 5, "ram": 32 << 20}});
    let large = submit(&stack, "large", "true", large).await;
    let elsewhere = json!({"scheduling_parameters": {"partitions": ["nosuch"]}});
    let elsewhere = submit(&stack, "elsewhere", "true", elsewhere).await;
    let small = submit(&stack, "small", "true", json!({})).await;
    complete(&stack.end(&small, STEP_TIMEOUT).await);
    for (container, words) in [
        (&large, "5 CPUs, but one slot has at most 4"),
        (&elsewhere, "no submit line of this dispatcher has %P"),
    ] {
        stack.wait_for_log_line(container, words, STEP_TIMEOUT);
        let record = stack.container(container).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Queued, 0)
        );
    }
}

/// crunch-run gets the GPUs that HTCondor assigned: two jobs have one each, a third has none.
#[tokio::test(flavor = "multi_thread")]
async fn each_job_is_told_of_the_gpus_it_was_assigned() {
    let pool = Pool::up(&["--slots", "4", "--gpus", "2"]);
    // Runs in place of crunch-run: records its environment and waits for TERM.
    let script = format!(
        "echo $3 $CUDA_VISIBLE_DEVICES $_CONDOR_AssignedGPUs >>{}; exec sleep 1000",
        pool.notes().display()
    );
    let command = shlex::try_join(["/bin/sh", "-c", &script]).unwrap();
    let stack = pool.stack(&["--crunch-run", &command]).await;
    let gpu = json!({"stack": "cuda", "device_count": 1, "driver_version": "11.0", "hardware_target": ["1.0"], "vram": 1 << 20});
    let needs = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "gpu": gpu}});
    for name in ["one", "other"] {
        submit(&stack, name, "true", needs.clone()).await;
    }
    let none = submit(&stack, "none", "true", json!({})).await;
    let lines = wait_for("all to start", STEP_TIMEOUT, || {
        let lines = pool.noted();
        (lines.len() == 3).then_some(lines)
    });
    let mut granted = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let [container, visible, assigned] = words[..] else {
            panic!("{line}");
        };
        if container == none.as_str() {
            assert_eq!(visible, "10000");
            continue;
        }
        let is_its = |ad: &Value| ad["ContainerUUID"] == container;
        let ad = pool.queue().into_iter().find(is_its).unwrap();
        let shown = ad["AssignedGPUs"].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (visible, assigned),
            (shown.as_str(), shown.as_str()),
            "{ad}"
        );
        assert!(visible.starts_with("GPU-"), "{visible}");
        granted.push(visible.to_owned());
    }
    granted.sort();
    granted.dedup();
    assert_eq!(granted.len(), 2);
}

/// The queue is turned round: HTCondor's order follows, also of the 60 bits of the API's
/// priorities.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_stand_in_the_order_of_their_containers() {
    let pool = Pool::up(&["--slots", "1"]);
    let stack = pool.stack(&[]).await;
    let first = submit(&stack, "first", "sleep 1000", json!({})).await;
    running(&stack, &first).await;
    let mut queue = Vec::new();
    for n in 0..10 {
        let priority = json!({"priority": 500 - n});
        queue.push(stack.submit(&format!("n{n}"), "true", priority).await);
    }
    let order = |queue: &[(_, ContainerUuid)]| -> Vec<String> {
        let uuids = queue.iter().map(|(_, container)| container.to_string());
        uuids.collect()
    };
    let in_pool = || -> Vec<String> {
        let mut idle: Vec<Value> = pool.queue();
        idle.retain(|ad| ad["JobStatus"] == 1);
        let queue_position = |ad: &Value| {
            let number = |name: &str| ad[name].as_i64().unwrap();
            (-number("JobPrio"), number("ClusterId"), number("ProcId"))
        };
        idle.sort_by_key(queue_position);
        let uuids = idle.iter().map(|ad| ad["ContainerUUID"].as_str().unwrap());
        uuids.map(str::to_owned).collect()
    };
    wait_for("the order", STEP_TIMEOUT, || {
        (in_pool() == order(&queue)).then_some(())
    });
    for (n, (request, _)) in queue.iter().enumerate() {
        let change = json!({"priority": 500 + n});
        let changed = stack.user.update_container_request(request, change);
        changed.await.unwrap();
    }
    queue.reverse();
    wait_for("the other order", STEP_TIMEOUT, || {
        (in_pool() == order(&queue)).then_some(())
    });
}

/// A container that ignores TERM, in a personal pool, which does not track detached processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_container_leaves_nothing_behind() {
    let pool = Pool::up(&["--slots", "1"]);
    let stack = pool.stack(&["--stop-grace", "30s"]).await;
    let marker = format!("8765{}", std::process::id());
    let (request, container) = stack
        .submit("deaf", &script_ignoring_term(&marker), json!({}))
        .await;
    running(&stack, &container).await;
    wait_for("the container's process", STEP_TIMEOUT, || {
        sleep_process(&marker)
    });
    let change = json!({"priority": 0});
    let changed = stack.user.update_container_request(&request, change);
    changed.await.unwrap();
    assert_eq!(
        stack.end(&container, STEP_TIMEOUT).await.state,
        ContainerState::Cancelled
    );
    pool.is_empty_soon();
    wait_for("its processes to end", STEP_TIMEOUT, || {
        (crunch_run_of(&container).is_none() && sleep_process(&marker).is_none()).then_some(())
    });
}
