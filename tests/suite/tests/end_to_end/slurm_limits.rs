//! Containers that use more time or memory than Slurm gives their jobs: the record says so,
//! whichever program ends them.

use std::fs;
use std::path::Path;

use arvados_client::records::{Container, ContainerState, RequestState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::{crunch_run_of, script_ignoring_term, sleep_process};
use suite_tests::slurm_lab::{Cluster, patient_crunch_run};
use suite_tests::stack::{Servers, Stack, complete, wait_for};
use suite_tests::start_log::Gate;

const NODE: [&str; 6] = ["-n", "1", "-c", "4", "-m", "4000"];

async fn running(stack: &Stack, script: &str, more: Value) -> ContainerUuid {
    requested(stack, script, more).await.1
}

/// Submits a container and returns it with its request.
async fn requested(
    stack: &Stack,
    script: &str,
    more: Value,
) -> (ContainerRequestUuid, ContainerUuid) {
    let (request, container) = stack.submit("limited", script, more).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, STEP_TIMEOUT, runs).await;
    (request, container)
}

/// A server that ignores `permanentFailure`, with a dispatcher on this cluster.
async fn arvados_stack(cluster: &Cluster, more: &[&str]) -> Stack {
    let dispatcher = |servers: &Servers, dir: &Path| {
        let shared = dir.join("shared");
        cluster.dispatcher(servers, &shared, more)
    };
    Stack::with_api(&["--emulate=arvados-3"], dispatcher).await
}

/// The request ended with its first container, although it allows three.
async fn is_not_run_again(
    stack: &Stack,
    request: &ContainerRequestUuid,
    container: &ContainerUuid,
) {
    let request = stack.user.container_request(request).await.unwrap();
    let end = (request.state, request.container_uuid.as_ref());
    assert_eq!(end, (RequestState::Final, Some(container)));
}

/// Waits for Cancelled; returns the reason.
async fn why(stack: &Stack, container: &ContainerUuid) -> String {
    let record = stack.end(container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
    record.runtime_status.error.unwrap_or_default()
}

/// Slurm warns crunch-run, which ends the container and records why. Slurm checks every half a
/// minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_warned_of_the_end_of_its_time_says_so() {
    let cluster = Cluster::up(&NODE);
    let stack = arvados_stack(&cluster, &[]).await;
    let limit = json!({"container_count_max": 3, "scheduling_parameters": {"max_run_time": 600}});
    let (request, container) = requested(&stack, "sleep 1000", limit).await;
    // Less than the two minutes of the warning, more than Slurm takes to look.
    let job = cluster.job(&container);
    cluster.control(&["update", &format!("JobId={job}"), "EndTime=now+100"]);
    let why = why(&stack, &container).await;
    assert!(
        why.contains("the time limit of its job was reached"),
        "{why}"
    );
    is_not_run_again(&stack, &request, &container).await;
}

