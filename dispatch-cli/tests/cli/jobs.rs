//! Following a job from the queue to its end.

use std::time::Duration;

use serde_json::json;

use crate::world::{World, run};

const LOG: [(&str, &str); 3] = [
    (
        "stdout.txt",
        "2026-11-21T07:00:00.000000001Z hello\n2026-11-21T07:00:01.000000001Z world\n",
    ),
    ("stderr.txt", "2026-11-21T07:00:02.000000001Z it broke\n"),
    (
        "result.json",
        r#"{"peak_memory_bytes": 3145728, "cpu_seconds": 1.5}"#,
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_jobs_exit_code_and_its_last_words() {
    let world = World::with_image().await;
    let job = world.submit("a").await;
    let waiting = tokio::spawn(run(world.command(&["wait", &job.id])));
    world.start(&job).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.finish(&job, 7, &[("file", "x")], &LOG).await;
    let done = waiting.await.unwrap();
    assert_eq!(done.code, 7);
    assert_eq!(
        done.err,
        format!(
            "it broke\ndispatch: job {} ended with exit code 7\n",
            job.id
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_jobs_the_first_failure_is_the_exit_code() {
    let world = World::with_image().await;
    let mut ids = vec!["--json".to_owned(), "wait".to_owned()];
    for code in [0, 5, 6] {
        let job = world.submit("a").await;
        world.start(&job).await;
        world.finish(&job, code, &[], &LOG).await;
        ids.push(job.id);
    }
    let args: Vec<&str> = ids.iter().map(String::as_str).collect();
    let done = world.run(&args).await;
    assert_eq!(done.code, 5);
    let codes: Vec<i64> = done
        .out
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["exit_code"]
                .as_i64()
                .unwrap()
        })
        .collect();
    assert_eq!(codes, [0, 5, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn submitting_and_waiting_is_one_command() {
    let world = World::with_image().await;
    let waiting = tokio::spawn(run(
        world.command(&["submit", "--image", "tool", "--wait", "--", "tool"])
    ));
    let job = loop {
        let listed = world.run(&["--json", "list"]).await.json();
        if let Some(uuid) = listed[0]["uuid"].as_str() {
            break crate::world::Submitted {
                id: "1".into(),
                uuid: uuid.to_owned(),
                container: listed[0]["container_uuid"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap(),
            };
        }
    };
    world.start(&job).await;
    world.finish(&job, 0, &[], &LOG).await;
    let done = waiting.await.unwrap();
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    assert_eq!(done.out, format!("1 {}\n", job.uuid));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_printed_comes_out_where_it_was_printed() {
    let world = World::with_image().await;
    let job = world.submit("a").await;
    world
        .run(&["logs", &job.id])
        .await
        .says(3, &["has no log yet", "Queued"]);
    world.start(&job).await;
    world.finish(&job, 0, &[], &LOG).await;
    let done = world.run(&["logs", &job.id]).await;
    assert_eq!(
        (done.out.as_str(), done.err.as_str()),
        ("hello\nworld\n", "it broke\n")
    );
    let done = world.run(&["logs", "-t", &job.uuid]).await;
    assert!(
        done.out
            .starts_with("2026-11-21T07:00:00.000000001Z hello\n"),
        "{done:?}"
    );
    let files = world
        .run(&["logs", "--files", job.container.as_str()])
        .await
        .ok();
    assert_eq!(files, "result.json\nstderr.txt\nstdout.txt\n");
    let done = world.run(&["logs", &job.id, "--file", "none.txt"]).await;
    done.says(3, &["no none.txt", "stdout.txt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_log_is_followed_to_its_end() {
    let world = World::with_image().await;
    let job = world.submit("a").await;
    world.start(&job).await;
    let following = tokio::spawn(run(world.command(&["logs", "-f", &job.id])));
    let (first, half) = (LOG[0].1, &LOG[0].1[..60]);
    for part in [half, first] {
        let log = world.store(&[("stdout.txt", part)]).await;
        world.update(&job, json!({"log": log})).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    world.finish(&job, 0, &[], &LOG).await;
    let done = following.await.unwrap();
    assert_eq!(done.code, 0);
    assert_eq!(done.out, "hello\nworld\n");
    assert!(done.err.contains("it broke\n"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_shown_and_explained() {
    let world = World::with_image().await;
    let (done, running, queued) = (
        world.submit("done").await,
        world.submit("runs").await,
        world.submit("waits").await,
    );
    world.start(&done).await;
    world.start(&running).await;
    world
        .update(
            &running,
            json!({"runtime_status": {"activity": "saving output"}}),
        )
        .await;
    world.finish(&done, 3, &[("file", "x")], &LOG).await;

    let table = world.run(&["list", "--usage"]).await.ok();
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..4], ["ID", "NAME", "STATE", "EXIT"]);
    assert_eq!(lines[1][..3], [queued.id.as_str(), "waits", "Queued"]);
    assert_eq!(lines[2][..3], [running.id.as_str(), "runs", "Running"]);
    assert_eq!(lines[3][..4], [done.id.as_str(), "done", "Complete", "3"]);
    assert!(table.lines().nth(3).unwrap().contains("3 MiB"), "{table}");
    let active = world
        .run(&["--json", "list", "--active", "--name", "r%"])
        .await
        .json();
    assert_eq!(active.as_array().unwrap().len(), 1);
    assert_eq!(active[0]["id"], running.id.parse::<u64>().unwrap());

    let shown = world.run(&["show", &done.id]).await.ok();
    for word in [
        "Complete",
        "Exit code    3",
        "Peak memory  3 MiB",
        "tool done",
        done.uuid.as_str(),
    ] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    for (job, word) in [
        (&done, "exit code 3"),
        (&running, "Now: saving output"),
        (&queued, "Waiting in queue for a dispatcher"),
    ] {
        let said = world.run(&["explain", &job.id]).await.ok();
        assert!(said.contains(word), "no {word:?} in {said}");
    }
    let info = world.run(&["--json", "info"]).await.json();
    assert_eq!(
        info["containers"],
        json!({"waiting": 1, "held": 0, "locked": 0, "running": 1})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_can_be_killed_wherever_they_are() {
    let world = World::with_image().await;
    let (queued, locked, running, done) = (
        world.submit("q").await,
        world.submit("l").await,
        world.submit("r").await,
        world.submit("d").await,
    );
    world
        .dispatch
        .lock_container(&locked.container, "")
        .await
        .unwrap();
    world.start(&running).await;
    world.start(&done).await;
    world.finish(&done, 0, &[], &LOG).await;
    for (job, word) in [
        (&queued, "will not start"),
        (&locked, "is being stopped"),
        (&running, "is being stopped"),
        (&done, "was over already (Complete)"),
    ] {
        let said = world.run(&["kill", &job.id]).await;
        assert_eq!(said.code, 0);
        assert!(said.err.contains(word), "{said:?}");
    }
    for job in [&queued, &locked, &running] {
        let container = world.dispatch.container(&job.container).await.unwrap();
        assert_eq!(container.priority, 0, "a dispatcher would stop it");
    }
    let waited = world.run(&["wait", &queued.id]).await;
    assert_eq!(waited.code, 123);
    assert!(waited.err.contains("on hold"), "{waited:?}");
    world
        .update(
            &running,
            json!({"state": "Cancelled", "runtime_status": {"error": "because"}}),
        )
        .await;
    let waited = world.run(&["wait", &running.id]).await;
    assert_eq!(waited.code, 123);
    assert!(waited.err.contains("was cancelled: because"), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_job_went_on_with_another_is_told_of() {
    let world = World::with_image().await;
    let job = world.submit("a").await;
    world.start(&job).await;
    world
        .update(
            &job,
            json!({"state": "Cancelled", "runtime_status": {"error": "its node was lost"}}),
        )
        .await;
    let asked = world.run(&["explain", job.container.as_str()]).await;
    asked.says(
        3,
        &["no job has container", "it is Cancelled, its node was lost"],
    );
    world.run(&["explain", &job.id]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_can_be_limited() {
    let world = World::with_image().await;
    let job = world.submit("a").await;
    let waited = world.run(&["wait", "--timeout", "1s", &job.id]).await;
    assert_eq!(waited.code, 124);
    assert!(
        waited.err.contains("not over yet: it is Queued"),
        "{waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_other_programs_have_no_number_and_can_be_used_all_the_same() {
    let world = World::with_image().await;
    let first = world.submit("a").await;
    let image = world.run(&["--json", "image", "list"]).await.json();
    let made = world
        .user
        .create_container_request(json!({
            "name": "theirs", "state": "Committed", "priority": 1, "command": ["x"], "output_path": "/o", "cwd": ".",
            "container_image": image[0]["portable_data_hash"], "mounts": {"/o": {"kind": "tmp"}},
            "runtime_constraints": {"vcpus": 1, "ram": 1},
        }))
        .await
        .unwrap();
    let listed = world.run(&["--json", "list"]).await.json();
    assert_eq!(listed[0]["uuid"], made.uuid.as_str());
    assert!(listed[0]["id"].is_null());
    world.run(&["kill", made.uuid.as_str()]).await.ok();
    let mine = world.run(&["--json", "list", "--mine"]).await.json();
    assert_eq!(mine.as_array().unwrap().len(), 1);
    assert_eq!(mine[0]["uuid"], first.uuid);
}
