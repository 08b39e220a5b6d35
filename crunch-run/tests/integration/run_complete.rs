//! Containers that end by themselves: output, logs, mounts and the record.

use crate::run_lab::{World, any_token, can_run, file, finish, go_on, lines};
use arvados_client::records::ContainerState;
use serde_json::{Value, json};

#[tokio::test]
async fn a_command_runs_to_complete_with_output_and_log() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (job, finished, record) = world
        .run_command(
            &[
                "sh",
                "-c",
                "echo hello; echo oops >&2; echo data >/out/file",
            ],
            json!({}),
        )
        .await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    assert_eq!(record.exit_code, Some(0));
    assert_eq!(record.runtime_status.error, None);
    assert_eq!(record.runtime_status.activity, None);
    assert_eq!(
        world.output(&job).await,
        [("file".to_owned(), "data\n".to_owned())]
    );

    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["hello"]);
    assert_eq!(lines(file(&log, "stderr.txt")), ["oops"]);
    let story = lines(file(&log, "crunch-run.txt"));
    assert_eq!(story.last(), Some(&"Complete"), "{story:?}");
    assert!(story.contains(&"Container exited with status code 0"));
    assert!(lines(file(&log, "crunchstat.txt")).len() >= 4);
    assert!(file(&log, "node-info.txt").starts_with("Host Information\nLinux "));
    let result: Value = serde_json::from_str(file(&log, "result.json")).unwrap();
    assert_eq!(
        (&result["verdict"], &result["state"]),
        (&json!("exited"), &json!("Complete"))
    );
    assert!(
        result["peak_memory_bytes"].as_u64().unwrap() > 0,
        "{result}"
    );
    assert!(
        result["phases"]["command"].as_f64().unwrap() > 0.0,
        "{result}"
    );
    let recorded: Value = serde_json::from_str(file(&log, "container.json")).unwrap();
    assert_eq!(recorded["state"], "Locked");
    assert_eq!(recorded["uuid"], job.uuid.as_str());

    let mut left: Vec<String> = std::fs::read_dir(&job.dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["lock"]);
}

#[tokio::test]
async fn the_machine_and_its_price_are_told_where_the_dispatcher_names_them() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["sleep", "0.1"], json!({})).await;
    // One unit of money a second.
    let machine = r#"{"ProviderType": "m1.large", "Price": 3600.0, "VCPUs": 2, "RAM": 4000000000}"#;
    let mut program = world.program(&job, &[]);
    let finished = finish(program.env("InstanceType", machine).spawn().unwrap()).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    let cost = record.extra["cost"].as_f64().unwrap();
    assert!((0.1..90.0).contains(&cost), "{cost}");
    let log = world.log(&job).await;
    let node: Value = serde_json::from_str(file(&log, "node.json")).unwrap();
    assert_eq!(node["ProviderType"], "m1.large");
    // Tools expect this file in every log.
    assert_eq!(file(&log, "arv-mount.txt"), "");
    assert!(file(&log, "crunch-run.txt").contains("Inputs are copied to this node"));
}

#[tokio::test]
async fn a_command_that_fails_is_complete_with_its_exit_code() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "mkfifo /out/pipe; echo x >/out/file; exit 7";
    let (job, finished, record) = world.run_command(&["sh", "-c", script], json!({})).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!(record.exit_code, Some(7));
    assert_eq!(record.runtime_status.error, None);
    // Files that were not saved are reported.
    assert_eq!(world.output(&job).await.len(), 1);
    let log = world.log(&job).await;
    let story = lines(file(&log, "crunch-run.txt"));
    assert!(story.iter().any(|l| l.contains("pipe")), "{story:?}");
}

#[tokio::test]
async fn inputs_of_every_kind_arrive_and_stdout_can_be_a_file_of_the_output() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let input = world
        .collection(&[
            ("a.txt", b"from a collection\n"),
            ("deep/b.txt", b"deeper\n"),
        ])
        .await;
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": input},
        "/deep": {"kind": "collection", "portable_data_hash": input, "path": "deep"},
        "/etc/job.json": {"kind": "json", "content": {"b": [1, 562_948_158_193_364_795_i64], "a": "<&>"}},
        "/etc/job.txt": {"kind": "text", "content": "plain text\n"},
        "stdin": {"kind": "json", "content": {"from": "stdin"}},
        "stdout": {"kind": "file", "path": "/out/said/stdout.txt"},
        "stderr": {"kind": "file", "path": "/out/said/stderr.txt"},
    });
    let script = "cat /in/a.txt /deep/b.txt /etc/job.txt; cat; echo; cat /etc/job.json >/out/json; \
                  echo oops >&2; echo x >/in/a.txt";
    let (job, finished, record) = world
        .run_command(&["sh", "-c", script], json!({"mounts": mounts}))
        .await;
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    // The inputs are not writable.
    assert_eq!(record.exit_code, Some(1));
    let output = world.output(&job).await;
    assert_eq!(
        file(&output, "said/stdout.txt"),
        "from a collection\ndeeper\nplain text\n{\"from\":\"stdin\"}\n"
    );
    assert!(file(&output, "said/stderr.txt").starts_with("oops\n"));
    let content: Value = serde_json::from_str(file(&output, "json")).unwrap();
    assert_eq!(content["b"][1], 562_948_158_193_364_795_i64);
    // Redirected streams are not in the log.
    let log = world.log(&job).await;
    assert!(log.iter().all(|(name, _)| !name.contains("stdout.txt")));
}

