//! The reasons that dispatch-condor reports for jobs that do not start, or whose node is lost.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::rejected_jobs;
use suite_tests::STEP_TIMEOUT;
use suite_tests::condor_lab::Pool;
use suite_tests::program::write_script;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Servers, Stack, complete, wait_for};
use suite_tests::start_log::{Gate, StartLog};

/// A requirement that no slot meets. HTCondor names it only in the analysis of one job.
const UNMET_REQUIREMENTS: &str = "requirements = TARGET.HasUnobtainium =?= True";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_asks_for_what_no_machine_is_says_so() {
    let pool = Pool::up(&["--slots", "2"]);
    let stack = pool.stack(&["--submit-line", UNMET_REQUIREMENTS]).await;
    let mut containers = Vec::new();
    for n in 0..3 {
        let (_, container) = stack.submit(&format!("n{n}"), "true", json!({})).await;
        containers.push(container);
    }
    for container in &containers {
        let says = |c: &Container| {
            let activity = c.runtime_status.activity.clone().unwrap_or_default();
            activity.contains("no slot meets its requirements")
                && activity.contains("HasUnobtainium")
        };
        let record = stack.wait_until(container, STEP_TIMEOUT, says).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Locked, 1)
        );
    }
    // The reason is logged as a decision, and queried once for the three jobs.
    let log = stack.dispatcher.log_text();
    assert!(
        log.contains("decided_not_to_run") && log.contains("HasUnobtainium"),
        "{log}"
    );
}

/// The condor_starter of the one running job.
fn starter(startd: Pid) -> Pid {
    let children = format!("/proc/{startd}/task/{startd}/children");
    let children = fs::read_to_string(children).unwrap();
    let mut pids = children.split_whitespace().filter(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == "condor_starter"
    });
    Pid::from_raw(pids.next().unwrap().parse().unwrap()).unwrap()
}

/// The startd does not answer and the condor_starter is gone: HTCondor waits for the lease to end.
/// So does the dispatcher, and reports it.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_whose_machine_is_lost_is_waited_for_and_told_of() {
    let pool = Pool::up(&["--slots", "2"]);
    // An eviction counts, so that this is the request's one container.
    let stack = pool.stack(&["--max-evictions", "0"]).await;
    let (starts, gate) = (StartLog::listen(), Gate::closed());
    let script = format!("{}; {}", starts.script("waits", 0.0), gate.script());
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
    let (request, container) = stack.submit("waits", &script, network).await;
    let container = &container;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(container, STEP_TIMEOUT, runs).await;
    wait_for("the container's start", STEP_TIMEOUT, || {
        (starts.count("waits") == 1).then_some(())
    });
    let startd = pool.daemon("condor_startd");
    let starter = starter(startd);
    kill_process(startd, Signal::STOP).unwrap();
    kill_process(starter, Signal::KILL).unwrap();
    wait_for(
        "the dispatcher to report the lost node",
        STEP_TIMEOUT,
        || {
            let log = stack.dispatcher.log_text();
            log.contains(r#"event="execute_node_lost""#).then_some(())
        },
    );
    let record = stack.container(container).await;
    assert_eq!(record.state, ContainerState::Running, "{record:?}");
    wait_for("the user to be told", STEP_TIMEOUT, || {
        let told = stack.explained(&request);
        told.contains("stands still: ").then_some(())
    });
    kill_process(startd, Signal::CONT).unwrap();
    // The container may have ended together with its condor_starter.
    gate.open();
    stack.end(container, STEP_TIMEOUT).await;
    assert_eq!(starts.count("waits"), 1);
}

/// The schedd takes no further job.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_cost_rejected_containers_no_locks() {
    let pool = Pool::with(&["--slots", "4"], "MAX_JOBS_PER_OWNER = 1\n");
    let mut stack = pool.stack(&[]).await;
    let (first, container) = stack.submit("first", "sleep 1000", json!({})).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, STEP_TIMEOUT, runs).await;
    let containers = rejected_jobs::after_restarts(&mut stack).await;
    let hold = json!({"priority": 0});
    let user = &stack.user;
    user.update_container_request(&first, hold).await.unwrap();
    for container in &containers {
        complete(&stack.end(container, STEP_TIMEOUT).await);
    }
}

