//! Several people on one dispatcher: places go round by owner, and a site's fair share counts.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use rustix::process::{Signal, kill_process, test_kill_process};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};

/// More than a page of the queue has.
const LONG_QUEUE: usize = 520;

/// A long queue of one user: those that run, and the number of those that wait.
struct LongQueue {
    all: Vec<(ContainerRequestUuid, ContainerUuid)>,
}

impl LongQueue {
    /// Queues jobs that do not end.
    async fn submit(stack: &Stack) -> Self {
        let mut all = Vec::new();
        for n in 0..LONG_QUEUE {
            all.push(stack.submit(&n.to_string(), "sleep 1000", json!({})).await);
        }
        Self { all }
    }

    async fn in_state(&self, stack: &Stack, state: ContainerState) -> Vec<usize> {
        let mut found = Vec::new();
        for (n, (_, container)) in self.all.iter().enumerate() {
            if stack.container(container).await.state == state {
                found.push(n);
            }
        }
        found
    }

    /// Ends the running jobs of this queue, so that others can start.
    async fn kill_running(&self, stack: &Stack) {
        for n in self.in_state(stack, ContainerState::Running).await {
            let (request, container) = &self.all[n];
            let stopped = json!({"priority": 0});
            let user = &stack.user;
            user.update_container_request(request, stopped)
                .await
                .unwrap();
            stack.end(container, STEP_TIMEOUT).await;
        }
    }

    async fn wait_for(&self, stack: &Stack, state: ContainerState, count: usize) {
        let started = std::time::Instant::now();
        loop {
            let found = self.in_state(stack, state.clone()).await.len();
            if found >= count {
                return;
            }
            assert!(started.elapsed() < STEP_TIMEOUT, "{found} are {state}");
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    }
}

async fn submit(stack: &Stack, user: &Client, name: &str, script: &str) -> ContainerUuid {
    let more = json!({"priority": 1});
    let submitted = stack.try_submit_as(user, name, script, more).await;
    submitted.unwrap().1
}

async fn end(stack: &Stack, user: &Client, container: &ContainerUuid) -> Container {
    let is_final = |record: &Container| record.state.is_final();
    stack
        .wait_until_as(user, container, STEP_TIMEOUT, is_final)
        .await
}

/// The machine is full of one user's jobs, and many more of them wait with a higher priority. The
/// next place is another user's.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_of_one_user_delays_no_other_on_one_machine() {
    let mut stack = Stack::with(|servers, dir| {
        let state = dir.join("run");
        let flags = ["--state-dir", state.to_str().unwrap(), "--cpus", "2"];
        servers.dispatcher("dispatch-local", &flags, &[])
    })
    .await;
    let eve = stack.another_user("eve").await;
    let queue = LongQueue::submit(&stack).await;
    queue.wait_for(&stack, ContainerState::Running, 2).await;
    let hers = submit(&stack, &eve, "hers", "true").await;
    queue.kill_running(&stack).await;
    complete(&end(&stack, &eve, &hers).await);
    // Of the two places, one was hers. Nothing else of the queue has begun but its next two.
    let waiting = queue.in_state(&stack, ContainerState::Queued).await.len();
    assert!(waiting >= LONG_QUEUE - 4, "{waiting} wait");
    // Its jobs outlive a dispatcher.
    stack.dispatcher.terminate(STEP_TIMEOUT);
    for n in queue.in_state(&stack, ContainerState::Running).await {
        let executor = stack.executor(&queue.all[n].1);
        kill_process(executor, Signal::TERM).unwrap();
        wait_for("the end of its job", STEP_TIMEOUT, || {
            test_kill_process(executor).is_err().then_some(())
        });
    }
}

/// The places of `--max-pending` are all taken by one user, and many more jobs wait. Another user's
/// jobs are submitted all the same, and the first of them is the next to start.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_of_one_user_delays_no_other_on_slurm() {
    let cluster = Cluster::up(&["-n", "1", "-c", "2", "-m", "4000"]);
    let stack = cluster.stack(&["--max-pending", "20"]).await;
    let eve = stack.another_user("eve").await;
    let queue = LongQueue::submit(&stack).await;
    queue.wait_for(&stack, ContainerState::Running, 2).await;
    queue.wait_for(&stack, ContainerState::Locked, 20).await;
    let mut hers = Vec::new();
    for n in 0..3 {
        hers.push(submit(&stack, &eve, &format!("hers {n}"), "true").await);
    }
    for container in &hers {
        let is_taken = |record: &Container| record.state != ContainerState::Queued;
        stack
            .wait_until_as(&eve, container, STEP_TIMEOUT, is_taken)
            .await;
    }
    // In Slurm, she and he take turns.
    let order = || -> String {
        let query = ["-h", "-t", "PD", "--sort=-p,i", "--format=%j"];
        let names = cluster.lab.run("squeue", &query);
        let is_hers = |name: &str| hers.iter().any(|one| one.as_str() == name.trim());
        let owners = names
            .lines()
            .map(|name| if is_hers(name) { 'e' } else { 'b' });
        owners.take(6).collect()
    };
    wait_for("turns in Slurm", STEP_TIMEOUT, || {
        let order = order();
        let are_hers = |part: &str| part.contains('e') && part.contains('b');
        let pairs = [&order[..2], &order[2..4], &order[4..]];
        pairs.into_iter().all(are_hers).then_some(())
    });
    queue.kill_running(&stack).await;
    complete(&end(&stack, &eve, &hers[0]).await);
    let waiting = queue.in_state(&stack, ContainerState::Queued).await.len();
    assert!(waiting >= LONG_QUEUE - 30, "{waiting} wait");
}

