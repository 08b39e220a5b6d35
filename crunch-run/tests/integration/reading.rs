//! Concurrent readers: inputs that several runs share, one input at several paths, and the log
//! before and after a kill.

use std::path::Path;

use crate::run_lab::{World, can_run, file, finish, lines, signal};
use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::{Value, json};

fn mounts(more: Value) -> Value {
    let mut mounts = json!({"/out": {"kind": "tmp", "capacity": 1 << 20}});
    for (name, value) in more.as_object().unwrap() {
        mounts[name] = value.clone();
    }
    json!({"mounts": mounts})
}

/// Removes everything unused from the cache.
fn empty(cache: &Path) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_crunch-run"))
        .args(["cache", "gc", "--cache-size=0", "--cache-dir"])
        .arg(cache)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_shared_input_outlives_its_other_reader_and_the_cache() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    let input = world.collection(&[("data", b"shared by two\n")]).await;
    let part = json!({"kind": "collection", "portable_data_hash": input});
    let go = json!({"kind": "tmp", "capacity": 1 << 20});
    let long =
        "echo ready; until [ -e /go/on ]; do sleep 0.05; done; cat /in/data; cp /in/data /out/";
    let long = world
        .lock(&["sh", "-c", long], mounts(json!({"/in": part, "/go": go})))
        .await;
    let running = world
        .program_with_cache(&long, cache.path())
        .spawn()
        .unwrap();
    world.until_logged(&long, "ready").await;
    let short = world
        .lock(&["cat", "/in/data"], mounts(json!({"/in": part})))
        .await;
    let program = world.program_with_cache(&short, cache.path()).spawn();
    assert_eq!(finish(program.unwrap()).await.code, 0);
    empty(cache.path());
    // The image is in use, the block is not.
    assert_eq!(
        std::fs::read_dir(cache.path().join("layers"))
            .unwrap()
            .count(),
        2
    );
    for entry in std::fs::read_dir(long.dir.join("scratch/files/mounts")).unwrap() {
        let dir = entry.unwrap().path();
        if dir.is_dir() && !dir.ends_with("output") && !dir.join("data").exists() {
            std::fs::write(dir.join("on"), "").unwrap();
        }
    }
    let finished = finish(running).await;
    let record = world.record(&long).await;
    assert_eq!(record.exit_code, Some(0), "{}", finished.output);
    let output = world.output(&long).await;
    assert_eq!(file(&output, "data"), "shared by two\n");
}

#[tokio::test]
async fn one_input_is_read_under_several_names_and_inside_another_mount() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let input = world
        .collection(&[("data", b"the same\n"), ("dir/more", b"x\n")])
        .await;
    let part = json!({"kind": "collection", "portable_data_hash": input});
    let file_of = json!({"kind": "collection", "portable_data_hash": input, "path": "data"});
    let more = mounts(json!({
        "/one": part, "/two": part, "/three/deep/down": part, "/two/dir/inner": part, "/file": file_of,
    }));
    let script =
        "cat /one/data /two/data /three/deep/down/data /two/dir/inner/data /file; ls /two/dir";
    let (job, finished, record) = world.run_command(&["sh", "-c", script], more).await;
    assert_eq!(record.exit_code, Some(0), "{}", finished.output);
    let log = world.log(&job).await;
    let mut expected = vec!["the same"; 5];
    expected.extend(["inner", "more"]);
    assert_eq!(lines(file(&log, "stdout.txt")), expected);

    // A mount of a file cannot have a mount inside.
    let more = mounts(json!({"/file": file_of, "/file/inner": part}));
    let (_, finished, record) = world.run_command(&["true"], more).await;
    assert_eq!(
        record.state,
        ContainerState::Cancelled,
        "{}",
        finished.output
    );
    let error = record.runtime_status.error.unwrap();
    assert!(error.contains("/file/inner"), "{error}");
}

#[tokio::test]
async fn what_is_read_of_the_log_while_it_runs_is_there_after_a_kill() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "echo first; echo other >&2; echo second; echo data >/out/file; sleep 1000 & wait";
    let job = world.lock(&["sh", "-c", script], json!({})).await;
    let child = world.start(&job, &[]);
    world.until_logged(&job, "second").await;
    // Other threads write these.
    world.until_saved_in(&job, "stderr.txt", "other").await;
    world.until_saved_in(&job, "crunchstat.txt", "mem ").await;
    let before = world.record(&job).await.log;
    signal(&child, Signal::USR1);
    world.until(&job, "saved", |c| c.log != before).await;
    let running = world.log(&job).await;
    signal(&child, Signal::TERM);
    let finished = finish(child).await;
    let record = world.record(&job).await;
    assert_eq!(
        record.state,
        ContainerState::Cancelled,
        "{}",
        finished.output
    );
    let after = world.log(&job).await;
    let names = |files: &[(String, String)]| -> Vec<String> {
        // The API server also keeps the attempt's log in a directory.
        let names = files.iter().map(|(name, _)| name.clone());
        names.filter(|name| !name.contains('/')).collect()
    };
    for (name, text) in &running {
        assert!(
            file(&after, name).starts_with(text),
            "{name} is another one"
        );
    }
    assert_eq!(lines(file(&running, "stdout.txt")), ["first", "second"]);
    assert_eq!(file(&running, "stdout.txt"), file(&after, "stdout.txt"));
    assert_eq!(file(&running, "stderr.txt"), file(&after, "stderr.txt"));
    // The read-only directory stays unchanged, and only the result is new.
    let new: Vec<_> = names(&after)
        .into_iter()
        .filter(|name| !names(&running).contains(name))
        .collect();
    assert_eq!(new, ["result.json"]);
}