/// Two dispatchers on one queue, each for the partitions of its scheduler. A container for a
/// partition that neither has is taken by neither, until a machine joins that has it.
#[tokio::test(flavor = "multi_thread")]
async fn containers_for_the_partitions_of_slurm_are_left_to_slurm() {
    let of_slots = "STARTD_ATTRS = $(STARTD_ATTRS) SitePartition\nSitePartition = \"bigmem\"\n";
    let pool = Pool::with(&["--slots", "2"], of_slots);
    let cluster = Cluster::up(&["-n", "1", "-c", "2", "-m", "4000"]);
    let line = "requirements = stringListMember(\"%P\", SitePartition)";
    let mut of_slurm = None;
    let stack = Stack::with(|servers, dir| {
        let own = dir.join("second");
        fs::create_dir(&own).unwrap();
        let log = own.join("dispatcher");
        let of_second = Servers {
            log,
            ..servers.clone()
        };
        of_slurm = Some(cluster.dispatcher(&of_second, &own.join("shared"), &[]));
        pool.dispatcher(servers, dir, "dispatch-condor", &["--submit-line", line])
    })
    .await;
    of_slurm.as_mut().unwrap().start();
    let submit = async |name: &str| {
        let scheduling = json!({"scheduling_parameters": {"partitions": [name]}});
        stack.submit(name, "true", scheduling).await
    };
    let (request, nowhere) = submit("nosuch").await;
    let mut all = Vec::new();
    for n in 0..30 {
        all.push(submit(["main", "bigmem"][n % 2]).await.1);
    }
    for container in &all {
        assert_eq!(
            complete(&stack.end(container, STEP_TIMEOUT).await).lock_count,
            1
        );
    }
    let words = "no slot of this HTCondor pool is in partition nosuch";
    wait_for("the user to be told", STEP_TIMEOUT, || {
        stack.explained(&request).contains(words).then_some(())
    });
    assert_eq!(stack.container(&nowhere).await.lock_count, 0);
    pool.configure("SitePartition = \"bigmem,nosuch\"");
    complete(&stack.end(&nowhere, STEP_TIMEOUT).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_an_owner_is_kept_full() {
    let pool = Pool::with(&["--slots", "4"], "MAX_JOBS_PER_OWNER = 3\n");
    rejected_jobs::keep_the_limit_full(&mut pool.stack(&[]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_against_one_user_stops_no_other() {
    let rule = "SUBMIT_REQUIREMENT_NAMES = $(SUBMIT_REQUIREMENT_NAMES) Grant\n\
                SUBMIT_REQUIREMENT_Grant = ContainerUser =!= \"eve\"\n\
                SUBMIT_REQUIREMENT_Grant_REASON = \"job 3.0: try again later (connection refused)\"\n";
    let pool = Pool::with(&["--slots", "4"], rule);
    rejected_jobs::of_one_user(&mut pool.stack(&[]).await).await;
}

/// Nothing runs on the machine that gets the first job. Its container runs on the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_machine_fails_a_container_once() {
    let pool = Pool::up(&["--slots", "2", "--machines", "2"]);
    let notes = pool.notes();
    let stack = Stack::with(|servers, dir| {
        let (wrapper, dir_name) = (dir.join("wrapper"), dir.display());
        // A job that ends in this way is gone from the queue; the next one is a new job.
        let script = format!(
            "#!/bin/sh\n\
             machine=$(sed -n 's/^Machine = \"\\(.*\\)\"/\\1/p' \"$_CONDOR_MACHINE_AD\")\n\
             [ -e {0} ] || echo \"$machine\" >{0}\n\
             [ \"$machine\" != \"$(cat {0})\" ] || exit 1\n\
             export TMPDIR={dir_name}/tmp\n\
             exec {dir_name}/crunch-run --cache-dir {dir_name}/cache \"$@\"\n",
            notes.display()
        );
        write_script(&wrapper, &script);
        let wrapper = wrapper.to_str().unwrap();
        pool.dispatcher(servers, dir, "dispatch-condor", &["--crunch-run", wrapper])
    })
    .await;
    let (_, container) = stack.submit("once", "true", json!({})).await;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 2);
    let bad = &pool.noted()[0];
    let words = format!("node {bad}");
    stack.wait_for_log_line(&container, &words, STEP_TIMEOUT);
}

/// The site has lines for containers that may be preempted. Only they get them.
#[tokio::test(flavor = "multi_thread")]
async fn preemptible_containers_get_the_lines_of_the_site() {
    let pool = Pool::shared();
    let line = ["--preemptible-submit-line", "+Opportunistic = true"];
    let stack = Stack::with_api(&["--accept-preemptible"], |servers, dir| {
        pool.dispatcher(servers, dir, "dispatch-condor", &line)
    })
    .await;
    for preemptible in [true, false] {
        let more = json!({"scheduling_parameters": {"preemptible": preemptible}});
        let (_, container) = stack.submit("job", "sleep 1000", more).await;
        let job = wait_for("the job", STEP_TIMEOUT, || pool.find(&container));
        assert_eq!(job["Opportunistic"] == true, preemptible, "{job}");
    }
}
