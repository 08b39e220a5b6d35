//! A full disk in each phase of a run: who is blamed, what is reported, and that nothing partial is
//! left.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use crate::run_lab::{Finished, Job, World, can_run, file, finish, left_overs, lines};
use crate::small_disk::Disk;
use arvados_client::records::{Container, ContainerState};
use node_cache::image::ImageStore;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// The program with this cache.
async fn run(world: &World, job: &Job, cache: &Path, flags: &[&str]) -> (Finished, Container) {
    // An attempt that has ended leaves none.
    crate::run_lab::write_token(&job.dir, &job.token);
    let mut program = world.program_with_cache(job, cache);
    program
        .arg("--delivery-timeout=2s")
        .arg("--broken-node-marker")
        .arg(world.dir().join("broken"));
    let finished = finish(program.args(flags).spawn().unwrap()).await;
    assert_eq!(
        left_overs(&job.uuid),
        Vec::<PathBuf>::new(),
        "{}",
        finished.output
    );
    (finished, world.record(job).await)
}

/// Checks that the run ended before the container started, and does not blame the container.
fn never_ran((finished, record): (Finished, Container), words: &str) {
    assert_eq!(finished.code, 75, "{}", finished.output);
    assert!(
        finished.output.contains(words),
        "{words}: {}",
        finished.output
    );
    assert_eq!(record.state, ContainerState::Locked);
}

fn ran((finished, record): &(Finished, Container), code: i32) {
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    assert_eq!(record.exit_code, Some(code), "{}", finished.output);
}

/// The same job with its files on this disk, as a dispatcher gives it to the next crunch-run.
fn on(disk: &Disk, mut job: Job) -> Job {
    job.dir = disk.path().join("job");
    fs::create_dir(&job.dir).unwrap();
    job
}

fn mounts(more: Value) -> Value {
    let mut mounts = json!({"/out": {"kind": "tmp", "capacity": 1u64 << 40}});
    for (name, value) in more.as_object().unwrap() {
        mounts[name] = value.clone();
    }
    json!({"mounts": mounts})
}

/// All files below a directory, by name, but for locks.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => found.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
            }
        }
    }
    found.retain(|name| !name.ends_with(".lock") && name != "filler" && name != "swept");
    found
}

#[tokio::test]
async fn the_cache_is_full_while_the_image_is_unpacked() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let disk = Disk::new(16);
    let cache = disk.path().join("cache");
    let job = world.lock(&["true"], mounts(json!({}))).await;
    // The BrokenNodeHook writes the marker.
    disk.fill(64 << 10);
    never_ran(
        run(&world, &job, &cache, &[]).await,
        "No space left on device",
    );
    assert_eq!(files(&cache), [] as [&str; 0]);
    let marker = world.dir().join("broken");
    assert!(
        fs::read_to_string(&marker)
            .unwrap()
            .contains("No space left")
    );
    disk.make_room();
    ran(&run(&world, &job, &cache, &[]).await, 0);
}

#[test]
fn an_image_that_grows_and_grows_stops_before_the_disk_is_full() {
    if !can_run() {
        return;
    }
    let disk = Disk::new(64);
    let store = ImageStore::open(&disk.path().join("cache")).unwrap();
    let zeros = vec![0; 8 << 20];
    let bomb = crate::image_lab::layer(|tar| {
        for number in 0..20 {
            crate::image_lab::file(tar, &number.to_string(), &zeros);
        }
    });
    let digest = crate::image_lab::hex(&bomb);
    let (bytes, id) = crate::image_lab::docker_archive(&[crate::image_lab::gzip(&bomb)], &[digest]);
    assert!(bytes.len() < 2 << 20);
    let before = disk.free();
    let error = store.load(&mut Cursor::new(bytes), "image.tar", Some(&id));
    let error = error.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("No space left on device"), "{text}");
    assert!(text.contains("1 % are left to others"), "{text}");
    assert!(!error.is_image_fault());
    // Only a lock file is left.
    assert!(disk.free() + (64 << 10) >= before);
    let (bytes, id) = crate::image_lab::archive_of(&[crate::image_lab::layer(|tar| {
        crate::image_lab::file(tar, "name", &zeros);
    })]);
    store
        .load(&mut Cursor::new(bytes), "image.tar", Some(&id))
        .unwrap();
}

