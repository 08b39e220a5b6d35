//! dispatch-slurm on a real Slurm while daemons are killed, nodes are lost, or an administrator
//! changes jobs.

use std::fs;
use std::path::Path;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use rustix::process::{Signal, test_kill_process};
use serde_json::{Value, json};

use crate::batch::Batch;
use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::crunch_run_of;
use suite_tests::program::{binary, write_script};
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};

async fn submit(stack: &Stack, name: &str, script: &str, more: Value) -> ContainerUuid {
    stack.submit(name, script, more).await.1
}

async fn running(stack: &Stack, container: &ContainerUuid) {
    let is_running = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(container, STEP_TIMEOUT, is_running).await;
}

/// Checks that the record is Cancelled, with this text.
async fn cancelled(stack: &Stack, container: &ContainerUuid, says: &str) {
    let record = stack.end(container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains(says), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_away_for_a_while_changes_nothing() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let stack = cluster.stack(&["--command-timeout", "3s"]).await;
    let mut batch = Batch::submit(&stack, 3, 6.0).await;
    wait_for("a start", STEP_TIMEOUT, || {
        (batch.started() > 0).then_some(())
    });
    // With SIGKILL, slurmctld would forget jobs that it has not written down yet.
    cluster.end("slurmctld", Signal::TERM);
    for _ in 0..3 {
        batch.add(&stack, 0.1).await;
    }
    wait_for("the dispatcher to miss it", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains(r#"event="listing_failed""#).then_some(())
    });
    cluster.start_controller();
    batch.all_complete_once(&stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_is_waited_for_and_the_job_is_there_once() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let stack = cluster.stack(&[]).await;
    cluster.control(&["update", "NodeName=n1", "State=DRAIN", "Reason=test"]);
    let container = submit(&stack, "later", "true", json!({})).await;
    let job = cluster.job(&container);
    wait_for("Slurm to say why", STEP_TIMEOUT, || {
        cluster
            .job_field(&job, "%r")
            .contains("DRAINED")
            .then_some(())
    });
    cluster.control(&["update", "NodeName=n1", "State=RESUME"]);
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
}

/// Slurm loses the node while the job still runs there: the attempt is over, and its token is
/// revoked.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_node_is_lost_ends_and_so_does_what_runs_there() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000", "-x", "SlurmdTimeout=30"]);
    // An eviction counts, so that this is the request's one container.
    let stack = cluster.stack(&["--max-evictions", "0"]).await;
    let container = submit(&stack, "lost", "sleep 1000", json!({})).await;
    running(&stack, &container).await;
    let executor = crunch_run_of(&container).expect("a crunch-run of the container");
    cluster.end("slurmd.n1", Signal::KILL);
    cancelled(&stack, &container, "was lost with its node").await;
    wait_for("what runs there to end", STEP_TIMEOUT, || {
        test_kill_process(executor).is_err().then_some(())
    });
}

/// Nothing runs on the first node. A container that failed there runs on the other one, although
/// nothing else is known of either.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_node_fails_a_container_once() {
    let cluster = Cluster::up(&["-n", "2", "-c", "4", "-m", "4000"]);
    let dir = tempfile::tempdir().unwrap();
    let wrapper = dir.path().join("crunch-run");
    let crunch_run = binary("crunch-run");
    let script = format!(
        "#!/bin/sh\n[ $SLURMD_NODENAME != n1 ] || exit 75\nexec {} \"$@\"\n",
        crunch_run.display()
    );
    write_script(&wrapper, &script);
    let wrapper = wrapper.to_str().unwrap();
    let stack = cluster.stack(&["--crunch-run", wrapper]).await;
    let container = submit(&stack, "once", "true", json!({})).await;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 2);
    let words = "could not start the container there (node n1)";
    stack.wait_for_log_line(&container, words, STEP_TIMEOUT);
}

