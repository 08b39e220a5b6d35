//! Memory use of capturing an output. A program of its own that runs one test at a time, because it
//! measures itself.

#[path = "integration/files_world/mod.rs"]
mod files_world;

use std::collections::BTreeSet;

use files_world::World;
use serde_json::{Value, json};

const OUT: &str = "/ctr/outdir";

fn part(pdh: &str, path: &str) -> Value {
    json!({"kind": "collection", "portable_data_hash": pdh, "path": path})
}

#[tokio::test]
async fn two_hundred_mounts_of_one_collection_share_their_memory_and_their_copy() {
    let world = World::new().await;
    let paths: Vec<String> = (0..1000)
        .map(|i| format!("d/file-with-a-long-name-{i}"))
        .collect();
    let files: Vec<(&str, &str)> = paths.iter().map(|p| (p.as_str(), "x")).collect();
    let pdh = world.collection(&files).await;
    let mut mounts = json!({OUT: {"kind": "tmp"}});
    for i in 0..200 {
        mounts[format!("/ctr/outdir/m{i}")] = part(&pdh, &format!("d/file-with-a-long-name-{i}"));
        mounts[format!("/in/m{i}")] = part(&pdh, "");
    }
    let before = resident();
    let mut lab = world.lab(json!({"mounts": mounts})).await;
    assert_eq!(lab.output().await.len(), 200);
    let grown = resident().saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes more memory");
    let copies: BTreeSet<_> = lab
        .staged
        .binds
        .iter()
        .filter(|b| b.target.starts_with("/in"))
        .map(|b| &b.host)
        .collect();
    assert_eq!(copies.len(), 1);
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
