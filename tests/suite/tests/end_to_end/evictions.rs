//! Jobs that the site takes away, on a real Slurm and a real HTCondor pool: twenty containers each,
//! which all end well although their requests allow one container only. The table is in
//! docs/evictions.md.

use std::collections::BTreeSet;
use std::time::Instant;

use arvados_client::records::{Container, ContainerState, RequestState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use rustix::process::Signal;
use serde_json::json;

use suite_tests::condor_lab::Pool;
use suite_tests::program::binary;
use suite_tests::slurm_lab::{Cluster, patient_crunch_run};
use suite_tests::stack::{Stack, client, complete, wait_for};
use suite_tests::start_log::{Gate, StartLog};
use suite_tests::{STEP_TIMEOUT, poll_pause};

const CONTAINERS: usize = 20;

/// Requests whose containers run until the gate is opened.
struct Requests {
    stack: Stack,
    /// Users do not see containers that their request has replaced.
    admin: Client,
    gate: Option<Gate>,
    starts: StartLog,
    /// Names and requests.
    requests: Vec<(String, ContainerRequestUuid)>,
    /// Number of evictions so far.
    rounds: u32,
}

impl Requests {
    async fn submit(stack: Stack) -> Self {
        Self::submit_with(stack, "true", None).await
    }

    /// Submits containers that first do `start`. With `partition` they name it.
    async fn submit_with(stack: Stack, start: &str, partition: Option<&str>) -> Self {
        let admin = client(&stack.ready, "dispatch");
        let (gate, starts) = (Gate::closed(), StartLog::listen());
        let mut requests = Vec::new();
        for number in 0..CONTAINERS {
            let name = format!("e{number}");
            let work = format!("{{ {start}; {} || true; }}", gate.script());
            let partitions: Vec<&str> = partition.into_iter().collect();
            // The least that a request can allow.
            let more = json!({
                "container_count_max": 1,
                "runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true},
                "scheduling_parameters": {"partitions": partitions},
            });
            let script = starts.script_of(&name, &work);
            let (request, _) = stack.submit(&name, &script, more).await;
            requests.push((name, request));
        }
        Self {
            stack,
            admin,
            gate: Some(gate),
            starts,
            requests,
            rounds: 0,
        }
    }

    async fn containers(&self) -> Vec<ContainerUuid> {
        let mut containers = Vec::new();
        for (_, request) in &self.requests {
            let request = self.stack.user.container_request(request).await.unwrap();
            containers.push(request.container_uuid.unwrap());
        }
        containers
    }

    /// Waits until all commands have started, once in each round. Returns their containers.
    async fn all_running(&self) -> Vec<ContainerUuid> {
        for (name, _) in &self.requests {
            wait_for("the container's start", STEP_TIMEOUT, || {
                (self.starts.count(name) == self.rounds + 1).then_some(())
            });
        }
        let containers = self.containers().await;
        let runs = |c: &Container| c.state == ContainerState::Running;
        for container in &containers {
            self.stack.wait_until(container, STEP_TIMEOUT, runs).await;
        }
        containers
    }

    async fn end(&self, container: &ContainerUuid) -> Container {
        let begun = Instant::now();
        loop {
            let record = self.admin.container(container).await.unwrap();
            if record.state.is_final() {
                return record;
            }
            let log = self.stack.dispatcher.log_text();
            assert!(begun.elapsed() < STEP_TIMEOUT, "{record:?}\n{log}");
            tokio::time::sleep(poll_pause(begun)).await;
        }
    }

    /// Waits until these containers are cancelled, and checks that the record of each has this word
    /// and one of these texts.
    async fn evicted(&mut self, containers: &[ContainerUuid], word: &str, texts: &[&str]) {
        for container in containers {
            let record = self.end(container).await;
            assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
            let status = &record.runtime_status;
            assert_eq!(status.extra["eviction"], word, "{status:?}");
            let why = status.error.as_deref().unwrap_or_default();
            assert!(texts.iter().any(|text| why.contains(text)), "{why}");
            self.stack
                .wait_for_log_line(container, r#"event="evicted""#, STEP_TIMEOUT);
        }
        self.rounds += 1;
    }

    /// Lets all commands end: each request is fulfilled, and its command was started once in each
    /// round.
    async fn all_complete(mut self) {
        self.gate.take().unwrap().open();
        let mut seen = BTreeSet::new();
        for (name, uuid) in &self.requests {
            let user = &self.stack.user;
            let request = loop {
                let request = user.container_request(uuid).await.unwrap();
                if request.state == RequestState::Final {
                    break request;
                }
                self.end(&request.container_uuid.unwrap()).await;
            };
            let container = request.container_uuid.unwrap();
            complete(&self.stack.container(&container).await);
            assert!(seen.insert(container), "{name} shares its container");
            let starts = self.starts.count(name);
            assert!(
                starts <= self.rounds + 1,
                "{name} was started {starts} times"
            );
            assert_eq!(request.container_count, starts, "{name}");
        }
        // Users read how each container ended, although they may read the last record only.
        let (name, request) = &self.requests[0];
        let explained = self.stack.explained(request);
        let earlier = explained.matches("Earlier container ").count();
        assert_eq!(earlier + 1, self.starts.count(name) as usize, "{explained}");
        assert!(!explained.contains("does not say why"), "{explained}");
    }
}

fn cluster(more: &[&str]) -> Cluster {
    let nodes = ["-n", "2", "-c", "24", "-m", "16000"];
    Cluster::up(&[&nodes[..], more].concat())
}

/// Higher partitions take nodes from lower ones.
const PREEMPTION: [&str; 8] = [
    "-x",
    "PreemptType=preempt/partition_prio",
    "-x",
    "PreemptMode=REQUEUE",
    "-x",
    "PartitionName=low Nodes=ALL PriorityTier=1 MaxTime=INFINITE DefMemPerCPU=100 State=UP",
    "-x",
    "PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE DefMemPerCPU=100 State=UP",
];

/// `start`: what the containers do first. `crunch_run`: how it is called.
async fn preempted_five_times(start: &str, crunch_run: &str) {
    let cluster = cluster(&PREEMPTION);
    let stack = cluster.stack(&["--crunch-run", crunch_run]).await;
    let mut requests = Requests::submit_with(stack, start, Some("low")).await;
    for _ in 0..5 {
        let containers = requests.all_running().await;
        let other = ["--partition=high", "--nodes=2", "--exclusive", "--parsable"];
        let other = [&other[..], &["--wrap=sleep 1000"]].concat();
        let other = cluster.lab.run("sbatch", &other);
        let says = ["was preempted by another job (node n"];
        requests.evicted(&containers, "preempted", &says).await;
        cluster.lab.run("scancel", &[other.trim()]);
    }
    requests.all_complete().await;
}

/// crunch-run ends before Slurm kills it.
#[tokio::test(flavor = "multi_thread")]
async fn slurm_preempts_jobs_five_times() {
    preempted_five_times("true", binary("crunch-run").to_str().unwrap()).await;
}

/// Slurm kills crunch-run, which waits for containers that do not end.
#[tokio::test(flavor = "multi_thread")]
async fn slurm_preempts_and_kills_jobs_five_times() {
    preempted_five_times("trap : TERM", &patient_crunch_run()).await;
}

/// The site names a partition for containers that may be preempted. Only they run there.
#[tokio::test(flavor = "multi_thread")]
async fn preemptible_containers_run_where_the_site_says() {
    let cluster = cluster(&PREEMPTION);
    let low = ["--preemptible-sbatch-argument", "--partition=low"];
    let stack = Stack::with_api(&["--accept-preemptible"], |servers, dir| {
        cluster.dispatcher(servers, &dir.join("shared"), &low)
    })
    .await;
    for (preemptible, partition) in [(true, "low"), (false, "main")] {
        let more = json!({"scheduling_parameters": {"preemptible": preemptible}});
        let (_, container) = stack.submit(partition, "sleep 1000", more).await;
        let job = cluster.job(&container);
        assert_eq!(cluster.job_field(&job, "%P"), partition);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slurm_jobs_are_cancelled_by_somebody() {
    let cluster = cluster(&[]);
    let stack = cluster.stack(&[]).await;
    let mut requests = Requests::submit(stack).await;
    for _ in 0..2 {
        let containers = requests.all_running().await;
        cluster.lab.run("scancel", &["--user=root"]);
        let says = ["was cancelled in Slurm"];
        requests.evicted(&containers, "cancelled", &says).await;
    }
    requests.all_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slurm_jobs_are_requeued_by_an_administrator() {
    let cluster = cluster(&[]);
    let stack = cluster.stack(&[]).await;
    let mut requests = Requests::submit(stack).await;
    let containers = requests.all_running().await;
    for container in &containers {
        let job = cluster.job(container);
        cluster.control(&["update", &format!("JobId={job}"), "Requeue=1"]);
        cluster.control(&["requeue", &job]);
    }
    let says = ["the container belonged to another attempt"];
    requests.evicted(&containers, "requeued", &says).await;
    requests.all_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slurm_node_is_lost() {
    let cluster = cluster(&["-x", "SlurmdTimeout=10"]);
    let stack = cluster.stack(&[]).await;
    let mut requests = Requests::submit(stack).await;
    let containers = requests.all_running().await;
    let on_first: Vec<ContainerUuid> = containers
        .into_iter()
        .filter(|container| cluster.job_field(&cluster.job(container), "%N") == "n1")
        .collect();
    assert!(!on_first.is_empty());
    cluster.end("slurmd.n1", Signal::KILL);
    let says = ["was lost with its node (NodeDown) (node n1)"];
    requests.evicted(&on_first, "node-lost", &says).await;
    requests.all_complete().await;
}

/// What an administrator does to pending jobs and to nodes costs no attempt.
#[tokio::test(flavor = "multi_thread")]
async fn slurm_jobs_are_held_and_nodes_drained_and_reserved() {
    let cluster = cluster(&[]);
    let stack = cluster.stack(&[]).await;
    let nodes = "NodeName=n[1-2]";
    cluster.control(&["update", nodes, "State=DRAIN", "Reason=test"]);
    let requests = Requests::submit(stack).await;
    let containers = requests.containers().await;
    let jobs: Vec<String> = containers.iter().map(|one| cluster.job(one)).collect();
    // Slurm tells the reason of one of equal jobs.
    let first_waits_for = |reason: &str| {
        wait_for(reason, STEP_TIMEOUT, || {
            let found = cluster.job_field(&jobs[0], "%r");
            found.contains(reason).then_some(())
        });
    };
    first_waits_for("DRAINED");
    for job in &jobs {
        cluster.control(&["hold", job]);
    }
    first_waits_for("JobHeld");
    let words = "create reservation=away users=daemon nodes=ALL starttime=now duration=60 flags=ignore_jobs";
    cluster.control(&words.split(' ').collect::<Vec<_>>());
    cluster.control(&["update", nodes, "State=RESUME"]);
    for job in &jobs {
        cluster.control(&["release", job]);
    }
    first_waits_for("eserv");
    cluster.control(&["delete", "ReservationName=away"]);
    let running = requests.all_running().await;
    assert_eq!(running, containers, "no attempt was lost");
    for container in &running {
        assert_eq!(requests.stack.container(container).await.lock_count, 1);
    }
    // What runs on a drained node goes on.
    cluster.control(&["update", nodes, "State=DRAIN", "Reason=test"]);
    requests.all_complete().await;
}

fn pool() -> Pool {
    Pool::up(&["--slots", "24", "--memory", "16384"])
}

#[tokio::test(flavor = "multi_thread")]
async fn htcondor_vacates_jobs_five_times() {
    let pool = pool();
    let mut requests = Requests::submit(pool.stack(&[]).await).await;
    for _ in 0..5 {
        let containers = requests.all_running().await;
        pool.lab.run("condor_vacate_job", &["-all"]);
        requests
            .evicted(&containers, "preempted", &["was taken off its machine"])
            .await;
    }
    requests.all_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn htcondor_jobs_are_removed_by_somebody() {
    let pool = pool();
    let mut requests = Requests::submit(pool.stack(&[]).await).await;
    for _ in 0..2 {
        let containers = requests.all_running().await;
        pool.lab.run("condor_rm", &["-all"]);
        let says = ["via condor_rm (by user"];
        requests.evicted(&containers, "cancelled", &says).await;
    }
    requests.all_complete().await;
}

/// A hold keeps the container away, and its record says so.
#[tokio::test(flavor = "multi_thread")]
async fn running_htcondor_jobs_are_held_and_released() {
    let pool = pool();
    let mut requests = Requests::submit(pool.stack(&[]).await).await;
    let containers = requests.all_running().await;
    pool.lab.run("condor_hold", &["-all"]);
    for container in &containers {
        pool.job(container, |ad| ad["JobStatus"] == 5);
        let is_told = |c: &Container| {
            let activity = c.runtime_status.activity.as_deref().unwrap_or_default();
            activity.contains("to be released") && c.state == ContainerState::Running
        };
        requests
            .stack
            .wait_until(container, STEP_TIMEOUT, is_told)
            .await;
    }
    assert_eq!(requests.containers().await, containers);
    pool.lab.run("condor_release", &["-all"]);
    let says = ["was held while it ran on"];
    requests.evicted(&containers, "held", &says).await;
    requests.all_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_htcondor_machine_is_lost() {
    let pool = pool();
    // The startd comes back at another port, so that the schedd waits for the end of the lease.
    let short = ["--submit-line", "job_lease_duration = 20"];
    let mut requests = Requests::submit(pool.stack(&short).await).await;
    let containers = requests.all_running().await;
    pool.lose_machine();
    let says = ["was lost with its machine"];
    requests.evicted(&containers, "node-lost", &says).await;
    requests.all_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_htcondor_machine_is_drained() {
    let pool = pool();
    let mut requests = Requests::submit(pool.stack(&[]).await).await;
    let containers = requests.all_running().await;
    let machine = pool.lab.run("condor_status", &["-af", "Machine"]);
    let machine = machine.lines().next().unwrap().to_owned();
    pool.lab.run("condor_drain", &["-quick", &machine]);
    requests
        .evicted(&containers, "preempted", &["was taken off its machine"])
        .await;
    pool.lab.run("condor_drain", &["-cancel", &machine]);
    requests.all_complete().await;
}