/// The time for its files is cut, since its partition gives no more. The check can test there, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_the_limit_of_its_partition_runs_there() {
    let short = "PartitionName=short Nodes=n1 MaxTime=30 DefMemPerCPU=100 State=UP";
    let brief = "PartitionName=brief Nodes=n1 DefaultTime=2 DefMemPerCPU=100 State=UP";
    let cluster = Cluster::up(&[&NODE[..], &["-x", short, "-x", brief]].concat());
    let stack = cluster.stack(&[]).await;
    // Without a limit of its own, the default time of the partition applies. The warning leaves
    // most of it. Slurm looks at times every half minute.
    let unlimited = json!({"scheduling_parameters": {"partitions": ["brief"]}});
    let (_, brief) = stack.submit("brief", "sleep 40", unlimited).await;
    let within = |seconds: u64| json!({"scheduling_parameters": {"max_run_time": seconds, "partitions": ["short"]}});
    let (_, fits) = stack.submit("fits", "true", within(1800)).await;
    let (_, over) = stack.submit("over", "true", within(1801)).await;
    complete(&stack.end(&fits, STEP_TIMEOUT).await);
    let jobs = cluster.lab.run("scontrol", &["--oneliner", "show", "jobs"]);
    let job = jobs.lines().find(|line| line.contains(fits.as_str()));
    assert!(job.unwrap().contains("TimeLimit=00:30:00"), "{jobs}");
    stack.wait_for_log_line(&fits, r#"event="time_limit_cut""#, STEP_TIMEOUT);
    let words = "it requests 31 minutes, but a partition gives at most 30";
    stack.wait_for_log_line(&over, words, STEP_TIMEOUT);
    assert_eq!(stack.container(&over).await.lock_count, 0);
    let answer = |more: &[&str]| {
        let output = stack.dispatcher.subcommand(more).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = answer(&["--dry-run", fits.as_str()]);
    assert!(shown.contains("--time=30"), "{shown}");
    complete(&stack.end(&brief, STEP_TIMEOUT).await);
    let checked = answer(&["check", "--submit-test", "--partition", "short"]);
    let test = checked.lines().find(|line| line.contains("submit test"));
    assert!(test.unwrap().contains("ok"), "{checked}");
    let checked = answer(&["check", "--submit-test", "--partition", "nosuch"]);
    assert!(checked.contains("accepted no job"), "{checked}");
    assert!(checked.contains("account or partition"), "{checked}");
}

/// The list of partitions is read every five minutes; an older one proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_made_while_the_dispatcher_runs_is_found() {
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&["--poll-interval", "1s"]).await;
    let late = json!({"scheduling_parameters": {"partitions": ["late"]}});
    let (_, container) = stack.submit("late", "true", late).await;
    let words = "Slurm has no partition late; its partitions are main";
    stack.wait_for_log_line(&container, words, STEP_TIMEOUT);
    cluster.control(&["create", "PartitionName=late", "Nodes=n1", "State=UP"]);
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
}

/// As where slurm.conf says nothing of TmpDisk: each job asks for scratch space in vain.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_says_that_no_node_has_scratch_space() {
    let cluster = Cluster::up(&[&NODE[..], &["-s", "0"]].concat());
    let stack = cluster.stack(&[]).await;
    let checked = stack.dispatcher.subcommand(&["check"]).output().unwrap();
    let checked = String::from_utf8(checked.stdout).unwrap();
    let found = checked.lines().find(|line| line.contains("scratch space"));
    assert!(found.unwrap().contains("no node has TmpDisk"), "{checked}");
    let scratch = json!({"mounts": {"/out": {"kind": "tmp", "capacity": 1 << 30}}});
    let (_, container) = stack.submit("scratch", "true", scratch).await;
    stack.wait_for_log_line(&container, "no node has TmpDisk", STEP_TIMEOUT);
    assert_eq!(stack.container(&container).await.lock_count, 0);
}

/// Without a warning, and with a command that ignores TERM, Slurm kills crunch-run too.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_slurm_ends_at_its_time_limit_is_told_so() {
    let cluster = Cluster::up(&NODE);
    let more = ["--warn-before-end", "0s", "--staging-allowance", "1m"];
    let patient = patient_crunch_run();
    let more = [&more[..], &["--crunch-run", &patient]].concat();
    let stack = arvados_stack(&cluster, &more).await;
    let limit = json!({"container_count_max": 3, "scheduling_parameters": {"max_run_time": 60}});
    let marker = format!("8763{}", std::process::id());
    let (request, container) = requested(&stack, &script_ignoring_term(&marker), limit).await;
    wait_for("the container's process", STEP_TIMEOUT, || {
        sleep_process(&marker)
    });
    let job = cluster.job(&container);
    cluster.control(&["update", &format!("JobId={job}"), "EndTime=now+1"]);
    let why = why(&stack, &container).await;
    assert!(why.contains("reached its time limit in Slurm"), "{why}");
    is_not_run_again(&stack, &request, &container).await;
}