/// Two accounts with shares on a Slurm with multifactor priorities. The one with the larger share
/// and no usage comes first, although its jobs came later, and no nice value leads below other
/// people's jobs.
#[tokio::test(flavor = "multi_thread")]
async fn the_fair_share_between_accounts_is_slurms() {
    let conf = [
        "-n",
        "1",
        "-c",
        "2",
        "-m",
        "4000",
        "-x",
        "PriorityType=priority/multifactor",
        "-x",
        "PriorityWeightFairshare=10000",
        "-x",
        "PriorityCalcPeriod=1",
        "-x",
        "AccountingStorageEnforce=associations",
    ];
    let Some(cluster) = Cluster::with_accounts(&conf) else {
        return;
    };
    for (account, shares) in [("phys", 1), ("bio", 3)] {
        let shares = format!("fairshare={shares}");
        let run = |words: &[&str]| drop(cluster.lab.run("sacctmgr", words));
        run(&["-i", "add", "account", account, &shares]);
        let account = format!("account={account}");
        run(&["-i", "add", "user", "root", &account, &shares]);
    }
    let temp_dir = tempfile::tempdir().unwrap();
    let map = temp_dir.path().join("map");
    fs::write(&map, "eve --account=bio\n* --account=phys\n").unwrap();
    let stack = cluster.stack(&["--owner-map", map.to_str().unwrap()]).await;
    let eve = stack.another_user("eve").await;
    // Slurm knows usage and shares after its next pass, which comes once a minute.
    let mut used = Vec::new();
    for n in 0..2 {
        let (request, container) = stack.submit(&n.to_string(), "sleep 1000", json!({})).await;
        used.push((request, container));
    }
    let fair_share = |account: &str| -> f64 {
        let query = [
            "-n",
            "-P",
            "-A",
            account,
            "-u",
            "root",
            "--format=FairShare",
        ];
        let answer = cluster.lab.run("sshare", &query);
        let mut numbers = answer.lines().filter_map(|line| line.trim().parse().ok());
        numbers.next_back().unwrap_or_default()
    };
    wait_for("a pass of the fair share", STEP_TIMEOUT, || {
        let (phys, bio) = (fair_share("phys"), fair_share("bio"));
        (0.0 < phys && phys < bio).then_some(())
    });
    cluster.control(&["update", "PartitionName=main", "State=DOWN"]);
    for n in 2..32 {
        stack.submit(&n.to_string(), "sleep 1000", json!({})).await;
    }
    for n in 0..15 {
        submit(&stack, &eve, &format!("hers {n}"), "sleep 1000").await;
    }
    // Account, priority and nice value of each pending job.
    let pending = || -> Vec<(String, i64, i64)> {
        let query = ["-h", "-t", "PD", "--format=%a|%Q|%y"];
        let rows = cluster.lab.run("squeue", &query);
        let row = |row: &str| {
            let mut fields = row.trim().split('|');
            let account = fields.next()?.to_owned();
            Some((
                account,
                fields.next()?.parse().ok()?,
                fields.next()?.parse().ok()?,
            ))
        };
        rows.lines().filter_map(row).collect()
    };
    wait_for("the order", STEP_TIMEOUT, || {
        let jobs = pending();
        let is_bounded = jobs.iter().all(|(_, _, nice)| *nice <= 290);
        (jobs.len() == 45 && is_bounded).then_some(())
    });
    let jobs = pending();
    let priorities = |of: &str| -> Vec<i64> {
        let of_account = jobs.iter().filter(|(account, ..)| account == of);
        of_account.map(|(_, priority, _)| *priority).collect()
    };
    let (phys, bio) = (priorities("phys"), priorities("bio"));
    assert_eq!((phys.len(), bio.len()), (30, 15), "{jobs:?}");
    assert!(phys.iter().max() < bio.iter().min(), "{jobs:?}");
    assert!(phys.iter().min() > Some(&1), "at the floor: {jobs:?}");
    for (request, container) in &used {
        let stopped = json!({"priority": 0});
        let user = &stack.user;
        user.update_container_request(request, stopped)
            .await
            .unwrap();
        stack.end(container, STEP_TIMEOUT).await;
    }
    cluster.control(&["update", "PartitionName=main", "State=UP"]);
    let mut running = Vec::new();
    wait_for("two jobs", STEP_TIMEOUT, || {
        let names = cluster.lab.run("squeue", &["-h", "-t", "R", "--format=%a"]);
        running = names.lines().map(|name| name.trim().to_owned()).collect();
        (running.len() == 2).then_some(())
    });
    assert_eq!(running, ["bio", "bio"]);
}
