//! State directories that earlier versions wrote, in `tests/data/states/`: this version opens each,
//! and nothing is lost.
//!
//! Each has a dump of the database, the identity, a few of the blocks, and what must be there. A
//! new layout adds a directory that the version before it has written.

use std::fs;
use std::path::{Path, PathBuf};

use dispatch_api::Options;
use dispatch_api::backup::{self, Damage, Depth};
use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture};

fn states() -> Vec<PathBuf> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/states");
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Makes a state directory of its stored form.
fn unpack(stored: &Path, state: &Path) {
    fs::create_dir(state).unwrap();
    fs::copy(stored.join("server.json"), state.join("server.json")).unwrap();
    for shard in fs::read_dir(stored.join("blocks")).unwrap() {
        let shard = shard.unwrap();
        let to = state.join("blocks").join(shard.file_name());
        fs::create_dir_all(&to).unwrap();
        for block in fs::read_dir(shard.path()).unwrap() {
            let block = block.unwrap();
            fs::copy(block.path(), to.join(block.file_name())).unwrap();
        }
    }
    let connection = rusqlite::Connection::open(state.join("state.db")).unwrap();
    let dump = fs::read_to_string(stored.join("state.sql")).unwrap();
    connection.execute_batch(&dump).unwrap();
}

fn layout(state: &Path) -> i64 {
    let connection = rusqlite::Connection::open(state.join("state.db")).unwrap();
    let version = "PRAGMA user_version";
    connection.query_row(version, [], |row| row.get(0)).unwrap()
}

/// Compares the records with those that were stored, and reads an output.
async fn check(api: &Api, expected: &Value) {
    for (kind, count) in expected["records"].as_object().unwrap() {
        let all = api.list(kind, json!({"limit": 1000})).await.ok();
        assert_eq!(&all["items_available"], count, "{kind}");
    }
    let request = expected["output"]["request"].as_str().unwrap();
    let request = api.get(&format!("container_requests/{request}")).await.ok();
    let output = request["output_uuid"].as_str().unwrap();
    let output = api.get(&format!("collections/{output}")).await.ok();
    let manifest = output["manifest_text"].as_str().unwrap();
    let path = format!("/{}", manifest.split(' ').nth(1).unwrap());
    let block = api.raw(Method::GET, &path).send().await.unwrap();
    let content = expected["output"]["content"].as_str().unwrap();
    assert_eq!(block.text().await.unwrap(), content);
}

#[tokio::test(flavor = "multi_thread")]
async fn this_version_opens_what_earlier_ones_wrote_and_loses_nothing() {
    let states = states();
    assert!(!states.is_empty());
    for stored in states {
        let expected = fs::read_to_string(stored.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        unpack(&stored, &state);
        assert_eq!(layout(&state), expected["layout"], "{}", stored.display());

        // A backup is made before an upgrade, and restored by the new version.
        let [target, restored] = ["backup", "restored"].map(|name| directory.path().join(name));
        backup::create(&state, &target).unwrap();
        backup::restore(&target, &restored).unwrap();
        let fixture = Fixture::at(directory).await;
        let root = Api::of(&fixture.server.ready(), "root");
        check(&root, &expected).await;
        // Only the blocks that the stored form leaves out are missing.
        let found = backup::fsck(&state, Depth::Content).unwrap();
        assert!(found.database_errors.is_empty(), "{found:?}");
        let is_left_out = |damage: &Damage| *damage == Damage::Missing;
        let bad = &found.damage.bad_blocks;
        assert!(
            bad.iter().all(|block| is_left_out(&block.damage)),
            "{bad:?}"
        );

        let fixture = fixture.restarted().await;
        check(&root, &expected).await;
        let Fixture {
            server, directory, ..
        } = fixture;
        server.stop().await;
        let fixture = Fixture::with(directory, Options::new(restored)).await;
        check(&Api::of(&fixture.server.ready(), "root"), &expected).await;
    }
}