#[tokio::test]
async fn the_cache_is_full_while_inputs_are_fetched() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let disk = Disk::new(16);
    let cache = disk.path().join("cache");
    let job = world.lock(&["true"], mounts(json!({}))).await;
    ran(&run(&world, &job, &cache, &[]).await, 0);
    disk.fill(64 << 10);
    let input = world.collection(&[("big", &vec![b'x'; 4 << 20])]).await;
    let input = json!({"/in": {"kind": "collection", "portable_data_hash": input}});
    let script = "wc -c </in/big";
    let job = world.lock(&["sh", "-c", script], mounts(input)).await;
    // It costs time, and no container its run.
    ran(&run(&world, &job, &cache, &[]).await, 0);
    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["4194304"]);
    assert_eq!(files(&cache.join("blocks")), [] as [&str; 0]);
}

#[tokio::test]
async fn the_scratch_space_is_full_while_inputs_are_fetched() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (cache, disk) = (tempfile::tempdir().unwrap(), Disk::new(4));
    let input = world.collection(&[("big", &vec![b'x'; 8 << 20])]).await;
    let input = json!({"/in": {"kind": "collection", "portable_data_hash": input}});
    let job = world.lock(&["true"], mounts(input)).await;
    let scratch = format!("--scratch-dir={}", disk.path().display());
    let ended = run(&world, &job, cache.path(), &[&scratch]).await;
    never_ran(ended, "the inputs need 8388608 bytes");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_container_that_fills_the_scratch_space_hurts_itself_only() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (cache, disk) = (tempfile::tempdir().unwrap(), Disk::new(8));
    let script =
        "echo before >/out/small; head -c 100000000 /dev/zero >/out/big; echo ended $? >&2; exit 3";
    let job = world.lock(&["sh", "-c", script], mounts(json!({}))).await;
    let scratch = format!("--scratch-dir={}", disk.path().display());
    let ended = run(&world, &job, cache.path(), &[&scratch]).await;
    ran(&ended, 3);
    let warning = ended.1.runtime_status.warning.unwrap_or_default();
    assert!(warning.contains("scratch space was full"), "{warning}");
    let log = world.log(&job).await;
    let stderr = lines(file(&log, "stderr.txt")).join("\n");
    assert!(stderr.contains("ended 1"), "{stderr}");
    let run_log = lines(file(&log, "crunch-run.txt"));
    assert_eq!(run_log.last(), Some(&"Complete"));
    // What it could write is what it gets.
    let output = world.output(&job).await;
    assert_eq!(file(&output, "small"), "before\n");
    let big = file(&output, "big").len() as u64;
    assert!((4 * MIB..8 * MIB).contains(&big), "{big}");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_container_that_fills_the_disk_of_its_log_still_has_its_verdict_and_the_last_words() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (cache, disk) = (tempfile::tempdir().unwrap(), Disk::new(8));
    let script = "head -c 100000000 /dev/zero >/out/big; seq 100000; exit 3";
    let job = on(
        &disk,
        world.lock(&["sh", "-c", script], mounts(json!({}))).await,
    );
    let ended = run(&world, &job, cache.path(), &[]).await;
    ran(&ended, 3);
    let log = world.log(&job).await;
    let text = file(&log, "crunch-run.txt");
    let run_log = lines(text);
    assert_eq!(run_log.last(), Some(&"Complete"), "{text}");
    let says = |words: &str| assert!(text.contains(words), "{words}: {text}");
    says("Container exited with status code 3");
    says("scratch space was full");
    says("Warning: the log of stdout is not complete: No space left on device");
    let status = &world.record(&job).await.runtime_status;
    let warnings =
        [&status.warning, &status.warning_detail].map(|text| text.clone().unwrap_or_default());
    assert!(
        warnings
            .concat()
            .contains("the log of stdout is not complete"),
        "{warnings:?}"
    );
    let result: Value = serde_json::from_str(file(&log, "result.json")).unwrap();
    assert_eq!(result["exit_code"], 3);
    let output = world.output(&job).await;
    assert!(file(&output, "big").len() as u64 > 4 * MIB);
    assert!(!job.dir.join("reserve").exists());
}

