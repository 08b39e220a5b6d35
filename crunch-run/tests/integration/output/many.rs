//! Many files in one output.

use serde_json::json;

use crate::files_world::World;
use crate::output::{copy, part, tmp_and};

#[tokio::test]
async fn ten_thousand_files_of_a_collection_are_there_by_link_and_as_a_copy() {
    let world = World::new().await;
    let paths: Vec<String> = (0..10_000)
        .map(|i| format!("d{}/f{}", i / 100, i % 100))
        .collect();
    let files: Vec<(&str, &str)> = paths.iter().map(|p| (p.as_str(), "x")).collect();
    let pdh = world.collection(&files).await;
    let record = tmp_and(json!({"/ro": part(&pdh, ""), "/ctr/outdir/rw": copy(&pdh, "")}));
    let mut lab = world.lab(record).await;
    lab.act(&["link -> /ro"]);
    let found = lab.output().await;
    assert_eq!(found.len(), 20_000);
    assert!(found.contains(&"link/d99/f99".to_owned()) && found.contains(&"rw/d0/f0".to_owned()));
}
