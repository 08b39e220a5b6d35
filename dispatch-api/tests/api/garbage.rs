//! The removal of unused blocks: what goes, what stays, and that nothing in use is ever lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use arvados_client::keep::BlockHash;
use proptest::prelude::*;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture};

const HOUR: u64 = 3600;

/// Stores a block and returns its signed locator.
pub async fn put(api: &Api, data: &str) -> String {
    let hash = BlockHash::of(data.as_bytes());
    let stored = api.raw(Method::PUT, &format!("/{hash}"));
    let locator = api.send(stored.body(data.to_owned())).await.ok();
    locator.as_str().unwrap().trim().to_owned()
}

pub fn manifest(locators: &[String]) -> Value {
    let blocks = locators.join(" ");
    json!({"collection": {"manifest_text": format!(". {blocks} 0:1:file\n")}})
}

pub async fn save(api: &Api, locators: &[String]) -> Value {
    api.post("collections", manifest(locators)).await.ok()
}

pub fn path_of(collection: &Value) -> String {
    format!("collections/{}", collection["uuid"].as_str().unwrap())
}

/// Removes at most what is older than so many seconds. Its report.
pub async fn collect(
    fixture: &Fixture,
    older_than: u64,
    empty_trash: bool,
    dry_run: bool,
) -> Value {
    let body = json!({"older_than": older_than, "empty_trash": empty_trash, "dry_run": dry_run});
    let root = Api::of(&fixture.server.ready(), "root");
    root.post("collections/collect_garbage", body).await.ok()
}

/// The blocks on disk.
pub fn stored(state: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for shard in std::fs::read_dir(state.join("blocks")).unwrap().flatten() {
        for file in std::fs::read_dir(shard.path()).unwrap().flatten() {
            found.insert(file.file_name().into_string().unwrap(), file.path());
        }
    }
    found
}

pub fn state_of(fixture: &Fixture) -> PathBuf {
    fixture.directory.path().join("state")
}

pub fn name(data: &str) -> String {
    BlockHash::of(data.as_bytes()).to_string()
}

pub fn make_old(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    let old = SystemTime::now() - Duration::from_secs(2 * HOUR);
    file.set_modified(old).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_collection_names_goes_and_the_rest_stays() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let mut locators = BTreeMap::new();
    for data in ["saved", "trashed", "unused"] {
        locators.insert(data, put(&alice, data).await);
    }
    save(&alice, &[locators["saved"].clone()]).await;
    let trashed = save(&alice, &[locators["trashed"].clone()]).await;
    alice.delete(&path_of(&trashed)).await.ok();
    // It may be saved yet.
    let young = collect(&fixture, HOUR, true, false).await;
    assert_eq!(
        (&young["blocks"], &young["kept_blocks"]),
        (&json!(0), &json!(3))
    );
    // What is stored again is young again.
    make_old(&stored(&state_of(&fixture))[&name("unused")]);
    put(&alice, "unused").await;
    assert_eq!(collect(&fixture, HOUR, true, false).await["blocks"], 0);
    let counted = collect(&fixture, 0, false, true).await;
    let expected = json!({"blocks": 1, "bytes": 6, "collections": 0, "kept_blocks": 2, "kept_trash": 1, "young_blocks": 0, "young_bytes": 0, "held_blocks": 0, "held_bytes": 0,
                          "kept_bytes": 12, "more": false});
    assert_eq!(counted, expected);
    assert_eq!(stored(&state_of(&fixture)).len(), 3, "it was only counted");
    assert_eq!(collect(&fixture, 0, false, false).await, expected);
    assert!(!stored(&state_of(&fixture)).contains_key(&name("unused")));

    // Who still has its locator is told, and may store it again.
    let late = manifest(&[locators["unused"].clone()]);
    let refused = alice.post("collections", late.clone()).await.error_of(422);
    assert!(refused.contains("store it again"), "{refused}");
    put(&alice, "unused").await;
    alice.post("collections", late).await.ok();

    alice
        .post(&format!("{}/untrash", path_of(&trashed)), json!({}))
        .await
        .ok();
    alice.delete(&path_of(&trashed)).await.ok();
    let counted = collect(&fixture, 0, true, true).await;
    assert_eq!(
        (&counted["collections"], &counted["blocks"]),
        (&json!(1), &json!(1))
    );
    let emptied = collect(&fixture, 0, true, false).await;
    assert_eq!(
        (&emptied["collections"], &emptied["blocks"]),
        (&json!(1), &json!(1))
    );
    let left: Vec<String> = stored(&state_of(&fixture)).into_keys().collect();
    assert_eq!(
        BTreeSet::from_iter(left),
        BTreeSet::from([name("saved"), name("unused")])
    );
}

