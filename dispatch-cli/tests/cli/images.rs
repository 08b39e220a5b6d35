//! Images from a root directory with busybox in it to the server and back.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::world::World;

/// A root directory as people make them.
fn busybox(world: &World) {
    let bin = world.path("root/bin");
    fs::create_dir_all(&bin).unwrap();
    // The content does not matter here; where busybox is installed, it is the real one.
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
    let world = World::new().await;
    busybox(&world);
    let added = world
        .run(&["--json", "image", "add", "busybox:1", "root"])
        .await
        .json();
    let id = added["image"].as_str().unwrap();
    assert!(id.starts_with("sha256:") && id.len() == 71, "{id}");
    let uuid = added["uuid"].as_str().unwrap();
    let files = world.run(&["--json", "get", "--list", uuid]).await.json();
    assert_eq!(files.as_array().unwrap().len(), 1);
    assert_eq!(files[0]["path"], format!("{id}.tar"));
    let query = arvados_client::filter::Query::new().filter("head_uuid", "=", uuid);
    let links: Vec<arvados_client::records::Link> = world
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
    let world = World::new().await;
    busybox(&world);
    let add = async |name: &str, path: &str| {
        world
            .run(&["--json", "image", "add", name, path])
            .await
            .json()
    };
    let first = add("tool", "root").await;
    let again = add("other:2", "root").await;
    assert_eq!(again["uuid"], first["uuid"]);
    assert_eq!(again["was_stored"], true);

    // What is stored is an archive that can be added again.
    world
        .run(&["get", first["uuid"].as_str().unwrap(), "archive"])
        .await
        .ok();
    let archive = format!("archive/{}.tar", first["image"].as_str().unwrap());
    assert_eq!(add("third", &archive).await["uuid"], first["uuid"]);

    fs::write(world.path("root/more"), "x").unwrap();
    let moved = add("tool", "root").await;
    assert_ne!(moved["uuid"], first["uuid"]);
    let listed = world.run(&["--json", "image", "list"]).await.json();
    let of = |name: &str| -> &Value {
        let images = listed.as_array().unwrap();
        images.iter().find(|image| image["name"] == name).unwrap()
    };
    assert_eq!(of("tool")["collection"], moved["uuid"], "the newest counts");
    assert_eq!(of("other")["collection"], first["uuid"]);
    assert_eq!(listed.as_array().unwrap().len(), 3);

    let made = world
        .run(&["--json", "submit", "--image", "tool", "--", "sh"])
        .await
        .json();
    let container = made["container_uuid"].as_str().unwrap().parse().unwrap();
    let container = world.dispatch.container(&container).await.unwrap();
    assert_eq!(
        container.container_image, moved["portable_data_hash"],
        "and the server agrees"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_image_is_refused_and_nothing_is_stored() {
    let world = World::new().await;
    fs::write(world.path("text"), "hello").unwrap();
    fs::create_dir(world.path("empty")).unwrap();
    world
        .run(&["image", "add", "a", "none"])
        .await
        .says(3, &["none does not exist"]);
    world
        .run(&["image", "add", "a", "text"])
        .await
        .says(1, &["text is no container image", "docker save"]);
    world
        .run(&["image", "add", "a", "empty"])
        .await
        .says(1, &["empty is empty"]);
    let bad = world.run(&["image", "add", "a b", "text"]).await;
    assert_eq!(bad.code, 2);
    assert!(
        bad.err.contains("cannot be the name of an image"),
        "{bad:?}"
    );
    assert_eq!(
        world.run(&["--json", "image", "list"]).await.ok().trim(),
        "[]"
    );
}
