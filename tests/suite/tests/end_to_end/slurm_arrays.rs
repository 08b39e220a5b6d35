//! A hundred equal containers as one array on a real Slurm. Each element is a job of its own for
//! squeue, nice values, scancel and a restarted dispatcher without its files.

use std::collections::BTreeMap;

use arvados_client::records::ContainerState;
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{complete, wait_for};
use suite_tests::start_log::StartLog;

const CONTAINERS: usize = 100;

/// Name, request and container.
type Element = (String, ContainerRequestUuid, ContainerUuid);

/// Each container's job that is not over, by its name.
fn jobs(cluster: &Cluster, all: &[Element]) -> BTreeMap<String, (String, String)> {
    listed(cluster, all, &[])
}

/// The same, with ended jobs.
fn all_jobs(cluster: &Cluster, all: &[Element]) -> BTreeMap<String, (String, String)> {
    listed(cluster, all, &["--states=all"])
}

fn is_among(all: &[Element], job: &str) -> bool {
    all.iter()
        .any(|(_, _, container)| container.as_str() == job)
}

/// Jobs of these containers; the cluster may have others, too.
fn listed(cluster: &Cluster, all: &[Element], more: &[&str]) -> BTreeMap<String, (String, String)> {
    let query = ["--noheader", "--array", "--format=%j %i %T"];
    let listing = cluster.lab.run("squeue", &[&query, more].concat());
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, id, state] = words[..] else {
            panic!("{line}");
        };
        (name.to_owned(), (id.to_owned(), state.to_owned()))
    };
    let jobs = listing.lines().map(line);
    jobs.filter(|(name, _)| is_among(all, name)).collect()
}

/// Changes the priority of one container of the iterator. An ended container cannot change; then
/// the next one is used.
async fn change(
    user: &Client,
    priority: u32,
    what: &str,
    find: impl Fn() -> Option<Element>,
) -> Element {
    loop {
        let found = wait_for(what, STEP_TIMEOUT, &find);
        let change = json!({"priority": priority});
        match user.update_container_request(&found.1, change).await {
            Ok(_) => return found,
            Err(error) => eprintln!("{}: {error}", found.0),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_equal_containers_are_one_array_and_each_a_job_of_its_own() {
    one_array(&Cluster::shared()).await;
}

pub async fn one_array(cluster: &Cluster) {
    // One node, so that the array does not take the whole cluster from other tests.
    let flags = ["--max-pending", "200", "--constraint", "only1"];
    let mut stack = cluster.stack(&flags).await;
    stack.wait_for_dispatcher();
    assert!(stack.dispatcher.terminate(STEP_TIMEOUT).success());
    let starts = StartLog::listen();
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
    let mut all = Vec::new();
    for n in 0..CONTAINERS {
        let name = format!("a{n}");
        let script = starts.script(&name, 1.0);
        let (request, container) = stack.submit(&name, &script, network.clone()).await;
        all.push((name, request, container));
    }
    stack.dispatcher.start();
    // The first may be over before the last is there.
    let first = wait_for("a job of each", STEP_TIMEOUT, || {
        let jobs = all_jobs(cluster, &all);
        let has = |container: &ContainerUuid| jobs.contains_key(container.as_str());
        all.iter().all(|(_, _, c)| has(c)).then_some(jobs)
    });
    let arrays: Vec<&str> = first
        .values()
        .map(|(id, _)| id.split('_').next().unwrap())
        .collect();
    assert!(arrays.iter().all(|array| *array == arrays[0]), "{first:?}");
    assert_eq!(first.len(), CONTAINERS);

    // All local files are deleted except those that jobs need: the identity, and the tokens of
    // pending jobs.
    stack.dispatcher.kill();
    let shared = stack.dir.path().join("shared");
    for (name, _, container) in &all {
        // Slurm calls a job running before it has read anything.
        if starts.count(name) > 0 {
            let _ = std::fs::remove_dir_all(shared.join(container.as_str()));
        }
    }
    stack.dispatcher.start();

    let those = |wanted: &str| -> Vec<Element> {
        let jobs = jobs(cluster, &all);
        let is_it = |(_, _, c): &&Element| {
            jobs.get(c.as_str())
                .is_some_and(|(_, state)| state == wanted)
        };
        all.iter().filter(is_it).cloned().collect()
    };
    let user = &stack.user;
    let last = || those("PENDING").pop();
    let (_, _, waited) = change(user, 0, "one that waits", last).await;
    let other = || those("PENDING").into_iter().find(|(_, _, c)| *c != waited);
    let (_, _, preferred) = change(user, 900, "another that waits", other).await;
    let runs = || {
        let found = those("RUNNING").pop()?;
        (starts.count(&found.0) == 1).then_some(found)
    };
    let (ran, _, stopped) = change(user, 0, "one that runs", runs).await;
    wait_for("the preferred one to stand first", STEP_TIMEOUT, || {
        let query = [
            "--noheader",
            "--array",
            "--states=PENDING",
            "--sort=-p",
            "--format=%j",
        ];
        let order = cluster.lab.run("squeue", &query);
        let mut names = order.lines().map(str::trim);
        let first = names.find(|name| is_among(&all, name));
        let waits = order.contains(preferred.as_str());
        (!waits || first == Some(preferred.as_str())).then_some(())
    });

    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _, container) in &all {
        if *container == waited {
            wait_for("its job to go", STEP_TIMEOUT, || {
                (!jobs(cluster, &all).contains_key(container.as_str())).then_some(())
            });
            let back = |c: &arvados_client::records::Container| {
                c.state == ContainerState::Queued || c.state.is_final()
            };
            let record = stack.wait_until(container, STEP_TIMEOUT, back).await;
            *ends
                .entry(format!("{} while it waited", record.state))
                .or_default() += 1;
            // The job may have started before it was cancelled.
            let most = u32::from(record.state != ContainerState::Queued);
            assert!(starts.count(name) <= most, "{name}: {record:?}");
            continue;
        }
        let record = stack.end(container, STEP_TIMEOUT).await;
        *ends.entry(record.state.to_string()).or_default() += 1;
        assert_eq!(
            record.lock_count, 1,
            "{name}: it was submitted more than once"
        );
        assert_eq!(starts.count(name), 1, "{name}");
        if *container == stopped {
            assert_eq!(*name, ran);
        } else {
            complete(&record);
        }
    }
    println!("{CONTAINERS} elements of one array: {ends:?}");
    assert_eq!(ends.values().sum::<usize>(), CONTAINERS);
    wait_for("an empty queue", STEP_TIMEOUT, || {
        jobs(cluster, &all).is_empty().then_some(())
    });
}