const CONSTRAINED: [&str; 7] = ["-n", "1", "-c", "4", "-m", "4000", "-C"];
/// Less memory than the container may use.
const MEM_150_MIB: &str = "--sbatch-argument=--mem=150";

fn large() -> Value {
    json!({"runtime_constraints": {"vcpus": 1, "ram": 1 << 30, "API": true}})
}

/// A script that exceeds its memory when the gate is opened.
fn grows(gate: &Gate) -> String {
    let wait = gate.script();
    format!("{wait}; dd if=/dev/zero of=/dev/null bs=400M count=1 && sleep 1000")
}

/// The record, when its command has outgrown the job.
async fn outgrown(stack: &Stack) -> (ContainerRequestUuid, Container) {
    let gate = Gate::closed();
    let (request, container) = requested(stack, &grows(&gate), large()).await;
    gate.open();
    (request, stack.end(&container, STEP_TIMEOUT).await)
}

/// Waits until the kernel has killed crunch-run itself; returns the reason.
async fn outgrown_by_its_executor(stack: &Stack) -> String {
    let gate = Gate::closed();
    let container = running(stack, &grows(&gate), large()).await;
    let process = crunch_run_of(&container).unwrap().as_raw_nonzero();
    fs::write(format!("/proc/{process}/oom_score_adj"), "1000").unwrap();
    gate.open();
    why(stack, &container).await
}

const KILLED_BY_SLURM: &str = "was killed by Slurm for using more memory than it was given";

/// Slurm gives the job less memory than the container may use. The kernel kills either the command,
/// which crunch-run reports, or crunch-run, which Slurm reports.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_its_memory_is_told_so_whichever_process_the_kernel_ends() {
    let cluster = Cluster::up(&[&CONSTRAINED[..], &["-p", "mem"]].concat());
    let stack = cluster.stack(&[MEM_150_MIB]).await;
    let (_, record) = outgrown(&stack).await;
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("memory"), "{:?}: {why}", record.state);
    stack.wait_for_log_line(&record.uuid, "memory", STEP_TIMEOUT);
    let why = outgrown_by_its_executor(&stack).await;
    assert!(why.contains(KILLED_BY_SLURM), "{why}");
}

/// Containers of ordinary users have no control group of their own, so the job's group is read.
async fn an_ordinary_user_s_job_over_its_memory(flag: &str, prefix: &str) {
    let cluster = Cluster::up(&[&CONSTRAINED[..], &["-p", prefix]].concat());
    let stack = cluster
        .stack_of_user("daemon", &[flag], &[MEM_150_MIB])
        .await;
    let (request, record) = outgrown(&stack).await;
    let status = &record.runtime_status;
    let why = status.error.as_deref().unwrap_or_default();
    assert!(
        why.starts_with("killed by its memory limit: used "),
        "{record:?}"
    );
    assert!(why.contains(" of 150.0 MiB"), "{why}");
    let detail = status.error_detail.as_deref().unwrap_or_default();
    assert!(
        detail.contains("the control group of its job counts 1 out-of-memory kill"),
        "{detail}"
    );
    // That the scheduler enforces the limits is no warning.
    assert_eq!((&status.warning, &status.warning_detail), (&None, &None));
    let request = stack.user.container_request(&request).await.unwrap();
    let log = request.log_uuid.unwrap().to_string();
    let result = stack.read(&log, "result.json").await;
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["verdict"], "memory", "{result}");
    let peak = result["peak_memory_bytes"].as_u64().unwrap();
    assert!((100 << 20..=150 << 20).contains(&peak), "{result}");
    let why = outgrown_by_its_executor(&stack).await;
    assert!(why.contains(KILLED_BY_SLURM), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_s_job_over_its_memory_is_told_so_with_crun() {
    an_ordinary_user_s_job_over_its_memory("--oci-runtime=crun", "memc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_s_job_over_its_memory_is_told_so_with_apptainer() {
    an_ordinary_user_s_job_over_its_memory("--runtime-engine=apptainer", "mema").await;
}