#[tokio::test]
async fn the_disk_of_the_log_is_full_from_the_start() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (cache, disk) = (tempfile::tempdir().unwrap(), Disk::new(4));
    let job = on(&disk, world.lock(&["true"], mounts(json!({}))).await);
    let scratch = format!("--scratch-dir={}", world.dir().join("scratch").display());
    for free in [8 << 10, 512 << 10] {
        // Enough for the token, or for the description of the container too, and not for a run.
        disk.fill(free);
        let ended = run(&world, &job, cache.path(), &[&scratch]).await;
        never_ran(ended, "No space left on device");
        disk.make_room();
        assert!(!job.dir.join("reserve").exists());
    }
    ran(&run(&world, &job, cache.path(), &[]).await, 0);
}

/// Room for a log and for no output, until it is dropped. What was stored before is hidden.
fn full_block_store(world: &World) -> Disk {
    let blocks = world.state().join("blocks");
    let shards: Vec<_> = fs::read_dir(&blocks).unwrap().flatten().collect();
    let disk = Disk::over(&blocks, 2);
    for shard in shards.iter().map(fs::DirEntry::file_name) {
        fs::create_dir(blocks.join(shard)).unwrap();
    }
    disk
}

/// Room on another node is of no use to a command that has run.
#[tokio::test]
async fn the_place_for_undelivered_results_is_full() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    let job = world.lock(&["true"], mounts(json!({}))).await;
    ran(&run(&world, &job, cache.path(), &[]).await, 0);
    let _full = full_block_store(&world);
    let refuge = Disk::without_room();
    let script = "head -c 8000000 /dev/urandom >/out/big";
    let job = world.lock(&["sh", "-c", script], mounts(json!({}))).await;
    let given = world.program_with_cache(&job, cache.path());
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    let given = given.as_std();
    for (name, value) in given.get_envs() {
        program.env(name, value.unwrap_or_default());
    }
    // In a directory of its own, which is removed with the job.
    let args = given.get_args().skip(2);
    program
        .arg("--delivery-timeout=2s")
        .arg("--undelivered-dir")
        .arg(refuge.path().join("undelivered"))
        .args(args)
        .env("TMPDIR", world.dir())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let finished = finish(program.spawn().unwrap()).await;
    assert_eq!(finished.code, 78, "{}", finished.output);
    let words = "the results could not be delivered and are lost with this job";
    assert!(finished.output.contains(words), "{}", finished.output);
    assert_eq!(world.record(&job).await.state, ContainerState::Running);
}

#[tokio::test]
async fn the_block_store_is_full_while_the_output_is_saved() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let cache = tempfile::tempdir().unwrap();
    let job = world.lock(&["true"], mounts(json!({}))).await;
    ran(&run(&world, &job, cache.path(), &[]).await, 0);
    let disk = full_block_store(&world);
    let script = "head -c 8000000 /dev/urandom >/out/big; md5sum </out/big >/out/sum";
    let job = world.lock(&["sh", "-c", script], mounts(json!({}))).await;
    let (finished, record) = run(&world, &job, cache.path(), &[]).await;
    assert_eq!(finished.code, 77, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Running);
    assert!(
        finished.output.contains("its output cannot be saved"),
        "{}",
        finished.output
    );
    // The disk has space again.
    drop(disk);
    let mut resume = tokio::process::Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    resume.arg("resume").arg(&job.dir).env_clear();
    resume
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let finished = finish(resume.spawn().unwrap()).await;
    let record = world.record(&job).await;
    ran(&(finished, record), 0);
    let output = world.output(&job).await;
    assert!(output.iter().any(|(name, _)| name == "big"));
}
