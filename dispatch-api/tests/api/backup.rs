//! Backup, restore and check of a state directory: what is saved, what is told, what is refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use arvados_client::keep::BlockHash;
use dispatch_api::backup::{self, BackupError, Damage, DamageReport, Depth};
use dispatch_api::{Options, Server, StartError};
use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture};
use crate::garbage::{collect, name, path_of, put, save, state_of, stored};

fn backup_of(fixture: &Fixture) -> PathBuf {
    fixture.directory.path().join("backup")
}

fn check(dir: &Path) -> backup::FsckReport {
    backup::fsck(dir, Depth::Content).unwrap()
}

/// The content of a block, by its locator.
async fn read(api: &Api, locator: &str) -> String {
    let path = format!("/{locator}");
    let response = api.raw(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.unwrap()
}

/// The files of a state directory that a restored one must have, with their content.
fn private_files(state: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let mut found = BTreeSet::new();
    for dir in ["", "tokens/"] {
        for entry in std::fs::read_dir(state.join(dir)).unwrap().flatten() {
            let file = format!("{dir}{}", entry.file_name().to_string_lossy());
            let is_own =
                ["lock", "reserve"].contains(&file.as_str()) || file.starts_with("state.db");
            if entry.file_type().unwrap().is_file() && !is_own {
                found.insert((file, std::fs::read(entry.path()).unwrap()));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_server_has_what_the_running_one_had() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let first = put(&alice, "first").await;
    let kept = save(&alice, &[first]).await;
    let dropped = put(&alice, "dropped").await;
    let dropped = save(&alice, &[dropped]).await;
    let (state, target) = (state_of(&fixture), backup_of(&fixture));
    let made = backup::create(&state, &target).unwrap();
    assert_eq!(
        (made.blocks, made.copied_blocks, made.copied_bytes),
        (2, 2, 12)
    );

    // The next one copies what is new, and removes what no collection has any more.
    alice.delete(&path_of(&dropped)).await.ok();
    collect(&fixture, 0, true, false).await;
    let second = put(&alice, "second").await;
    save(&alice, &[second]).await;
    let made = backup::create(&state, &target).unwrap();
    assert_eq!(
        (made.blocks, made.copied_blocks, made.removed_blocks),
        (2, 1, Some(1))
    );
    assert!(made.damage.is_empty(), "{made:?}");
    let later = put(&alice, "later").await;
    let later = save(&alice, &[later]).await;

    let files = private_files(&state);
    assert!(files.len() >= 7, "{files:?}");
    let restored = fixture.directory.path().join("restored");
    let report = backup::restore(&target, &restored).unwrap();
    assert_eq!((report.blocks, report.copied_blocks), (2, 2));
    assert_eq!(private_files(&restored), files);
    assert!(check(&restored).is_sound());

    let Fixture {
        server, directory, ..
    } = fixture;
    server.stop().await;
    let fixture = Fixture::with(directory, Options::new(restored)).await;
    assert_eq!(fixture.server.ready()["host"], alice.host);
    let shown = alice.get(&path_of(&kept)).await.ok();
    assert_eq!(shown["portable_data_hash"], kept["portable_data_hash"]);
    let locator = shown["manifest_text"].as_str().unwrap().split(' ').nth(1);
    assert_eq!(read(&alice, locator.unwrap()).await, "first");
    alice.get(&path_of(&later)).await.error_of(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_told_with_the_collections_that_it_hurts_and_the_rest_is_saved() {
    let fixture = Fixture::new().await;
    let mut locators = Vec::new();
    for data in ["whole", "gone", "rotten", "unused"] {
        locators.push(put(&fixture.admin, data).await);
    }
    let [whole, gone, rotten, _] = locators.try_into().unwrap();
    let hurt = save(&fixture.admin, &[gone, rotten, whole.clone()]).await;
    save(&fixture.admin, &[whole]).await;
    let (state, target) = (state_of(&fixture), backup_of(&fixture));
    assert!(check(&state).is_sound());
    let blocks = stored(&state);
    std::fs::remove_file(&blocks[&name("gone")]).unwrap();
    for data in ["rotten", "unused"] {
        std::fs::write(&blocks[&name(data)], "rot").unwrap();
    }

    let expect = |damage: &DamageReport| {
        let hash = |data: &str| BlockHash::of(data.as_bytes());
        let found: Vec<(BlockHash, &Damage)> = damage
            .bad_blocks
            .iter()
            .map(|block| (block.hash, &block.damage))
            .collect();
        let changed = Damage::Changed { found: hash("rot") };
        let mut expected = vec![(hash("gone"), &Damage::Missing), (hash("rotten"), &changed)];
        expected.sort_by_key(|(hash, _)| *hash);
        assert_eq!(found, expected);
        let [collection] = damage.damaged_collections.as_slice() else {
            panic!("{damage:?}");
        };
        assert_eq!(collection.uuid, hurt["uuid"].as_str().unwrap());
        assert_eq!((collection.blocks, collection.bad_blocks.len()), (3, 2));
    };
    let checked = check(&state);
    expect(&checked.damage);
    assert_eq!(
        (checked.collections, checked.blocks, checked.bytes),
        (2, 3, 5)
    );
    let quick = backup::fsck(&state, Depth::Presence).unwrap();
    assert_eq!(quick.damage.bad_blocks.len(), 1);
    let made = backup::create(&state, &target).unwrap();
    expect(&made.damage);
    assert_eq!((made.blocks, made.copied_blocks), (1, 1));
    // Restored as it is, and the damage is told again: as missing.
    let restored = backup::restore(&target, &fixture.directory.path().join("restored")).unwrap();
    assert_eq!((restored.blocks, restored.damage.bad_blocks.len()), (1, 2));

    // The client stores it again, and all is well.
    for data in ["gone", "rotten"] {
        put(&fixture.admin, data).await;
    }
    assert!(check(&state).is_sound());
    let made = backup::create(&state, &target).unwrap();
    assert!(made.damage.is_empty());
    assert_eq!((made.blocks, made.copied_blocks), (3, 2));
    // A block that rots after it was saved stays good in the backup.
    std::fs::write(&blocks[&name("whole")], "rot").unwrap();
    backup::create(&state, &target).unwrap();
    assert!(check(&target).is_sound());
    // And one that rots in the backup is found there.
    std::fs::write(&stored(&target)[&name("whole")], "rotte").unwrap();
    assert_eq!(check(&target).damage.damaged_collections.len(), 2);
    // One that was cut off is copied again.
    put(&fixture.admin, "whole").await;
    std::fs::write(&stored(&target)[&name("whole")], "wh").unwrap();
    assert_eq!(backup::create(&state, &target).unwrap().copied_blocks, 1);
    assert!(check(&target).is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_not_what_its_hash_says_is_found() {
    let fixture = Fixture::new().await;
    let locator = put(&fixture.admin, "data").await;
    let collection = save(&fixture.admin, &[locator]).await;
    let database = state_of(&fixture).join("state.db");
    let connection = rusqlite::Connection::open(database).unwrap();
    let rot = "UPDATE collections SET manifest_text = replace(manifest_text, 'file', 'fild')";
    connection.execute(rot, []).unwrap();
    let found = check(&state_of(&fixture)).damage.damaged_collections;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].uuid, collection["uuid"].as_str().unwrap());
    assert!(found[0].bad_manifest);
}

/// A manifest that rots so that it names other blocks takes nothing of the good backup with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotten_manifest_costs_no_block_and_no_database_of_the_backup() {
    let fixture = Fixture::new().await;
    let (state, target) = (state_of(&fixture), backup_of(&fixture));
    let locator = put(&fixture.admin, "data").await;
    save(&fixture.admin, &[locator]).await;
    backup::create(&state, &target).unwrap();
    let whole = target.join("state.db.whole");
    let connection = rusqlite::Connection::open(state.join("state.db")).unwrap();
    let swap = |from: &str, to: &str| {
        let rot = "UPDATE collections SET manifest_text = replace(manifest_text, ?1, ?2)";
        connection.execute(rot, [from, to]).unwrap();
    };
    swap(&name("data"), &name("other"));
    for _ in 0..2 {
        let made = backup::create(&state, &target).unwrap();
        assert!(made.damage.has_bad_manifests());
        assert!(stored(&target).contains_key(&name("data")));
        let kept = rusqlite::Connection::open(&whole).unwrap();
        let text: String = kept
            .query_row("SELECT manifest_text FROM collections", [], |row| {
                row.get(0)
            })
            .unwrap();
        assert!(text.contains(&name("data")), "{text}");
    }
    swap(&name("other"), &name("data"));
    assert!(backup::create(&state, &target).unwrap().damage.is_empty());
    assert!(!whole.exists());
}

/// A database with a page that is not what it was: found, and not saved over a good one.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_found_and_the_backup_before_stays() {
    let fixture = Fixture::new().await;
    let (state, target) = (state_of(&fixture), backup_of(&fixture));
    let mut uuid = String::new();
    for number in 0..50 {
        let locator = put(&fixture.admin, &format!("data {number}")).await;
        let saved = save(&fixture.admin, &[locator]).await;
        uuid = saved["uuid"].as_str().unwrap().to_owned();
    }
    backup::create(&state, &target).unwrap();
    let Fixture {
        server, directory, ..
    } = fixture;
    server.stop().await;
    let database = state.join("state.db");
    let connection = rusqlite::Connection::open(&database).unwrap();
    let page: i64 = connection
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'collections'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let size: i64 = connection
        .query_row("PRAGMA page_size", [], |row| row.get(0))
        .unwrap();
    drop(connection);
    let sound = std::fs::read(&database).unwrap();
    let mut bytes = sound.clone();
    let [page, size] = [page, size].map(|number| usize::try_from(number).unwrap());
    bytes[(page - 1) * size..page * size].fill(0x5a);
    std::fs::write(&database, bytes).unwrap();

    let found = check(&state);
    assert!(!found.database_errors.is_empty() && !found.is_sound());
    let refused = backup::create(&state, &target).unwrap_err();
    assert!(matches!(refused, BackupError::Database { .. }), "{refused}");
    assert!(check(&target).is_sound());
    assert_eq!(check(&target).collections, 50);

    // One byte of an index, which SQLite copies as it is.
    std::fs::write(&database, &sound).unwrap();
    let uuid = uuid.as_bytes();
    let places: Vec<usize> = sound
        .windows(uuid.len())
        .enumerate()
        .filter_map(|(place, window)| (window == uuid).then_some(place))
        .collect();
    let rotten = places.into_iter().any(|place| {
        let mut bytes = sound.clone();
        bytes[place + uuid.len() - 1] ^= 1;
        std::fs::write(&database, bytes).unwrap();
        let refused = backup::create(&state, &target);
        matches!(refused, Err(BackupError::Damaged { .. }))
    });
    assert!(rotten);
    assert!(check(&target).is_sound());
    // And a backup whose database rots is not restored.
    let copy = target.join("state.db");
    std::fs::copy(&database, &copy).unwrap();
    let restored = directory.path().join("restored");
    let refused = backup::restore(&target, &restored).unwrap_err();
    assert!(matches!(refused, BackupError::Damaged { .. }), "{refused}");
}

/// While clients save and delete and garbage is removed, each backup is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_busy_server_is_whole() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let clients = (0..3).map(|_| {
        let alice = alice.clone();
        tokio::spawn(async move {
            for round in 0..60 {
                let shared = put(&alice, &format!("block {}", round % 7)).await;
                let made = alice
                    .post("collections", crate::garbage::manifest(&[shared]))
                    .await;
                if made.status == 200 && round % 5 != 4 {
                    alice.delete(&path_of(&made.body)).await.ok();
                }
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let (state, target) = (state_of(&fixture), backup_of(&fixture));
    let mut made = 0;
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        let (from, to) = (state.clone(), target.clone());
        let backup = tokio::task::spawn_blocking(move || backup::create(&from, &to));
        collect(&fixture, 0, true, false).await;
        match backup.await.unwrap() {
            Ok(report) => assert!(report.damage.is_empty(), "{report:?}"),
            Err(BackupError::BlocksVanish) => {}
            Err(error) => panic!("{error}"),
        }
        let found = check(&target);
        assert!(found.is_sound(), "{found:?}");
        made += 1;
    }
    assert!(made > 3, "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_directories_are_refused_and_nothing_is_left_in_them() {
    let fixture = Fixture::new().await;
    let other = Fixture::new().await;
    let (state, target) = (state_of(&fixture), backup_of(&fixture));
    backup::create(&state, &target).unwrap();
    let dir = fixture.directory.path();
    let strange = dir.join("strange");
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("letter"), "dear").unwrap();
    let create = |from: &Path, to: &Path| backup::create(from, to).unwrap_err();

    let refused = create(&state, &strange);
    assert!(matches!(refused, BackupError::NoBackup(_)), "{refused}");
    let refused = create(&state_of(&other), &target);
    assert!(matches!(refused, BackupError::OtherServer(_)), "{refused}");
    for inside in [state.clone(), state.join("deep/backup")] {
        let refused = create(&state, &inside);
        assert!(matches!(refused, BackupError::Inside { .. }), "{refused}");
    }
    assert!(!state.join("deep").exists());
    for nothing in [dir, strange.as_path()] {
        let refused = create(nothing, &dir.join("new"));
        assert!(matches!(refused, BackupError::NoState { .. }), "{refused}");
    }
    assert!(!dir.join("new").exists());
    let refused = create(&target, &dir.join("new"));
    assert!(matches!(refused, BackupError::IsBackup(_)), "{refused}");
    for (from, to, code) in [
        (&strange, &dir.join("new"), "NoBackup"),
        (&state, &dir.join("new"), "NoBackup"),
        (&target, &strange, "NotEmpty"),
        (&target, &state, "NotEmpty"),
        (&target, &target, "NotEmpty"),
    ] {
        let refused = backup::restore(from, to).unwrap_err();
        assert!(format!("{refused:?}").starts_with(code), "{refused:?}");
    }
    assert!(!dir.join("new").exists());
    let left: Vec<_> = std::fs::read_dir(&strange).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");

    // One at a time.
    let lock = std::fs::File::open(target.join("lock")).unwrap();
    lock.lock().unwrap();
    for refused in [
        create(&state, &target),
        backup::fsck(&target, Depth::Presence).unwrap_err(),
    ] {
        assert!(matches!(refused, BackupError::InUse(_)), "{refused}");
    }
    drop(lock);
    // No server starts on a backup.
    let refused = Server::start(&Options::new(target)).await.err().unwrap();
    assert!(matches!(refused, StartError::State(_)), "{refused}");
    assert!(refused.to_string().contains("is a backup"), "{refused}");
    assert_eq!(refused.exit_code(), 78);
}

#[test]
fn the_program_prints_text_and_json_and_ends_with_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let process = crate::processes::Process::start_with(&state, dir.path());
    let run = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_dispatch-api"))
            .arg("--state-dir")
            .arg(&state)
            .args(words)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let target = dir.path().join("backup");
    let target = target.to_str().unwrap();
    let (code, text) = run(&["backup", "--json", target]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(report["copied_blocks"], 0);
    assert_eq!(report["bad_blocks"], json!([]));
    assert_eq!(run(&["fsck"]).0, Some(0));
    assert_eq!(run(&["restore", target]).0, Some(78));
    let root = Api::of(&process.ready, "root");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let collection = runtime.block_on(async {
        let locator = put(&root, "data").await;
        save(&root, &[locator]).await
    });
    std::fs::remove_file(&stored(&state)[&name("data")]).unwrap();
    let (code, text) = run(&["fsck"]);
    assert_eq!(code, Some(1), "{text}");
    for part in [&name("data"), collection["uuid"].as_str().unwrap()] {
        assert!(text.contains(part), "{text}");
    }
    let (code, text) = run(&["fsck", "--quick", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(report["bad_blocks"][0]["hash"], name("data"));
    assert_eq!(report["bad_blocks"][0]["damage"], "missing");
    assert_eq!(run(&["backup", target]).0, Some(1));
}
