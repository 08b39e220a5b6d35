//! Any small tree of files is read back from its manifest as it was.

use crunch_run::output::BadEntries;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arvados_client::keep::{FileReader, MemoryStore};
use arvados_client::manifest::Manifest;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::output::plain;

/// Content by path; `None` is a directory.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn trees() -> impl Strategy<Value = Tree> {
    let name = prop_oneof![
        "[a-c]{1,2}",
        "[ -~&&[^/.]]{1,6}",
        prop::sample::select(vec!["...", "\n", "ü:ß", "\\040", ".keep", "0:1:x", "\u{1}"])
            .prop_map(str::to_owned),
    ];
    let path = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
    let content = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::btree_map(path, content, 0..12)
}

/// Makes what fits: a name that is in use as something else is left out, here and in what is
/// expected.
fn make(root: &Path, tree: Tree) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (name, content) in tree {
        let path = root.join(&name);
        match content {
            None => {
                let _ = std::fs::create_dir_all(&path);
            }
            Some(content) => {
                let has_parent = std::fs::create_dir_all(path.parent().unwrap()).is_ok();
                if has_parent && !path.exists() && std::fs::write(&path, &content).is_ok() {
                    files.insert(name, content);
                }
            }
        }
    }
    files
}

/// Adds a `.keep` for each directory that has no files below.
fn empty_directories(dir: &Path, root: &Path, found: &mut Vec<String>) {
    let entries: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    if entries.is_empty() && dir != root {
        let relative = dir.strip_prefix(root).unwrap();
        found.push(format!("{}/.keep", relative.to_str().unwrap()));
    }
    for entry in entries.iter().filter(|entry| entry.is_dir()) {
        empty_directories(entry, root, found);
    }
}

#[test]
fn any_small_tree_is_read_back_as_it_was() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lab = runtime.block_on(plain());
    let root = lab.staged.output_dir.clone();
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(100)
    });
    let result = runner.run(&trees(), |tree| {
        for entry in std::fs::read_dir(&root).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => std::fs::remove_dir_all(path).unwrap(),
                false => std::fs::remove_file(path).unwrap(),
            }
        }
        let mut expected = make(&root, tree);
        let mut empty = Vec::new();
        empty_directories(&root, &root, &mut empty);
        expected.extend(empty.into_iter().map(|path| (path, Vec::new())));
        let store = Arc::new(MemoryStore::new());
        let found = runtime.block_on(async {
            let captured = lab.capture_into(&store, BadEntries::Refuse).await;
            // The text as it is sent.
            let manifest = Manifest::parse(&captured.unwrap().manifest.to_string()).unwrap();
            let mut found = BTreeMap::new();
            for file in manifest.files() {
                let reader = FileReader::new(store.clone(), &file.extents);
                let content = reader.read_all(1 << 20).await.unwrap();
                found.insert(file.path.clone(), content.to_vec());
            }
            found
        });
        prop_assert_eq!(found, expected);
        Ok(())
    });
    result.unwrap();
}
