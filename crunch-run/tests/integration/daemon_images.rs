//! Images in the store of a daemon that others of the node use too.

use bollard::Docker;
use bollard::query_parameters::ImportImageOptions;
use futures_util::StreamExt;
use serde_json::json;

use crate::contract::engines::Engine;
use crate::contract::lab::{Lab, play};
use crate::engine_lab::busybox_archive;

const NAME: &str = "node-tool:v1";

/// An archive that gives its image the name.
fn named_archive() -> (Vec<u8>, String) {
    let own = format!("OWN={:016x}", fastrand::u64(..));
    let (mut archive, id) = busybox_archive(json!({"Env": ["PATH=/bin", own]}));
    let old = b"busybox:test";
    let mut places = archive.windows(old.len());
    let at = places.position(|found| found == old).unwrap();
    archive[at..at + old.len()].copy_from_slice(NAME.as_bytes());
    (archive, id)
}

async fn the_admin_s_image_keeps_its_name_and_is_given_to_nobody(lab: &Lab) {
    let daemon = lab.engine.client().await;
    let (archive, id) = named_archive();
    load(&daemon, archive).await;
    assert_eq!(id_of(&daemon).await, id);

    let named_by_id = lab.image_of(b"nothing but a name", &id).await;
    let more = json!({"container_image": named_by_id});
    let ended = lab.run(&["true"], more).await;
    assert!(ended.refusal().contains("neither a"), "{}", ended.refusal());

    let (archive, other) = named_archive();
    let image = lab.image_of(&archive, &other).await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    assert_eq!(ended.code(), 0);
    assert_eq!(id_of(&daemon).await, id);
}

async fn load(daemon: &Docker, archive: Vec<u8>) {
    let body = bollard::body_full(archive.into());
    let mut loading = daemon.import_image(ImportImageOptions::default(), body, None);
    while let Some(line) = loading.next().await {
        line.unwrap();
    }
}

async fn id_of(daemon: &Docker) -> String {
    let id = daemon.inspect_image(NAME).await.unwrap().id.unwrap();
    format!("sha256:{}", id.trim_start_matches("sha256:"))
}

#[tokio::test]
async fn docker() {
    let scenario = the_admin_s_image_keeps_its_name_and_is_given_to_nobody;
    play(Engine::Docker, "", scenario).await;
}

#[tokio::test]
async fn podman() {
    let scenario = the_admin_s_image_keeps_its_name_and_is_given_to_nobody;
    play(Engine::Podman, "", scenario).await;
}
