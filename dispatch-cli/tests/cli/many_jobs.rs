//! What is said of many jobs at once, and of jobs that were stopped or submitted once more.

use arvados_client::client::Call;
use futures_util::{StreamExt, stream};
use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, run};

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_that_are_killed_have_one_sentence() {
    let fixture = Fixture::with_image().await;
    let first = fixture.submit("a").await;
    for _ in 1..24 {
        fixture.submit("a").await;
    }
    fixture.start(&first).await;
    // Those at the end of the queue first: a dispatcher would start them in the place of others.
    let killed = fixture.run(&["--json", "kill", "1", "22-24"]).await.ok();
    let ids = killed.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["id"].as_u64().unwrap()
    });
    assert_eq!(ids.collect::<Vec<_>>(), [24, 23, 22, 1]);
    let killed = fixture.run(&["kill", "--all"]).await;
    assert_eq!(killed.err, "20 jobs cancelled, 1 being stopped\n");
    // Of a job that was killed before it started, the server keeps the container.
    fixture.run(&["rm", "3-5"]).await.ok();
    let info = fixture.run(&["--json", "info"]).await.json();
    assert_eq!(info["containers"]["held"], 0, "{info}");
    let explained = fixture.run(&["explain", "2"]).await.ok();
    assert!(
        explained.starts_with("Job 2 was stopped with 'dispatch kill'; its command did not run."),
        "{explained}"
    );
}

