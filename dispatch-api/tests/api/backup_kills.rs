//! `kill -9` of backups and restores: the backup is always a whole one, and an unfinished restore
//! never serves.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dispatch_api::backup::{self, Depth};
use dispatch_api::{Options, Server};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::{Api, STEP_TIMEOUT};
use crate::garbage::{path_of, put, save};
use crate::processes::Process;

const BACKUP_POINTS: [&str; 5] = [
    "api.backup.database-copied",
    "api.block.before-rename",
    "api.block.after-rename",
    "api.backup.before-rename",
    "api.backup.after-rename",
];
const RESTORE_POINTS: [&str; 5] = [
    "api.restore.begun",
    "api.block.before-rename",
    "api.block.after-rename",
    "api.restore.files-copied",
    "api.restore.before-end",
];
const SIGKILL: i32 = 9;

/// A server, and the fail points of the commands beside it.
struct World {
    dir: tempfile::TempDir,
    root: Api,
    runtime: Runtime,
    _server: Process,
}

impl World {
    fn new() -> Self {
        if !fail_points::ENABLED {
            panic!("build with --features fail-points/enabled");
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["points", "server-points"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let server =
            Process::start_with(&dir.path().join("state"), &dir.path().join("server-points"));
        Self {
            root: Api::of(&server.ready, "root"),
            runtime: Runtime::new().unwrap(),
            _server: server,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn arm(&self, point: &str) {
        std::fs::write(self.path("points").join(point), "1").unwrap();
    }

    /// Starts `dispatch-api --state-dir STATE COMMAND`.
    fn spawn(&self, state: &Path, words: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_dispatch-api"))
            .arg("--state-dir")
            .arg(state)
            .args(words)
            .env(fail_points::VARIABLE, self.path("points"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn backup(&self) -> Child {
        let target = self.path("backup");
        self.spawn(&self.path("state"), &["backup", target.to_str().unwrap()])
    }

    fn restore(&self, state: &Path) -> Child {
        let backup = self.path("backup");
        self.spawn(state, &["restore", backup.to_str().unwrap()])
    }

    /// A new collection with a block of its own.
    fn save(&self, data: &str) -> Value {
        self.runtime.block_on(async {
            let locator = put(&self.root, data).await;
            save(&self.root, &[locator]).await
        })
    }

    /// Deletes the collection for good, and its blocks.
    fn delete(&self, collection: &Value) {
        self.runtime.block_on(async {
            self.root.delete(&path_of(collection)).await.ok();
            let all = json!({"older_than": 0, "empty_trash": true, "dry_run": false});
            let removed = self.root.post("collections/collect_garbage", all).await;
            assert!(removed.ok()["blocks"].as_u64() >= Some(1));
        });
    }

    /// The collections of the server.
    fn collections(&self) -> BTreeSet<String> {
        self.runtime.block_on(listed(&self.root))
    }

    fn check_backup(&self) {
        let found = backup::fsck(&self.path("backup"), Depth::Content).unwrap();
        assert!(found.is_sound(), "{found:?}");
    }
}

async fn listed(api: &Api) -> BTreeSet<String> {
    let all = json!({"limit": 1000, "select": ["uuid"]});
    let all = api.list("collections", all).await.ok();
    let items = all["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["uuid"].as_str().unwrap().to_owned())
        .collect()
}

/// Whether the child was killed, by us or at a fail point; otherwise it must have succeeded.
fn was_killed(mut child: Child) -> bool {
    let status = child.wait().unwrap();
    match status.signal() {
        Some(SIGKILL) => true,
        _ => {
            assert!(status.success(), "{status}");
            false
        }
    }
}

/// The collections of a server on a restored directory.
fn restored_collections(world: &World, state: &Path) -> BTreeSet<String> {
    world.runtime.block_on(async {
        let mut options = Options::new(state.to_owned());
        // That of the first server is in use.
        options.listen = Some(([127, 0, 0, 2], 0).into());
        let server = Server::start(&options).await.unwrap();
        let found = listed(&Api::of(&server.ready(), "root")).await;
        server.stop().await;
        found
    })
}

#[test]
fn killed_at_each_point_a_backup_is_the_old_one_or_the_new_one() {
    let world = World::new();
    let mut last: Option<Value> = None;
    let mut whole: Option<BTreeSet<String>> = None;
    // Twice, so that each point is also reached with a backup before.
    for (round, point) in BACKUP_POINTS.iter().chain(&BACKUP_POINTS).enumerate() {
        let before = whole.clone();
        let made = world.save(&format!("data {round}"));
        if let Some(old) = last.replace(made) {
            world.delete(&old);
        }
        world.save(&format!("more {round}"));
        world.arm(point);
        assert!(was_killed(world.backup()), "{point}");
        let state = world.path(&format!("restored-{round}"));
        if world.path("backup/state.db").exists() {
            world.check_backup();
            assert!(!was_killed(world.restore(&state)), "{point}");
            let found = restored_collections(&world, &state);
            let now = world.collections();
            assert!(
                before.is_some_and(|before| found == before) || found == now,
                "{point}: {found:?} {now:?}"
            );
        } else {
            let refused = world.restore(&state).wait().unwrap();
            assert_eq!(refused.code(), Some(78), "{point}");
        }
        if round >= 2 {
            assert!(!was_killed(world.backup()), "{point}");
            world.check_backup();
            whole = Some(world.collections());
        }
    }
}

#[test]
fn killed_at_each_point_a_restore_never_serves_and_goes_on() {
    let world = World::new();
    for number in 0..3 {
        world.save(&format!("data {number}"));
    }
    assert!(!was_killed(world.backup()));
    let expected = world.collections();
    for point in RESTORE_POINTS {
        let state = world.path(point);
        world.arm(point);
        assert!(was_killed(world.restore(&state)), "{point}");
        let started = world.spawn(&state, &["--listen", "127.0.0.2:0"]);
        assert_eq!(ended(started), Some(78), "{point}");
        assert!(!was_killed(world.restore(&state)), "{point}");
        assert_eq!(restored_collections(&world, &state), expected, "{point}");
    }
}

/// The exit status of a program that must end by itself.
fn ended(mut child: Child) -> Option<i32> {
    let until = Instant::now() + STEP_TIMEOUT;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.code(),
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill().unwrap();
                return None;
            }
        }
    }
}

/// Killed at any moment, with collections saved and deleted before each.
#[test]
fn killed_at_random_a_backup_stays_whole() {
    let seed =
        std::env::var("KILL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("to repeat this: KILL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::new();
    world.save("first");
    assert!(!was_killed(world.backup()));
    let (mut living, mut kills) = (Vec::new(), 0);
    for round in 0..30 {
        for number in 0..random.usize(1..6) {
            living.push(world.save(&format!("{round} {number}")));
        }
        if living.len() > 4 {
            let old = living.swap_remove(random.usize(..living.len()));
            world.delete(&old);
        }
        let mut child = world.backup();
        std::thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        let _ = child.kill();
        kills += usize::from(was_killed(child));
        world.check_backup();
    }
    assert!(kills > 5, "{kills}");
    assert!(!was_killed(world.backup()));
    let state = world.path("restored");
    assert!(!was_killed(world.restore(&state)));
    assert_eq!(restored_collections(&world, &state), world.collections());
}

/// A block that is deleted after the database was copied belongs to a collection that is gone.
#[test]
fn a_collection_that_is_deleted_meanwhile_is_no_damage() {
    let world = World::new();
    world.save("kept");
    let going = world.save("going");
    let point = "api.backup.database-copied";
    let hold = world.path("points").join(format!("{point}.hold"));
    std::fs::write(&hold, "").unwrap();
    let child = world.backup();
    let until = Instant::now() + STEP_TIMEOUT;
    let passed = || std::fs::read_to_string(world.path("points/passed")).unwrap_or_default();
    while !passed().contains(point) {
        assert!(Instant::now() < until, "{}", passed());
        std::thread::sleep(Duration::from_millis(10));
    }
    world.delete(&going);
    std::fs::remove_file(&hold).unwrap();
    assert!(!was_killed(child));
    world.check_backup();
    let found = backup::fsck(&world.path("backup"), Depth::Content).unwrap();
    assert_eq!(found.collections, 1);
}
