//! Images: a root directory with busybox is added, listed, downloaded and added again.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

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