/// Blocks that are stored and saved while others are removed: a collection that was accepted has
/// all of its blocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_was_accepted_has_its_blocks() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let clients = (0..3).map(|_| {
        let alice = alice.clone();
        tokio::spawn(async move {
            let (mut saved, mut refused) = (0, 0);
            for round in 0..60 {
                let shared = put(&alice, &format!("block {}", round % 3)).await;
                let made = alice.post("collections", manifest(&[shared])).await;
                match made.status {
                    200 => {
                        saved += 1;
                        // Some stay, and some make garbage of the shared blocks.
                        if round % 10 != 9 {
                            alice.delete(&path_of(&made.body)).await.ok();
                        }
                    }
                    422 => refused += 1,
                    status => panic!("{status}: {}", made.body),
                }
            }
            (saved, refused)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut removed = 0;
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        removed += collect(&fixture, 0, true, false).await["blocks"]
            .as_u64()
            .unwrap();
    }
    let mut accepted = 0;
    for client in clients {
        accepted += client.await.unwrap().0;
    }
    assert!(accepted > 0 && removed > 0, "{accepted} {removed}");
    check_collections(&fixture).await;
}

/// Checks that all blocks of all collections are on disk.
async fn check_collections(fixture: &Fixture) {
    let blocks = stored(&state_of(fixture));
    let all = json!({"limit": 1000, "include_trash": true, "select": ["manifest_text"]});
    let all = fixture.admin.list("collections", all).await.ok();
    for collection in all["items"].as_array().unwrap() {
        let text = collection["manifest_text"].as_str().unwrap();
        for word in text.split(' ').filter(|word| word.contains('+')) {
            let hash = word.split('+').next().unwrap();
            assert!(blocks.contains_key(hash), "{hash} is lost: {text}");
        }
    }
}

/// A block that is saved while the garbage is being removed stays.
#[test]
fn what_is_saved_in_between_stays() {
    require_fail_points();
    let directory = tempfile::tempdir().unwrap();
    let (state, points) = (
        directory.path().join("state"),
        directory.path().join("points"),
    );
    std::fs::create_dir(&points).unwrap();
    let hold = points.join("api.garbage.marked.hold");
    std::fs::write(&hold, "").unwrap();
    let process = crate::processes::Process::start_with(&state, &points);
    let root = Api::of(&process.ready, "root");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let late = put(&root, "late").await;
        put(&root, "unused").await;
        let body = json!({"older_than": 0, "dry_run": false});
        let collector = root.clone();
        let collecting =
            tokio::spawn(async move { collector.post("collections/collect_garbage", body).await });
        let until = std::time::Instant::now() + crate::fixture::STEP_TIMEOUT;
        let passed = || std::fs::read_to_string(points.join("passed")).unwrap_or_default();
        while !passed().contains("api.garbage.marked") {
            assert!(std::time::Instant::now() < until, "{}", passed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        save(&root, &[late]).await;
        std::fs::remove_file(&hold).unwrap();
        assert_eq!(collecting.await.unwrap().ok()["blocks"], 1);
    });
    assert_eq!(
        stored(&state).into_keys().collect::<Vec<_>>(),
        [name("late")]
    );
}

/// Killed in the middle, the next start has lost nothing, and the next removal does the rest.
#[test]
fn a_kill_in_the_middle_loses_nothing() {
    require_fail_points();
    let directory = tempfile::tempdir().unwrap();
    let points = directory.path().join("points");
    std::fs::create_dir(&points).unwrap();
    std::fs::write(points.join("api.garbage.removed"), "1").unwrap();
    let state = directory.path().join("state");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let process = crate::processes::Process::start_with(&state, &points);
    let root = Api::of(&process.ready, "root");
    runtime.block_on(async {
        let saved = put(&root, "saved").await;
        save(&root, &[saved]).await;
        for number in 0..300 {
            put(&root, &format!("unused {number}")).await;
        }
        let body = json!({"older_than": 0, "dry_run": false});
        let call = root.raw(Method::POST, "/arvados/v1/collections/collect_garbage");
        assert!(call.json(&body).send().await.is_err(), "it was killed");
    });
    drop(process);
    let left = stored(&state);
    assert!((2..301).contains(&left.len()), "{}", left.len());
    assert!(left.contains_key(&name("saved")));
    let fixture = runtime.block_on(Fixture::at(directory));
    runtime.block_on(async {
        let report = collect(&fixture, 0, false, false).await;
        assert_eq!(report["blocks"], left.len() - 1);
        assert_eq!(
            stored(&state_of(&fixture)).into_keys().collect::<Vec<_>>(),
            [name("saved")]
        );
    });
}

