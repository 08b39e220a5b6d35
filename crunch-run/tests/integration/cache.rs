//! The node's cache as the program uses it: inputs are fetched once, and the cache can be listed
//! and emptied.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::run_lab::{World, finish, signal};
use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::{Value, json};

fn cache_command(cache: &Path, words: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_crunch-run"))
        .arg("cache")
        .args(words)
        .arg("--cache-dir")
        .arg(cache)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Kind and use of the entries that `crunch-run cache ls --json` lists.
fn kinds(cache: &Path) -> Vec<(String, bool)> {
    let text = stdout(&cache_command(cache, &["ls", "--json"]));
    let mut found: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|entry| {
            assert!(entry["bytes"].as_u64().is_some_and(|bytes| bytes > 0));
            let kind = entry["kind"].as_str().unwrap().to_owned();
            (kind, entry["in_use"].as_bool().unwrap())
        })
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn inputs_come_once_and_the_cache_can_be_looked_at_and_emptied() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().join("node");
    let input = world.collection(&[("a/text", b"only once\n")]).await;
    let more = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": input},
    }});
    let run = async |more: Value| {
        let job = world.lock(&["cat", "/in/a/text"], more).await;
        let program = world.program_with_cache(&job, &cache).spawn().unwrap();
        let finished = finish(program).await;
        (world.record(&job).await, finished)
    };
    let (record, finished) = run(more.clone()).await;
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    let free = [("block".to_owned(), false), ("layer".to_owned(), false)];
    assert_eq!(kinds(&cache), free);
    let text = stdout(&cache_command(&cache, &["ls"]));
    assert!(text.contains("2 entries"), "{text}");

    // The server loses the block; runs that have it cached do not notice.
    let removed = remove_block(&world, b"only once\n");
    let (record, finished) = run(more.clone()).await;
    assert_eq!(
        (record.state, record.exit_code),
        (ContainerState::Complete, Some(0)),
        "{}",
        finished.output
    );

    // Somebody wrote to the cache: that is found, and does not reach a container.
    let block = find_block(&cache.join("blocks"), removed.file_name().unwrap());
    fs::write(&block, "poisoned!\n").unwrap();
    let output = cache_command(&cache, &["verify"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("1 blocks checked, 1 damaged"), "{text}");
    assert_eq!(
        stdout(&cache_command(&cache, &["verify"])),
        "0 blocks checked, 0 damaged\n"
    );
    let (record, finished) = run(more).await;
    assert_eq!(
        record.state,
        ContainerState::Cancelled,
        "{}",
        finished.output
    );

    // Entries that a container uses stay.
    let job = world.lock(&["sleep", "1000"], json!({})).await;
    let running = world.program_with_cache(&job, &cache).spawn().unwrap();
    world.until_running(&job).await;
    assert_eq!(kinds(&cache), [("layer".to_owned(), true)]);
    let text = stdout(&cache_command(&cache, &["gc", "--cache-size", "0"]));
    assert!(text.contains("1 more would have gone"), "{text}");
    signal(&running, Signal::TERM);
    finish(running).await;
    let text = stdout(&cache_command(&cache, &["gc", "--cache-size", "0"]));
    assert!(text.starts_with("1 entries removed"), "{text}");
    assert_eq!(kinds(&cache), []);
}

/// Removes the block from the server's store, and returns its path.
fn remove_block(world: &World, content: &[u8]) -> std::path::PathBuf {
    let hash = arvados_client::keep::BlockHash::of(content).to_string();
    let path = world.state().join("blocks").join(&hash[..3]).join(&hash);
    fs::remove_file(&path).unwrap();
    path
}

fn find_block(blocks: &Path, name: &std::ffi::OsStr) -> std::path::PathBuf {
    let shard = &name.to_str().unwrap()[..3];
    let path = blocks.join(shard).join(name);
    assert!(path.is_file(), "{}", path.display());
    path
}

#[tokio::test]
async fn a_server_on_this_node_is_read_without_asking_it() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    let input = world.collection(&[("text", b"near\n")]).await;
    let more = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": input},
    }});
    let job = world.lock(&["cat", "/in/text"], more).await;
    let mut program = world.program_with_cache(&job, cache.path());
    program.arg("--block-dir").arg(world.state().join("blocks"));
    let finished = finish(program.spawn().unwrap()).await;
    let record = world.record(&job).await;
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    // Only the image was copied into the cache.
    assert_eq!(kinds(cache.path()), [("layer".to_owned(), false)]);
}

/// Everything in the cache's blocks by name.
fn block_files(cache: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for shard in fs::read_dir(cache.join("blocks")).into_iter().flatten() {
        for file in fs::read_dir(shard.unwrap().path()).unwrap() {
            found.push(file.unwrap().file_name().into_string().unwrap());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_runs_want_one_input_and_the_one_that_fetches_it_is_killed() {
    if !crate::run_lab::can_run() {
        return;
    }
    const SIZE: usize = 16 << 20;
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..SIZE).map(|n| (n / 7) as u8).collect();
    let input = world.collection(&[("big", &content)]).await;
    let more = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": input},
    }});
    let mut running = Vec::new();
    for n in 0..10 {
        let job = world.lock(&["md5sum", "/in/big"], more.clone()).await;
        let program = world
            .program_with_cache(&job, cache.path())
            .spawn()
            .unwrap();
        running.push((job, program));
        // The first run has begun to fetch before the others start.
        let until = std::time::Instant::now() + suite_tests::STEP_TIMEOUT;
        while n == 0 && block_files(cache.path()).is_empty() {
            assert!(std::time::Instant::now() < until, "nothing is fetched");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let (_, mut first) = running.remove(0);
    first.kill().await.unwrap();
    let hash = arvados_client::keep::BlockHash::of(&content).to_string();
    for (job, program) in running {
        let finished = finish(program).await;
        let record = world.record(&job).await;
        assert_eq!(
            record.state,
            ContainerState::Complete,
            "{}",
            finished.output
        );
        let log = world.log(&job).await;
        let stdout = crate::run_lab::file(&log, "stdout.txt");
        assert_eq!(crate::run_lab::lines(stdout), [format!("{hash}  /in/big")]);
    }
    assert_eq!(block_files(cache.path()), [hash]);
    assert_eq!(
        stdout(&cache_command(cache.path(), &["verify"])),
        "1 blocks checked, 0 damaged\n"
    );
}