/// A list is complete, however long it is, and many jobs are stopped by few calls.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_thousand_jobs_are_listed_and_killed() {
    const JOBS: usize = 1040;
    let fixture = Fixture::with_image().await;
    let first = fixture.submit("first").await;
    fixture.start(&first).await;
    fixture.finish(&first, 1, &[], &[]).await;
    let path = format!("container_requests/{}", first.uuid);
    let like: Value = fixture.user.send(Call::get(path)).await.unwrap();
    let made = (1..JOBS).map(|n| {
        let mut new = json!({"name": "more", "command": ["tool", n.to_string()], "state": "Committed", "priority": 500});
        for name in ["container_image", "mounts", "output_path", "runtime_constraints"] {
            new[name] = like[name].clone();
        }
        fixture.user.create_container_request(new)
    });
    let made: Vec<_> = stream::iter(made).buffer_unordered(8).collect().await;
    made.into_iter().for_each(|made| drop(made.unwrap()));

    let failed = fixture.run(&["list", "--failed", "-o", "ids"]).await;
    assert_eq!((failed.out.as_str(), failed.err.as_str()), ("1\n", ""));
    let ids = async |more: &[&str]| {
        let listed = fixture.run(&[&["list", "-o", "ids"], more].concat()).await;
        (listed.out.lines().count(), listed.err)
    };
    assert_eq!(ids(&["--all"]).await, (JOBS, String::new()));
    assert_eq!(ids(&["--active", "--limit", "1020"]).await.0, 1020);
    let (shown, note) = ids(&["--limit", "1010"]).await;
    let expected = "1010 of 1040 jobs; see more with --limit or --all\n";
    assert_eq!((shown, note.as_str()), (1010, expected));
    let (shown, note) = ids(&["--status", "Queued", "--limit", "2"]).await;
    let expected = "2 such jobs, the newest; see more with --limit or --all\n";
    assert_eq!((shown, note.as_str()), (2, expected));

    let (proxy, command) = fixture.proxy();
    let killed = run(command(&["kill", "--all"])).await;
    assert_eq!(killed.err, "1039 jobs cancelled, 0 being stopped\n");
    assert_eq!(ids(&["--active", "--all"]).await, (0, String::new()));
    let calls = proxy.count(Method::POST, "container_requests/bulk_update");
    assert_eq!(calls, JOBS.div_ceil(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_submitted_once_more_only_once_unless_it_is_named() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    fixture.finish(&job, 1, &[], &[]).await;
    let first = fixture.run(&["retry", "--failed"]).await;
    assert_eq!(first.err, "job 1 is submitted once more as job 2\n");
    let show = async |id: &str| -> Value {
        let shown = fixture.run(&["--json", "show", id]).await.json();
        shown["request"].clone()
    };
    let (old, new) = (show("1").await, show("2").await);
    assert_eq!(old["properties"]["dispatch_retried_as"], new["uuid"]);
    assert_eq!(new["properties"]["dispatch_retry_of"], old["uuid"]);
    assert_eq!(new["properties"]["dispatch_id"], 2);
    let shown = fixture.run(&["show", "2"]).await.ok();
    assert!(shown.contains("Retry of   job 1\n"), "{shown}");
    let explained = fixture.run(&["explain", "1"]).await.ok();
    let sentence = "It was submitted once more as job 2.";
    assert!(explained.ends_with(&format!("{sentence}\n")), "{explained}");

    let second = fixture.run(&["retry", "--failed"]).await;
    assert_eq!(second.err, "1 job left alone: submitted once more before\n");
    assert_eq!(second.out, "");
    let named = fixture.run(&["retry", "1"]).await;
    assert_eq!(named.err, "job 1 is submitted once more as job 3\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_list_has_all_times_and_the_user() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    fixture.finish(&job, 0, &[], &[]).await;
    fixture.submit("b").await;
    let wide = fixture.run(&["list", "-o", "wide"]).await.ok();
    let rows: Vec<Vec<&str>> = wide
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let title = rows[0].iter().position(|title| *title == "SUBMITTED");
    let titles = [
        "SUBMITTED",
        "STARTED",
        "FINISHED",
        "USER",
        "PROJECT",
        "UUID",
    ];
    assert_eq!(rows[0][title.unwrap()..], titles);
    let shown = fixture.run(&["show", "1"]).await.ok();
    for name in ["Submitted", "Started", "Finished"] {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
        let time = line.split_whitespace().nth(1).unwrap();
        assert!(rows[2].contains(&time), "{name} {time} {wide}");
    }
    assert!(
        rows[2].contains(&"user") && rows[1].contains(&"user"),
        "{wide}"
    );
}

/// A job may end before somebody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_by_name_counts_what_has_ended_before() {
    let fixture = Fixture::with_image().await;
    for code in [0, 4] {
        let job = fixture.submit("f").await;
        fixture.start(&job).await;
        fixture.finish(&job, code, &[], &[]).await;
    }
    for kind in [
        &["--name", "f"][..],
        &["--all", "--since", "1h"],
        &["--failed"],
    ] {
        let waited = fixture.run(&[&["wait"], kind].concat()).await;
        assert_eq!(waited.code, 4, "{kind:?}: {waited:?}");
    }
    // Of all, those that have not ended, also not by a kill before the start.
    let killed = fixture.submit("g").await;
    fixture.run(&["kill", &killed.id]).await.ok();
    for command in ["wait", "kill"] {
        let all = fixture.run(&[command, "--all"]).await;
        assert_eq!(
            (all.code, all.err.as_str()),
            (0, "no such jobs\n"),
            "{command}"
        );
    }
}

/// Among them one with a name in which SQL would see a pattern.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_means_the_jobs_with_this_name_alone() {
    let fixture = Fixture::with_image().await;
    for name in ["a_b", "axb", "a-b", "ab"] {
        fixture.submit(name).await;
    }
    let ids = async |name: &str| {
        let listed = ["list", "-o", "ids", "--name", name];
        fixture.run(&listed).await.ok()
    };
    assert_eq!(ids("a_b").await, "1\n");
    assert_eq!(ids("a%b").await, "4\n3\n2\n1\n");
    let killed = fixture.run(&["kill", "--name", "a_b"]).await;
    assert_eq!(killed.err, "job 1 is cancelled, and will not start\n");
    fixture.run(&["rm", "--name", "a_b"]).await.ok();
    assert_eq!(ids("a%b").await, "4\n3\n2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_job_takes_no_place_in_the_list() {
    let fixture = Fixture::as_arvados_with_image().await;
    for name in ["a", "b", "c"] {
        fixture.submit(name).await;
    }
    fixture.run(&["kill", "2-3"]).await.ok();
    fixture.run(&["rm", "2-3"]).await.ok();
    let listed = fixture.run(&["list", "-o", "ids", "--limit", "1"]).await;
    assert_eq!((listed.out.as_str(), listed.err.as_str()), ("1\n", ""));
    let table = fixture.run(&["list", "--limit", "1"]).await;
    assert_eq!(table.err, "", "there are no more");
}

/// Who waits for a job that somebody kills hears so, and not that it is on hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_job_is_never_on_hold() {
    let fixture = Fixture::with_image().await;
    for _ in 0..3 {
        let job = fixture.submit("a").await;
        let (proxy, command) = fixture.proxy();
        let waiting = tokio::spawn(run(command(&["wait", &job.id])));
        let status = format!("container_requests/{}/container_status", job.uuid);
        while proxy.count(Method::GET, &status) == 0 {
            tokio::task::yield_now().await;
        }
        fixture.run(&["kill", &job.id]).await.ok();
        let waited = waiting.await.unwrap();
        assert_eq!(waited.code, 123, "{waited:?}");
        let said = waited.err;
        assert!(
            said.contains("cancelled") && !said.contains("hold"),
            "{said}"
        );
    }
}