fn require_fail_points() {
    if !fail_points::ENABLED {
        panic!("build with --features fail-points/enabled");
    }
}

/// What a client or an administrator does.
#[derive(Debug, Clone)]
enum Step {
    Put(usize),
    /// Saves a collection with these of the blocks that were stored once.
    Save(BTreeSet<usize>),
    Trash(usize),
    Untrash(usize),
    /// Two hours pass for the blocks.
    Age,
    Collect {
        older_than: u64,
        empty_trash: bool,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_usize).prop_map(Step::Put),
        4 => prop::collection::btree_set(0..6_usize, 1..4).prop_map(Step::Save),
        2 => (0..4_usize).prop_map(Step::Trash),
        1 => (0..4_usize).prop_map(Step::Untrash),
        1 => Just(Step::Age),
        3 => (prop_oneof![Just(0), Just(HOUR)], any::<bool>())
            .prop_map(|(older_than, empty_trash)| Step::Collect { older_than, empty_trash }),
        1 => Just(Step::Restart),
    ]
}

/// What must be true.
#[derive(Default)]
struct Model {
    /// Whether each stored block is old.
    blocks: BTreeMap<usize, bool>,
    locators: BTreeMap<usize, String>,
    /// Path, blocks, whether it is in the trash.
    collections: Vec<(String, BTreeSet<usize>, bool)>,
}

impl Model {
    fn collect(&mut self, older_than: u64, empty_trash: bool) {
        // No collection is in the trash for an hour.
        if empty_trash && older_than == 0 {
            self.collections.retain(|(_, _, is_trashed)| !is_trashed);
        }
        let named: BTreeSet<usize> = self
            .collections
            .iter()
            .flat_map(|(_, blocks, _)| blocks.clone())
            .collect();
        self.blocks
            .retain(|block, is_old| named.contains(block) || (older_than > 0 && !*is_old));
    }

    async fn run(&mut self, mut fixture: Fixture, steps: Vec<Step>) {
        let alice = fixture.plain_user("alice").await;
        let data = |block: usize| format!("data {block}");
        for step in steps {
            match step {
                Step::Put(block) => {
                    let locator = put(&alice, &data(block)).await;
                    self.locators.insert(block, locator);
                    self.blocks.insert(block, false);
                }
                Step::Save(mut blocks) => {
                    blocks.retain(|block| self.locators.contains_key(block));
                    let named: Vec<String> = blocks
                        .iter()
                        .map(|block| self.locators[block].clone())
                        .collect();
                    if named.is_empty() {
                        continue;
                    }
                    let made = alice.post("collections", manifest(&named)).await;
                    let is_stored = blocks.iter().all(|block| self.blocks.contains_key(block));
                    assert_eq!(
                        made.status,
                        if is_stored { 200 } else { 422 },
                        "{}",
                        made.body
                    );
                    if is_stored {
                        self.collections.push((path_of(&made.body), blocks, false));
                    }
                }
                Step::Trash(index) | Step::Untrash(index) => {
                    let to_trash = matches!(step, Step::Trash(_));
                    if let Some((path, _, is_trashed)) = self.collections.get_mut(index) {
                        let verb = if to_trash { "trash" } else { "untrash" };
                        let moved = alice.post(&format!("{path}/{verb}"), json!({})).await;
                        let is_refused = !to_trash && !*is_trashed;
                        assert_eq!(moved.status, if is_refused { 422 } else { 200 });
                        *is_trashed = to_trash;
                    }
                }
                Step::Age => {
                    stored(&state_of(&fixture))
                        .values()
                        .for_each(|path| make_old(path));
                    self.blocks.values_mut().for_each(|is_old| *is_old = true);
                }
                Step::Collect {
                    older_than,
                    empty_trash,
                } => {
                    let counted = collect(&fixture, older_than, empty_trash, true).await;
                    let removed = collect(&fixture, older_than, empty_trash, false).await;
                    assert_eq!(counted, removed, "it was counted otherwise");
                    self.collect(older_than, empty_trash);
                }
                Step::Restart => fixture = fixture.restarted().await,
            }
            let expected = self.blocks.keys().map(|block| name(&data(*block)));
            let found: BTreeSet<String> = stored(&state_of(&fixture)).into_keys().collect();
            assert_eq!(found, expected.collect());
        }
        check_collections(&fixture).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn exactly_the_unused_goes(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            Model::default().run(Fixture::new().await, steps).await;
        });
    }
}
