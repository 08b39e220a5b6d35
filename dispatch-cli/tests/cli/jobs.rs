//! A job from the queue to its end.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Fixture, run};

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
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    let waiting = tokio::spawn(run(fixture.command(&["wait", &job.id])));
    fixture.start(&job).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    fixture.finish(&job, 7, &[("file", "x")], &LOG).await;
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
    let fixture = Fixture::with_image().await;
    let mut ids = vec!["--json".to_owned(), "wait".to_owned()];
    for code in [0, 5, 6] {
        let job = fixture.submit("a").await;
        fixture.start(&job).await;
        fixture.finish(&job, code, &[], &LOG).await;
        ids.push(job.id);
    }
    let args: Vec<&str> = ids.iter().map(String::as_str).collect();
    let done = fixture.run(&args).await;
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
    let fixture = Fixture::with_image().await;
    let waiting = tokio::spawn(run(
        fixture.command(&["submit", "--image", "tool", "--wait", "--", "tool"])
    ));
    let job = loop {
        let listed = fixture.run(&["--json", "list"]).await.json();
        if let Some(uuid) = listed[0]["uuid"].as_str() {
            break crate::fixture::Submitted {
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
    fixture.start(&job).await;
    fixture.finish(&job, 0, &[], &LOG).await;
    let done = waiting.await.unwrap();
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    assert_eq!(done.out, format!("1 {}\n", job.uuid));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_printed_comes_out_where_it_was_printed() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture
        .run(&["logs", &job.id])
        .await
        .says(3, &["has no log yet", "Queued"]);
    fixture.start(&job).await;
    fixture.finish(&job, 0, &[], &LOG).await;
    let done = fixture.run(&["logs", &job.id]).await;
    assert_eq!(
        (done.out.as_str(), done.err.as_str()),
        ("hello\nworld\n", "it broke\n")
    );
    let done = fixture.run(&["logs", "-t", &job.uuid]).await;
    assert!(
        done.out
            .starts_with("2026-11-21T07:00:00.000000001Z hello\n"),
        "{done:?}"
    );
    let files = fixture
        .run(&["logs", "--files", job.container.as_str()])
        .await
        .ok();
    assert_eq!(files, "result.json\nstderr.txt\nstdout.txt\n");
    let done = fixture.run(&["logs", &job.id, "--file", "none.txt"]).await;
    done.says(3, &["no none.txt", "stdout.txt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_log_is_followed_to_its_end() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    let following = tokio::spawn(run(fixture.command(&["logs", "-f", &job.id])));
    let (first, half) = (LOG[0].1, &LOG[0].1[..60]);
    for part in [half, first] {
        let log = fixture.store(&[("stdout.txt", part)]).await;
        fixture.update(&job, json!({"log": log})).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    fixture.finish(&job, 0, &[], &LOG).await;
    let done = following.await.unwrap();
    assert_eq!(done.code, 0);
    assert_eq!(done.out, "hello\nworld\n");
    assert!(done.err.contains("it broke\n"), "{done:?}");
    let end = format!("job {} ended with exit code 0", job.id);
    assert!(done.err.contains(&end), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_shown_and_explained() {
    let fixture = Fixture::with_image().await;
    let (done, running, queued) = (
        fixture.submit("done").await,
        fixture.submit("runs").await,
        fixture.submit("waits").await,
    );
    fixture.start(&done).await;
    fixture.start(&running).await;
    fixture
        .update(
            &running,
            json!({"runtime_status": {"activity": "saving output"}}),
        )
        .await;
    fixture.finish(&done, 3, &[("file", "x")], &LOG).await;

    let table = fixture.run(&["list", "--usage"]).await.ok();
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..4], ["ID", "NAME", "STATE", "EXIT"]);
    assert_eq!(lines[1][..3], [queued.id.as_str(), "waits", "Queued"]);
    assert_eq!(lines[2][..3], [running.id.as_str(), "runs", "Running"]);
    assert_eq!(lines[3][..4], [done.id.as_str(), "done", "Complete", "3"]);
    assert!(table.lines().nth(3).unwrap().contains("3 MiB"), "{table}");
    let active = fixture
        .run(&["--json", "list", "--active", "--name", "r%"])
        .await
        .json();
    assert_eq!(active.as_array().unwrap().len(), 1);
    assert_eq!(active[0]["id"], running.id.parse::<u64>().unwrap());

    for (flags, ids) in [
        (&["-o", "ids"][..], "3\n2\n1\n"),
        (&["-o", "ids", "--failed"], "1\n"),
        (&["-o", "ids", "--status", "running,Queued"], "3\n2\n"),
        (&["-o", "ids", "--status", "Queued", "--failed"], ""),
        (&["-o", "ids", "--since", "1h", "--limit", "1"], "3\n"),
    ] {
        let flags = [&["list"], flags].concat();
        assert_eq!(fixture.run(&flags).await.ok(), ids, "{flags:?}");
    }
    let wrong = fixture.run(&["list", "--status", "Done"]).await;
    assert!(
        wrong.code == 2 && wrong.err.contains("the states are Draft, Held"),
        "{wrong:?}"
    );
    let listed = fixture
        .run(&["list", "-o", "json", "--failed"])
        .await
        .json();
    assert_eq!(listed[0]["name"], "done", "{listed}");

    let shown = fixture.run(&["show", &done.id]).await.ok();
    for word in [
        "Complete",
        "Exit code    3",
        "Peak memory  3 MiB",
        "tool done",
        done.uuid.as_str(),
    ] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    let named = fixture.run(&["show", "done"]).await;
    assert_eq!((named.out, named.err.as_str()), (shown, ""));
    let again = fixture.submit("done").await;
    for command in ["show", "explain"] {
        let newest = fixture.run(&[command, "done"]).await;
        let note = format!(
            "several jobs have the name done; the newest is {}",
            again.id
        );
        assert!(newest.err.contains(&note), "{newest:?}");
        assert!(newest.out.contains(&again.id), "{newest:?}");
    }
    let logs = fixture.run(&["logs", "done"]).await;
    assert!(logs.err.contains("has no log yet"), "{logs:?}");
    fixture.run(&["kill", &again.id]).await.ok();
    for (job, word) in [
        (&done, "exit code 3"),
        (&running, "Now: saving output"),
        (
            &queued,
            "for a dispatcher: number 1 of 1 that wait; 1 of all users",
        ),
    ] {
        let answer = fixture.run(&["explain", &job.id]).await.ok();
        assert!(answer.contains(word), "no {word:?} in {answer}");
    }
    let info = fixture.run(&["--json", "info"]).await.json();
    assert_eq!(
        info["containers"],
        json!({"waiting": 1, "held": 0, "locked": 0, "running": 1})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_can_be_killed_wherever_they_are() {
    let fixture = Fixture::with_image().await;
    let (queued, locked, running, done) = (
        fixture.submit("q").await,
        fixture.submit("l").await,
        fixture.submit("r").await,
        fixture.submit("d").await,
    );
    fixture
        .dispatch
        .lock_container(&locked.container, "")
        .await
        .unwrap();
    fixture.start(&running).await;
    fixture.start(&done).await;
    fixture.finish(&done, 0, &[], &LOG).await;
    for (job, word) in [
        (&queued, "will not start"),
        (&locked, "is being stopped"),
        (&running, "is being stopped"),
        (&done, "had already ended (Complete)"),
    ] {
        let answer = fixture.run(&["kill", &job.id]).await;
        assert_eq!(answer.code, 0);
        assert!(answer.err.contains(word), "{answer:?}");
    }
    for job in [&queued, &locked, &running] {
        let container = fixture.dispatch.container(&job.container).await.unwrap();
        assert_eq!(container.priority, 0, "a dispatcher would stop it");
    }
    let waited = fixture.run(&["wait", &queued.id]).await;
    assert_eq!(waited.code, 123);
    assert!(waited.err.contains("was cancelled"), "{waited:?}");
    fixture
        .update(
            &running,
            json!({"state": "Cancelled", "runtime_status": {"error": "because"}}),
        )
        .await;
    let waited = fixture.run(&["wait", &running.id]).await;
    assert_eq!(waited.code, 123);
    assert!(waited.err.contains("was cancelled: because"), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_job_went_on_with_another_is_told_of() {
    let fixture = Fixture::with_image_of_admin().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    fixture
        .update(
            &job,
            json!({"state": "Cancelled", "runtime_status": {"error": "its node was lost"}}),
        )
        .await;
    // Only an administrator can read a container that no request names any more.
    let token = fixture.ready["tokens"]["dispatch"].as_str().unwrap();
    let token = std::fs::read_to_string(token).unwrap();
    let mut command = fixture.command(&["explain", job.container.as_str()]);
    command.env("ARVADOS_API_TOKEN", token.trim());
    let explain = crate::fixture::run(command).await;
    explain.says(
        3,
        &["no job has container", "it is Cancelled, its node was lost"],
    );
    fixture.run(&["explain", &job.id]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_can_be_limited() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    let waited = fixture.run(&["wait", "--timeout", "1s", &job.id]).await;
    assert_eq!(waited.code, 124);
    assert!(
        waited.err.contains("has not ended yet: it is Queued"),
        "{waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_other_programs_have_no_number_in_arvados_and_can_be_used_all_the_same() {
    let fixture = Fixture::as_arvados_with_image().await;
    let first = fixture.submit("a").await;
    let image = fixture.run(&["--json", "image", "list"]).await.json();
    let made = fixture
        .user
        .create_container_request(json!({
            "name": "theirs", "state": "Committed", "priority": 1, "command": ["x"], "output_path": "/o", "cwd": ".",
            "container_image": image[0]["portable_data_hash"], "mounts": {"/o": {"kind": "tmp"}},
            "runtime_constraints": {"vcpus": 1, "ram": 1},
        }))
        .await
        .unwrap();
    let listed = fixture.run(&["--json", "list"]).await.json();
    assert_eq!(listed[0]["uuid"], made.uuid.as_str());
    assert!(listed[0]["id"].is_null());
    assert_eq!(listed[0]["user"], "user", "{listed}");
    assert!(listed[0]["project"].is_null(), "{listed}");
    let mine = fixture.run(&["--json", "list", "--mine"]).await.json();
    let mine: Vec<_> = mine
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["uuid"])
        .collect();
    assert_eq!(mine, [made.uuid.as_str(), &first.uuid]);
    let killed = fixture.run(&["--json", "kill", "--name", "their%"]).await;
    assert_eq!(killed.json()["uuid"], made.uuid.as_str());
    let named = fixture.run(&["kill", "--name", "theirs"]).await;
    assert_eq!(named.err, "the only such job has ended\n");
    let killed = fixture.run(&["--json", "kill", "--all"]).await.json();
    assert_eq!(killed["uuid"], first.uuid);
}

/// Several jobs are named by ranges, names and kinds.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_held_released_reordered_and_submitted_again() {
    let fixture = Fixture::with_image().await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        jobs.push(fixture.submit(name).await);
    }
    let all = format!("{}-{}", jobs[0].id, jobs[2].id);
    let states = async || -> Vec<String> {
        let listed = fixture.run(&["list", "--json", "--all"]).await;
        let listed: Value = serde_json::from_str(&listed.ok()).unwrap();
        let state = |row: &Value| row["state"].as_str().unwrap().to_owned();
        let mut states: Vec<String> = listed.as_array().unwrap().iter().map(state).collect();
        states.reverse();
        states
    };
    let priorities = async || -> Vec<i64> {
        let mut found = Vec::new();
        for job in &jobs {
            let uuid = job.uuid.parse().unwrap();
            let request = fixture.user.container_request(&uuid).await.unwrap();
            found.push(request.priority);
        }
        found
    };
    let says = async |args: &[&str], words: &str| {
        let answer = fixture.run(args).await;
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.err.contains(words), "{answer:?}");
    };
    says(&["priority", "700", &jobs[1].id, &jobs[1].id], "for 1 job").await;
    assert_eq!(priorities().await, [500, 700, 500]);
    says(&["hold", &all], "held 3 jobs").await;
    says(&["hold", &all], "held 0 jobs; 3 left alone").await;
    assert_eq!(states().await, ["Held"; 3]);
    says(&["priority", "600", &jobs[2].id], "for 1 job").await;
    says(&["release", "--name", "b"], "released 1 job").await;
    says(&["release", &all], "released 2 jobs").await;
    assert_eq!(priorities().await, [500, 700, 600]);
    says(&["kill", "--all"], "is cancelled, and will not start").await;
    assert_eq!(states().await, ["Cancelled"; 3]);
    let active = fixture.run(&["list", "--active", "--json"]).await.ok();
    assert_eq!(active.trim(), "[]");
    assert_eq!(fixture.run(&["wait", &all]).await.code, 123);
    // What was killed does not start again.
    says(&["release", "--all"], "released 0 jobs").await;
    let refused = fixture.run(&["release", &all]).await;
    assert!(refused.err.contains("released 0 jobs; 3 left alone"));
    assert_eq!(refused.code, 1);
    assert_eq!(fixture.run(&["priority", "1", &all]).await.code, 1);
    assert_eq!(states().await, ["Cancelled"; 3]);
    // A newer job that was killed takes no place of those that have not ended.
    for name in ["d", "e"] {
        fixture.submit(name).await;
    }
    fixture.run(&["kill", "5"]).await.ok();
    let active = fixture.run(&["list", "--active", "--limit", "1", "-o", "ids"]);
    assert_eq!(active.await.ok().trim(), "4");
    let again = fixture.run(&["retry", "--failed"]).await;
    assert!(
        again.err.contains("job 3 is submitted once more as job 8"),
        "{again:?}"
    );
    assert_eq!(again.ok().lines().count(), 4);
    let after = states().await;
    assert_eq!(
        after[..5],
        ["Cancelled", "Cancelled", "Cancelled", "Queued", "Cancelled"]
    );
    assert_eq!(after[5..], ["Queued"; 4]);
    let shown = fixture.run(&["show", "8", "--json"]).await.ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["request"]["name"], "c");
    for (args, code) in [
        (&["kill", "100-200"][..], 3),
        (&["kill"], 2),
        (&["kill", "7", "--all"], 2),
        (&["priority", "0", "1"], 2),
    ] {
        assert_eq!(fixture.run(args).await.code, code, "{args:?}");
    }
    let zero = fixture.run(&["priority", "0", "1"]).await;
    assert!(zero.err.contains("use 'dispatch hold'"), "{zero:?}");
}