#[tokio::test]
async fn a_file_that_the_output_begins_with_is_replaced_by_what_is_said() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let earlier = world
        .collection(&[("said", b"of an earlier step\n"), ("kept", b"kept\n")])
        .await;
    let mounts = json!({
        "/out": {"kind": "collection", "portable_data_hash": earlier, "writable": true},
        "stdout": {"kind": "file", "path": "/out/said"},
        "stderr": {"kind": "file", "path": "/out/said"},
    });
    let (job, finished, record) = world
        .run_command(
            &["sh", "-c", "echo one; echo two >&2; echo three"],
            json!({"mounts": mounts}),
        )
        .await;
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    let output = world.output(&job).await;
    assert_eq!(file(&output, "said"), "one\ntwo\nthree\n");
    assert_eq!(file(&output, "kept"), "kept\n");
}

#[tokio::test]
async fn an_image_is_fetched_once_and_then_found_in_the_node_s_cache() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let job = world.lock(&["true"], json!({})).await;
        let finished = crate::run_lab::finish(
            world
                .program_with_cache(&job, cache.path())
                .spawn()
                .unwrap(),
        )
        .await;
        assert_eq!(finished.code, 0, "{}", finished.output);
    }
    let unpacked = std::fs::read_dir(cache.path().join("layers"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_dir())
        .count();
    assert_eq!(unpacked, 1);
}

#[tokio::test]
async fn a_container_with_api_access_acts_as_itself_and_may_name_its_output() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let chosen = world.collection(&[("chosen", b"by the container\n")]).await;
    let job = world
        .lock(
            &[
                "sh",
                "-c",
                "echo $ARVADOS_API_HOST; echo $ARVADOS_API_TOKEN; ls /etc/arvados; \
                 until [ -e /go/on ]; do sleep 0.05; done",
            ],
            json!({
                "runtime_constraints": {"vcpus": 1, "ram": 128 << 20, "API": true},
                "mounts": {
                    "/out": {"kind": "tmp", "capacity": 1 << 20},
                    "/go": {"kind": "tmp", "capacity": 1 << 20},
                },
            }),
        )
        .await;
    let child = world.start(&job, &[]);
    world.until_running(&job).await;
    world.until_logged(&job, "ca-certificates.crt").await;
    let stdout = std::fs::read_to_string(job.dir.join("log/stdout.txt")).unwrap();
    let stdout = lines(&stdout);
    assert_eq!(stdout[0], world.user.endpoint().host);
    let token = arvados_client::Token::new(stdout[1]);
    let container = world.user.with_token(token);
    container
        .update_container(
            &job.uuid,
            json!({"output": chosen, "runtime_status": {"warning": "mine", "step": 3}}),
        )
        .await
        .unwrap();
    go_on(&job);
    let finished = crate::run_lab::finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.output, Some(chosen));
    assert_eq!(record.runtime_status.warning.as_deref(), Some("mine"));
    assert_eq!(record.runtime_status.extra["step"], 3);
}

#[tokio::test]
async fn secrets_reach_the_container_and_nothing_else() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "cat /run/secret; sleep 1; cp /run/secret /out/stolen; ls -l /run/secret >&2";
    let job = world
        .lock(
            &["sh", "-c", &format!("({script}) >/dev/null")],
            json!({
                "secret_mounts": {"/run/secret": {"kind": "text", "content": "sesame-4711\n"}},
                "runtime_constraints": {"vcpus": 1, "ram": 128 << 20, "API": true},
            }),
        )
        .await;
    let child = world.start(&job, &[]);
    world.until_running(&job).await;
    let attempt_secret = job.token.expose().rsplit('/').next().unwrap().to_owned();
    // No token is visible in the list of processes.
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| {
            let bytes = std::fs::read(process.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        for name in ["cmdline", "environ"] {
            let text = read(name);
            assert!(
                !text.contains(&attempt_secret),
                "{name} of {:?}",
                process.path()
            );
            assert!(
                !text.contains("sesame-4711"),
                "{name} of {:?}",
                process.path()
            );
        }
    }
    let finished = crate::run_lab::finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.exit_code, Some(0), "{}", finished.output);
    // The container may copy the secret; the copy shows that the mount works.
    assert_eq!(file(&world.output(&job).await, "stolen"), "sesame-4711\n");
    let log = world.log(&job).await;
    for (name, text) in &log {
        assert!(!text.contains("sesame-4711"), "{name}");
        assert!(!text.contains(&attempt_secret), "{name}");
        assert!(!text.contains("ARVADOS_API_TOKEN"), "{name}");
        assert!(!text.contains(&any_token(&job)), "{name}: {text}");
    }
    let output = &finished.output;
    assert!(!output.contains(&any_token(&job)) && !output.contains("sesame-4711"));
}

#[tokio::test]
async fn endless_lines_and_runaway_output_are_kept_within_bounds() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; head -c 100000 /dev/urandom >&2; seq 1 400000; echo last";
    let job = world.lock(&["sh", "-c", script], json!({})).await;
    let finished = world.run(&job, &["--log-limit=1MiB"]).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let log = world.log(&job).await;
    let text = file(&log, "stdout.txt");
    assert!(text.len() < (1 << 20) + (200 << 10), "{}", text.len());
    let stdout = lines(text);
    assert_eq!(stdout.last(), Some(&"last"));
    assert!(
        stdout
            .iter()
            .any(|l| l.contains("has reached its limit of 1048576 bytes"))
    );
    assert!(stdout.iter().all(|line| line.len() <= 64 << 10));
    lines(file(&log, "stderr.txt"));
    let story = lines(file(&log, "crunch-run.txt"));
    assert!(
        story
            .iter()
            .any(|l| l.starts_with("The log of stdout is not complete: "))
    );
}