/// A kind of jobs may have some to which a command does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_kind_that_are_left_alone_are_counted() {
    let fixture = Fixture::with_image().await;
    let ended = fixture.submit("a").await;
    fixture.start(&ended).await;
    fixture.finish(&ended, 1, &[], &[]).await;
    for command in ["hold", "release", "kill"] {
        let none = fixture.run(&[command, "--name", "a"]).await;
        assert!(none.err.contains("the only such job has ended"), "{none:?}");
        let none = fixture
            .run(&[command, "--name", "a", "--since", "1s", "--failed"])
            .await;
        assert_eq!(none.code, 0, "{none:?}");
    }
    // A name that no job has may be misspelt: no script goes on after it.
    let status_of = |command| if command == "wait" { 125 } else { 3 };
    for command in ["wait", "hold", "release", "kill", "retry", "rm"] {
        let none = fixture.run(&[command, "--name", "b"]).await;
        none.says(status_of(command), &["no job with the name \"b\""]);
    }
    fixture.submit("a").await;
    for (command, done) in [("retry", "once more as job 3"), ("rm", "2 jobs removed")] {
        let some = fixture.run(&[command, "--name", "a"]).await;
        assert!(some.err.contains("1 job left alone"), "{some:?}");
        assert!(some.err.contains(done), "{some:?}");
        assert_eq!(some.code, 0);
        fixture.run(&["kill", "3"]).await;
    }
}

/// The server would cancel it for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_being_started_is_not_held() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    let lock = fixture.dispatch.lock_container(&job.container, "");
    lock.await.unwrap();
    let held = fixture.run(&["hold", &job.id]).await;
    assert!(held.err.contains("is left alone: it is Locked"), "{held:?}");
    // Nobody named it with --all.
    assert_eq!(held.code, 1);
    fixture.run(&["hold", "--all"]).await.ok();
    fixture.run(&["release", &job.id]).await.ok();
    for command in ["retry", "rm"] {
        assert_eq!(fixture.run(&[command, &job.id]).await.code, 1, "{command}");
    }
    let uuid = job.uuid.parse().unwrap();
    let request = fixture.user.container_request(&uuid).await.unwrap();
    assert_eq!(request.priority, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_another_program_made_of_a_job_gets_a_number_of_its_own() {
    let fixture = Fixture::as_arvados_with_image().await;
    let job = fixture.submit("a").await;
    fixture.run(&["hold", "1"]).await.ok();
    let shown = fixture.run(&["--json", "show", "1"]).await.json();
    // As Workbench runs a process again.
    let mut copy = json!({"name": "Copy of a", "state": "Committed", "priority": 500});
    for name in [
        "command",
        "container_image",
        "environment",
        "mounts",
        "output_path",
        "runtime_constraints",
        "properties",
    ] {
        copy[name] = shown["request"][name].clone();
    }
    copy["properties"]["study"] = json!("moths");
    copy["properties"]["dispatch_retried_as"] = json!("its own");
    let made = Call::post("container_requests", json!({ "container_request": copy }));
    let made: Value = fixture.user.send(made).await.unwrap();
    let copied = made["uuid"].as_str().unwrap();

    let several = "1 is the number of several jobs";
    let young = fixture.run(&["kill", "1"]).await;
    young.says(1, &[several, &job.uuid, copied, "use the uuid"]);
    let database = fixture.path("server/state.db");
    let database = rusqlite::Connection::open(database).unwrap();
    database.busy_timeout(suite_tests::STEP_TIMEOUT).unwrap();
    let minute = "UPDATE container_requests SET created_at = \
                  strftime('%Y-%m-%dT%H:%M:%f000000Z', created_at, ?1)";
    assert_eq!(database.execute(minute, ["-61 seconds"]).unwrap(), 2);
    let kept = format!("{} keeps it", job.uuid);
    let given = format!("{copied} has the number 2 now");
    let killed = fixture.run(&["kill", "1"]).await;
    killed.says(1, &[&kept, &given, "nothing was done"]);
    for (number, uuid) in [("1", &*job.uuid), ("2", copied)] {
        let shown = fixture.run(&["--json", "show", number]).await.json();
        assert_eq!(shown["request"]["uuid"], uuid);
        let properties = &shown["request"]["properties"];
        let of = |kept: Value, copy: Value| if uuid == copied { copy } else { kept };
        for (name, expected) in [
            ("study", of(Value::Null, json!("moths"))),
            ("dispatch_retried_as", of(Value::Null, json!("its own"))),
            ("dispatch_held_priority", of(json!(500), Value::Null)),
            ("dispatch_killed", Value::Null),
        ] {
            assert_eq!(properties[name], expected, "{name} of {number}");
        }
    }
}