/// The node lacks crunch-run under the name that the dispatcher gives.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_crunch_run_is_told_of() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let stack = cluster
        .stack(&["--crunch-run", "/opt/nosuch/crunch-run"])
        .await;
    let container = submit(&stack, "nowhere", "true", json!({})).await;
    let words = "crunch-run is not on that node";
    stack.wait_for_log_line(&container, words, STEP_TIMEOUT);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_does_to_a_job_is_respected() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let stack = cluster.stack(&["--stop-grace", "3s"]).await;
    let full = json!({"runtime_constraints": {"vcpus": 4, "ram": 32 << 20}});
    let (request, first) = stack.submit("first", "sleep 1000", full.clone()).await;
    running(&stack, &first).await;

    // Held and released: it waits, and then it runs.
    let held = submit(&stack, "held", "true", full.clone()).await;
    let job = cluster.job(&held);
    cluster.control(&["hold", &job]);
    // A pending job is cancelled: the container is unlocked and tried again.
    let again = submit(&stack, "again", "true", full).await;
    let cancelled_job = cluster.job(&again);
    cluster.lab.run("scancel", &[&cancelled_job]);
    stack
        .wait_until(&again, STEP_TIMEOUT, |c| c.lock_count > 1)
        .await;
    stack.wait_for_log_line(&again, r#"event="cleaned_up_"#, STEP_TIMEOUT);
    stack.wait_for_log_line(&again, r#"event="decided_not_to_run""#, STEP_TIMEOUT);

    // A suspended job cannot react to TERM; it is killed after all.
    let job_of_first = cluster.job(&first);
    cluster.control(&["suspend", &job_of_first]);
    let told = |words: &str| {
        wait_for(words, STEP_TIMEOUT, || {
            stack.explained(&request).contains(words).then_some(())
        });
    };
    told("stands still: Slurm job");
    cluster.control(&["resume", &job_of_first]);
    told("its job goes on");
    cluster.control(&["suspend", &job_of_first]);
    stack
        .user
        .update_container_request(&request, json!({"priority": 0}))
        .await
        .unwrap();
    let record = stack.end(&first, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    wait_for("the end of its crunch-run", STEP_TIMEOUT, || {
        crunch_run_of(&first).is_none().then_some(())
    });

    complete(&stack.end(&again, STEP_TIMEOUT).await);
    stack.wait_for_log_line(&again, r#"event="ended""#, STEP_TIMEOUT);
    stack.wait_for_log_line(&first, "Cancelled", STEP_TIMEOUT);
    wait_for("the hold, which nobody released", STEP_TIMEOUT, || {
        (cluster.job_field(&job, "%Q") == "0").then_some(())
    });
    cluster.control(&["release", &job]);
    let record = stack.end(&held, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
}

/// A new nice value releases a hold that was set after the last listing. Here an administrator is
/// always that fast: the test's `scontrol` runs between the dispatcher and Slurm's.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_in_the_middle_of_a_change_of_order_stays() {
    a_hold_before_a_change("0").await;
}

/// The same with a slow controller, so that the hold is listed before it is released.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_listed_in_the_middle_of_a_change_of_order_stays() {
    a_hold_before_a_change("3").await;
}

/// The administrator releases the job right after the listing that shows that its hold was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_released_after_it_lost_its_hold_is_not_held_again() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let temp_dir = tempfile::tempdir().unwrap();
    let [squeue, scontrol] = ["squeue", "scontrol"].map(real_command);
    let released = temp_dir.path().join("released");
    // Right after a new nice value the priority is that of a job which lost its hold.
    let script = format!(
        "#!/bin/sh\nlisting=$({squeue} \"$@\")\ncode=$?\n\
         [ ! -e {released} ] || echo >>{released}\n\
         case \"$listing\" in *'|0|10000|'*) [ -e {released} ] || {{ {scontrol} release 2; : >{released}; }};; esac\n\
         echo \"$listing\"\nexit $code\n",
        released = released.display()
    );
    write_script(&temp_dir.path().join("squeue"), &script);
    let stack = stack_with_held_job(&cluster, temp_dir.path(), "0").await;
    let (request, first) = stack.submit("first", "sleep 1000", full()).await;
    running(&stack, &first).await;
    let second = submit(&stack, "second", "true", full()).await;
    assert_eq!(cluster.job(&second), "2");
    let few_listings_later = || fs::read(&released).ok().filter(|lines| lines.len() > 3);
    wait_for(
        "the release and what follows",
        STEP_TIMEOUT,
        few_listings_later,
    );
    let hold = json!({"priority": 0});
    let user = &stack.user;
    user.update_container_request(&request, hold).await.unwrap();
    complete(&stack.end(&second, STEP_TIMEOUT).await);
    let log = stack.dispatcher.log_text();
    eprintln!("{log}");
    assert!(!log.contains(r#"event="hold_restored""#), "{log}");
}

/// The path of Slurm's own command.
fn real_command(name: &str) -> String {
    let path = std::env::var("PATH").unwrap();
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    let real = candidates.find(|file| file.is_file()).unwrap();
    real.display().to_string()
}

fn full() -> Value {
    json!({"runtime_constraints": {"vcpus": 4, "ram": 32 << 20}})
}

/// A dispatcher that finds the commands in `dir` first. There, `scontrol` holds job 2 `seconds`
/// before its nice value changes.
async fn stack_with_held_job(cluster: &Cluster, dir: &Path, seconds: &str) -> Stack {
    let (real, held) = (real_command("scontrol"), dir.join("held"));
    let held_file = held.display();
    let script = format!(
        "#!/bin/sh\n[ $# = 0 ] || exec {real} \"$@\"\nlines=$(cat)\njob=$(echo \"$lines\" | sed -n 's/^update JobId=\\(2\\) .*/\\1/p')\n\
         [ -z \"$job\" ] || [ -e {held_file} ] || {{ {real} hold $job; : >{held_file}; sleep {seconds}; }}\n\
         echo \"$lines\" | exec {real}\n"
    );
    write_script(&dir.join("scontrol"), &script);
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    Stack::with(|servers, dir| {
        let env = [("PATH", path.as_str())];
        cluster.dispatcher_with(servers, &dir.join("shared"), &[], &env)
    })
    .await
}

/// `seconds`: how long before the change the job is held.
async fn a_hold_before_a_change(seconds: &str) {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let temp_dir = tempfile::tempdir().unwrap();
    let stack = stack_with_held_job(&cluster, temp_dir.path(), seconds).await;
    let (request, first) = stack.submit("first", "sleep 1000", full()).await;
    running(&stack, &first).await;
    let second = submit(&stack, "second", "true", full()).await;
    let job = cluster.job(&second);
    assert_eq!(job, "2");
    wait_for("the hold to be undone and mended", STEP_TIMEOUT, || {
        stack
            .dispatcher
            .log_text()
            .contains(r#"event="hold_restored""#)
            .then_some(())
    });
    wait_for("the job to be held", STEP_TIMEOUT, || {
        (cluster.job_field(&job, "%Q") == "0").then_some(())
    });
    let hold = json!({"priority": 0});
    let user = &stack.user;
    user.update_container_request(&request, hold).await.unwrap();
    stack.end(&first, STEP_TIMEOUT).await;
    wait_for("the reason", STEP_TIMEOUT, || {
        cluster
            .job_field(&job, "%r")
            .contains("JobHeld")
            .then_some(())
    });
    assert_eq!(cluster.job_field(&job, "%T"), "PENDING");
    cluster.control(&["release", &job]);
    complete(&stack.end(&second, STEP_TIMEOUT).await);
}

/// A container that fits no node stays in the queue and is not submitted. A container that sbatch
/// rejects neither fails nor gets lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_slurm_cannot_run_waits_in_the_queue() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000"]);
    let stack = cluster.stack(&[]).await;
    let large = json!({"runtime_constraints": {"vcpus": 5, "ram": 32 << 20}});
    let large = submit(&stack, "large", "true", large).await;
    let elsewhere = json!({"scheduling_parameters": {"partitions": ["nosuch"]}});
    let elsewhere = submit(&stack, "elsewhere", "true", elsewhere).await;
    let small = submit(&stack, "small", "true", json!({})).await;
    complete(&stack.end(&small, STEP_TIMEOUT).await);
    for container in [&large, &elsewhere] {
        let record = stack.container(container).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Queued, 0)
        );
    }
    for words in ["5 CPUs, but one node has at most 4", "no partition nosuch"] {
        wait_for("the reason in the log", STEP_TIMEOUT, || {
            stack.dispatcher.log_text().contains(words).then_some(())
        });
    }
}

/// The queue is turned round: Slurm's order follows in few commands, also of the 60 bits of the
/// API's priorities.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_stand_in_the_order_of_their_containers() {
    let cluster = Cluster::up(&["-n", "1", "-c", "1", "-m", "4000"]);
    let stack = cluster.stack(&[]).await;
    let first = submit(&stack, "first", "sleep 1000", json!({})).await;
    running(&stack, &first).await;
    let mut queue = Vec::new();
    for n in 0..10 {
        let priority = json!({"priority": 500 - n});
        queue.push(stack.submit(&format!("n{n}"), "true", priority).await);
    }
    let order = |queue: &[(_, ContainerUuid)]| -> Vec<String> {
        queue
            .iter()
            .map(|(_, container)| container.to_string())
            .collect()
    };
    let in_slurm = || -> Vec<String> {
        let query = [
            "--noheader",
            "--states=PENDING",
            "--sort=-p,i",
            "--format=%j",
        ];
        let answer = cluster.lab.run("squeue", &query);
        answer.lines().map(|line| line.trim().to_owned()).collect()
    };
    wait_for("the order", STEP_TIMEOUT, || {
        (in_slurm() == order(&queue)).then_some(())
    });
    for (n, (request, _)) in queue.iter().enumerate() {
        let change = json!({"priority": 500 + n});
        stack
            .user
            .update_container_request(request, change)
            .await
            .unwrap();
    }
    queue.reverse();
    wait_for("the other order", STEP_TIMEOUT, || {
        (in_slurm() == order(&queue)).then_some(())
    });
    // The first container does not wait behind other users' jobs.
    let top = cluster.job(&queue[0].1);
    assert_eq!(cluster.job_field(&top, "%y"), "0");
}
