//! Images: a root directory with busybox is added, listed, downloaded and added again.

use std::fs;
use std::os::unix::fs::symlink;

use arvados_client::client::Call;
use serde_json::{Value, json};
use sha2::Digest;

use crate::fixture::Fixture;

/// Makes a root directory.
fn busybox(fixture: &Fixture) {
    let bin = fixture.path("root/bin");
    fs::create_dir_all(&bin).unwrap();
    // The content does not matter here; the real busybox is used if it is installed.
    let real = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find_map(|path| fs::read(path).ok());
    fs::write(
        bin.join("busybox"),
        real.unwrap_or_else(|| b"busybox".to_vec()),
    )
    .unwrap();
    for name in ["sh", "cat", "wc"] {
        symlink("busybox", bin.join(name)).unwrap();
    }
}

/// A job that is submitted once more has the image that it had, whatever has its name now.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_uses_the_same_image() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.run(&["kill", &job.id]).await.ok();
    let image = async |job: &str| {
        let shown = fixture.run(&["--json", "show", job]).await.json();
        let text = |record: &str| {
            shown[record]["container_image"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        (text("request"), text("container"))
    };
    let (name, used) = image(&job.id).await;
    let shown = fixture.run(&["show", &job.id]).await.ok();
    assert!(shown.contains(&format!("{name} ({used})")), "{shown}");
    let again = fixture.run(&["retry", &job.id]).await;
    assert!(!again.err.contains("the image"), "{again:?}");
    assert_eq!(image("2").await, (name.clone(), used.clone()));

    let other = fixture.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("tool"), "another one").unwrap();
    let add = ["image", "add", &name, other.to_str().unwrap()];
    fixture.run(&add).await.ok();
    let again = fixture.run(&["retry", &job.id]).await;
    let words = "with the image that it had; tool is another one now";
    assert!(again.err.contains(words), "{again:?}");
    assert_eq!(image("3").await, (used.clone(), used.clone()));

    // Nothing but the name is left of it.
    fixture.run(&["kill", "--all"]).await.ok();
    let listed = fixture.run(&["--json", "collection", "list"]).await.json();
    let mut all = listed.as_array().unwrap().iter();
    let old = all.find(|c| c["portable_data_hash"] == used.as_str());
    let old = old.unwrap()["uuid"].as_str().unwrap();
    fixture.run(&["collection", "rm", old]).await.ok();
    let again = fixture.run(&["retry", &job.id]).await;
    let words = "is not stored any more; what is called tool now is used";
    assert!(again.err.contains(words), "{again:?}");
    let (request, container) = image("4").await;
    assert!(request == name && container != used, "{container}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_directory_becomes_an_image_as_other_tools_expect_it() {
    let fixture = Fixture::new().await;
    busybox(&fixture);
    let added = fixture
        .run(&["--json", "image", "add", "busybox:1", "root"])
        .await
        .json();
    let id = added["image"].as_str().unwrap();
    assert!(id.starts_with("sha256:") && id.len() == 71, "{id}");
    let uuid = added["uuid"].as_str().unwrap();
    let files = fixture.run(&["--json", "get", "--list", uuid]).await.json();
    assert_eq!(files.as_array().unwrap().len(), 1);
    assert_eq!(files[0]["path"], format!("{id}.tar"));
    let query = arvados_client::filter::Query::new().filter("head_uuid", "=", uuid);
    let links: Vec<arvados_client::records::Link> = fixture
        .user
        .all("links", query, |l: &arvados_client::records::Link| {
            l.uuid.as_str()
        })
        .await
        .unwrap();
    let mut named: Vec<(&str, &str)> = links
        .iter()
        .map(|l| (l.link_class.as_str(), l.name.as_str()))
        .collect();
    named.sort_unstable();
    assert_eq!(
        named,
        [
            ("docker_image_hash", id),
            ("docker_image_repo+tag", "busybox:1")
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_stored_once_and_its_name_can_move() {
    let fixture = Fixture::new().await;
    busybox(&fixture);
    let add = async |name: &str, path: &str| {
        fixture
            .run(&["--json", "image", "add", name, path])
            .await
            .json()
    };
    let first = add("tool", "root").await;
    let again = add("other:2", "root").await;
    assert_eq!(again["uuid"], first["uuid"]);
    assert_eq!(again["was_stored"], true);

    // The stored archive can be added again.
    fixture
        .run(&["get", first["uuid"].as_str().unwrap(), "archive"])
        .await
        .ok();
    let archive = format!("archive/{}.tar", first["image"].as_str().unwrap());
    assert_eq!(add("third", &archive).await["uuid"], first["uuid"]);

    fs::write(fixture.path("root/more"), "x").unwrap();
    let moved = add("tool", "root").await;
    assert_ne!(moved["uuid"], first["uuid"]);
    let listed = fixture.run(&["--json", "image", "list"]).await.json();
    let of = |name: &str| -> &Value {
        let images = listed.as_array().unwrap();
        images.iter().find(|image| image["name"] == name).unwrap()
    };
    assert_eq!(of("tool")["collection"], moved["uuid"], "the newest counts");
    assert_eq!(of("other")["collection"], first["uuid"]);
    assert_eq!(listed.as_array().unwrap().len(), 3);

    let made = fixture
        .run(&["--json", "submit", "--image", "tool", "--", "sh"])
        .await
        .json();
    let container = made["container_uuid"].as_str().unwrap().parse().unwrap();
    let container = fixture.dispatch.container(&container).await.unwrap();
    assert_eq!(
        container.container_image, moved["portable_data_hash"],
        "and the server agrees"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_image_is_refused_and_nothing_is_stored() {
    let fixture = Fixture::new().await;
    fs::write(fixture.path("text"), "hello").unwrap();
    fs::create_dir(fixture.path("empty")).unwrap();
    fixture
        .run(&["image", "add", "a", "none"])
        .await
        .says(3, &["none does not exist"]);
    fixture
        .run(&["image", "add", "a", "text"])
        .await
        .says(1, &["text is no container image", "docker save"]);
    fixture
        .run(&["image", "add", "a", "empty"])
        .await
        .says(1, &["empty is empty"]);
    let bad = fixture.run(&["image", "add", "a b", "text"]).await;
    assert_eq!(bad.code, 2);
    assert!(
        bad.err.contains("cannot be the name of an image"),
        "{bad:?}"
    );
    assert_eq!(
        fixture.run(&["--json", "image", "list"]).await.ok().trim(),
        "[]"
    );
}

/// An archive with a layer whose only file leads out of the image.
fn archive_that_leads_out() -> Vec<u8> {
    let sha = |bytes: &[u8]| data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(bytes));
    let tar = |files: &[(&[u8], &[u8])]| {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap()
    };
    let layer = tar(&[(b"../out", b"")]);
    let diff_id = format!("sha256:{}", sha(&layer));
    let config = json!({
        "architecture": image_archive::architecture(), "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    });
    let config = config.to_string();
    let manifest =
        json!([{"Config": "config.json", "RepoTags": ["bad:1"], "Layers": ["layer.tar"]}]);
    tar(&[
        (b"manifest.json", manifest.to_string().as_bytes()),
        (b"config.json", config.as_bytes()),
        (b"layer.tar", &layer),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_no_node_unpacks_is_not_added() {
    let fixture = Fixture::new().await;
    fs::write(fixture.path("bad.tar"), archive_that_leads_out()).unwrap();
    let refused = fixture.run(&["image", "add", "bad.tar"]).await;
    assert!(
        refused.err.contains("leads out of the image"),
        "{refused:?}"
    );
    assert_ne!(refused.code, 0);
    let images = fixture.run(&["--json", "image", "list"]).await.json();
    assert_eq!(images, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_comes_back_with_its_last_name() {
    let fixture = Fixture::new().await;
    busybox(&fixture);
    let add = async |name: &str| {
        let added = fixture.run(&["--json", "image", "add", name, "root"]).await;
        added.json()["uuid"].as_str().unwrap().to_owned()
    };
    let names = async || {
        let listed = fixture.run(&["--json", "image", "list"]).await.json();
        let images = listed.as_array().unwrap().clone();
        let name = |image: &Value| format!("{}:{}", image["name"], image["tag"]).replace('"', "");
        images.iter().map(name).collect::<Vec<String>>()
    };
    let uuid = add("first").await;
    assert_eq!(add("last").await, uuid);
    let properties = json!({"docker-image-repo-tag": "first:latest", "of": "somebody"});
    let change = json!({"collection": {"properties": properties}});
    let call = Call::put(format!("collections/{uuid}"), change);
    fixture.user.send::<Value>(call).await.unwrap();
    let collection = fixture.run(&["collection", "rm", &uuid]).await;
    collection.says(1, &["is image", "dispatch image rm"]);
    fixture.run(&["image", "rm", "first", "last"]).await.ok();
    assert!(names().await.is_empty());
    let restored = fixture.run(&["collection", "restore", &uuid]).await;
    assert!(
        restored.err.contains("it is image last:latest again"),
        "{restored:?}"
    );
    assert_eq!(names().await, ["last:latest"]);
    let kept = fixture.user.collection(&uuid).await.unwrap().properties;
    assert_eq!(kept["of"], "somebody");
    assert_eq!(add("last").await, uuid, "its hash is known again");

    // Another image has got the name meanwhile: it keeps it.
    fixture.run(&["image", "rm", "last"]).await.ok();
    fs::write(fixture.path("root/other"), "").unwrap();
    let other = add("last").await;
    assert_ne!(other, uuid);
    let restored = fixture.run(&["collection", "restore", &uuid]).await;
    assert!(
        restored.err.contains("another one is last:latest now"),
        "{restored:?}"
    );
    let listed = fixture.run(&["--json", "image", "list"]).await.json();
    assert_eq!(listed[0]["collection"], other);
}
