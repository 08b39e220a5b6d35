//! A hundred equal containers as one array on a real Slurm: each is its own job to squeue, nice values, scancel and a
//! dispatcher that has forgotten everything.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use serde_json::json;

use crate::slurm_lab::{Cluster, PATIENCE};
use crate::stack::{complete, wait_for};
use crate::starts::Starts;

const COUNT: usize = 100;

/// Each container's job, by its name.
fn jobs(cluster: &Cluster) -> BTreeMap<String, (String, String)> {
    let query = ["--noheader", "--array", "--format=%j %i %T"];
    let listing = cluster.lab.ask("squeue", &query);
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, id, state] = words[..] else {
            panic!("{line}");
        };
        (name.to_owned(), (id.to_owned(), state.to_owned()))
    };
    listing.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_equal_containers_are_one_array_and_each_a_job_of_its_own() {
    one_array(&Cluster::up(&["-n", "2", "-c", "4", "-m", "8000"])).await;
}

pub async fn one_array(cluster: &Cluster) {
    let mut stack = cluster.stack(&["--max-pending", "200"]).await;
    assert!(stack.dispatcher.terminate(PATIENCE).success());
    let starts = Starts::listen();
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
    let mut all = Vec::new();
    for n in 0..COUNT {
        let name = format!("a{n}");
        let script = starts.script(&name, 1.0);
        let (request, container) = stack.submit(&name, &script, network.clone()).await;
        all.push((name, request, container));
    }
    stack.dispatcher.start();
    let first = wait_for("a job of each", PATIENCE, || {
        let jobs = jobs(cluster);
        let has = |container: &ContainerUuid| jobs.contains_key(container.as_str());
        all.iter().all(|(_, _, c)| has(c)).then_some(jobs)
    });
    let arrays: Vec<&str> = first
        .values()
        .map(|(id, _)| id.split('_').next().unwrap())
        .collect();
    assert!(arrays.iter().all(|array| *array == arrays[0]), "{first:?}");
    assert_eq!(first.len(), COUNT);

    // Every local file is gone but what its jobs still need: who it is, and the tokens of those that wait.
    stack.dispatcher.kill();
    let shared = stack.dir.path().join("shared");
    for (name, _, container) in &all {
        // Slurm calls a job running before it has read anything.
        if starts.of(name) > 0 {
            let _ = std::fs::remove_dir_all(shared.join(container.as_str()));
        }
    }
    stack.dispatcher.start();

    let pending = |wanted: &str| {
        let jobs = jobs(cluster);
        let waits = |(_, _, c): &&(_, _, ContainerUuid)| {
            jobs.get(c.as_str())
                .is_some_and(|(_, state)| state == wanted)
        };
        all.iter().rfind(waits).cloned()
    };
    let user = stack.user.clone();
    let hold = |request| {
        let user = user.clone();
        async move {
            user.update_container_request(&request, json!({"priority": 0}))
                .await
        }
    };
    let (_, request, waited) = pending("PENDING").expect("one that waits");
    hold(request).await.unwrap();
    let (_, request, preferred) = all
        .iter()
        .filter(|(_, _, c)| *c != waited)
        .find(|(_, _, c)| {
            jobs(cluster)
                .get(c.as_str())
                .is_some_and(|(_, s)| s == "PENDING")
        })
        .cloned()
        .expect("another that waits");
    user.update_container_request(&request, json!({"priority": 900}))
        .await
        .unwrap();
    let (ran, request, stopped) = wait_for("one that runs", PATIENCE, || {
        let found = pending("RUNNING")?;
        (starts.of(&found.0) == 1).then_some(found)
    });
    hold(request).await.unwrap();
    wait_for("the preferred one to stand first", PATIENCE, || {
        let query = [
            "--noheader",
            "--array",
            "--states=PENDING",
            "--sort=-p",
            "--format=%j",
        ];
        let order = cluster.lab.ask("squeue", &query);
        let first = order.lines().next().map(str::trim);
        let waits = order.contains(preferred.as_str());
        (!waits || first == Some(preferred.as_str())).then_some(())
    });

    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _, container) in &all {
        if *container == waited {
            wait_for("its job to go", PATIENCE, || {
                (!jobs(cluster).contains_key(container.as_str())).then_some(())
            });
            let back = |c: &arvados_client::records::Container| c.state != ContainerState::Locked;
            let record = stack.wait_until(container, PATIENCE, back).await;
            *ends
                .entry(format!("{} while it waited", record.state))
                .or_default() += 1;
            assert_eq!(starts.of(name), 0, "{name}");
            continue;
        }
        let record = stack.end(container, Duration::from_secs(180)).await;
        *ends.entry(record.state.to_string()).or_default() += 1;
        assert_eq!(
            record.lock_count, 1,
            "{name}: it was submitted more than once"
        );
        assert_eq!(starts.of(name), 1, "{name}");
        if *container == stopped {
            assert_eq!(*name, ran);
        } else {
            complete(&record);
        }
    }
    println!("{COUNT} elements of one array: {ends:?}");
    assert_eq!(ends.values().sum::<usize>(), COUNT);
    wait_for("an empty queue", PATIENCE, || {
        jobs(cluster).is_empty().then_some(())
    });
}
