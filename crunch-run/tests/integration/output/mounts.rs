//! Mounts in and around the output: collections, copies, secrets, what is excluded.

use serde_json::{Value, json};

use crate::files_world::World;
use crate::output::{OUT, copy, part, tmp_and};

#[tokio::test]
async fn an_output_of_nothing_but_mounts_has_their_files() {
    let world = World::new().await;
    let pdh = world.collection(&[("foo", "foo")]).await;
    let mut lab = world
        .lab(json!({"mounts": {
            OUT: {"kind": "collection", "writable": true},
            "/ctr/outdir/foo": part(&pdh, "foo"),
        }}))
        .await;
    assert_eq!(lab.output().await, ["foo"]);
}

#[tokio::test]
async fn a_copied_collection_counts_as_the_container_left_it() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("gone", "1"), ("kept", "2"), ("changed", "3")])
        .await;
    let mut lab = world
        .lab(tmp_and(json!({
            "/ctr/outdir/mount": copy(&pdh, ""),
            "/ctr/outdir/mount/conf": {"kind": "json", "content": {}},
        })))
        .await;
    lab.act(&["file = x", "mount/changed = new", "mount/foo = y"]);
    std::fs::remove_file(lab.staged.output_dir.join("mount/gone")).unwrap();
    let expected = [
        "file",
        "mount/changed",
        "mount/conf",
        "mount/foo",
        "mount/kept",
    ];
    assert_eq!(lab.output().await, expected);
    let manifest = lab.capture().await.unwrap();
    assert_eq!(lab.read(&manifest, "mount/changed").await, "new");
    assert_eq!(lab.read(&manifest, "mount/kept").await, "2");
}

#[tokio::test]
async fn mounts_below_the_output_are_spliced_in_with_their_own_locators() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("dir/x", "x"), ("dir/y", "y"), ("top", "t")])
        .await;
    let denormalised = ". 0cc175b9c0f1b6a831c399e269772661+1 900150983cd24fb0d6963f7d28e17f72+3 1:1:a 0:1:sub/b 3:1:a\n";
    world.collection(&[("a", "a")]).await;
    world.collection(&[("abc", "abc")]).await;
    let odd = sign(&world, denormalised).await;
    let mut lab = world
        .lab(tmp_and(json!({
            "/ctr/outdir/file": part(&pdh, "dir/x"),
            "/ctr/outdir/d": part(&pdh, "dir"),
            "/ctr/outdir/d/inner": part(&pdh, "top"),
            "/ctr/outdir/d/y": part(&pdh, "top"),
            "/ctr/outdir/deep/er/odd": part(&odd, ""),
            "/ctr/outdir/deep/text": {"kind": "text", "content": "t"},
            "/ctr/outdir/no": {"kind": "collection", "portable_data_hash": pdh, "exclude_from_output": true},
            "/ctr/outdir/no/but": part(&pdh, "top"),
        })))
        .await;
    // The container sees the mounts, whatever is below them.
    std::fs::write(lab.staged.output_dir.join("d/behind"), "x").unwrap();
    let expected = [
        "d/inner",
        "d/x",
        "d/y",
        "deep/er/odd/a",
        "deep/er/odd/sub/b",
        "deep/text",
        "file",
        "no/but",
    ];
    assert_eq!(lab.output().await, expected);
    let manifest = lab.capture().await.unwrap();
    assert_eq!(lab.read(&manifest, "deep/er/odd/a").await, "ac");
    assert_eq!(lab.read(&manifest, "deep/er/odd/sub/b").await, "a");
    assert_eq!(lab.read(&manifest, "d/inner").await, "t");
    assert_eq!(lab.read(&manifest, "d/y").await, "t", "it is covered");
    // The server accepts the manifest: every locator is signed.
    lab.world.save(&manifest.to_string()).await;
}

/// Saves a manifest without signatures for blocks that are there.
async fn sign(world: &World, manifest: &str) -> String {
    let mut text = manifest.to_owned();
    for (hash, content) in [
        ("0cc175b9c0f1b6a831c399e269772661+1", "a"),
        ("900150983cd24fb0d6963f7d28e17f72+3", "abc"),
    ] {
        use arvados_client::keep::BlockStore;
        let signed = world.keep.put(content.into()).await.unwrap();
        text = text.replace(hash, &signed.to_string());
    }
    world.save(&text).await
}

#[tokio::test]
async fn what_is_excluded_is_left_out_also_through_links() {
    let world = World::new().await;
    let pdh = world.collection(&[("f", "f")]).await;
    let excluded = |mut mount: Value| {
        mount["exclude_from_output"] = json!(true);
        mount
    };
    let mut lab = world
        .lab(json!({"mounts": {
            OUT: {"kind": "tmp"},
            "/ctr/outdir/ro": excluded(part(&pdh, "")),
            "/ctr/outdir/rw": excluded(copy(&pdh, "")),
            "/ctr/outdir/conf": excluded(json!({"kind": "json", "content": 1})),
            "/ctr/outdir/rw/back": part(&pdh, "f"),
        }}))
        .await;
    lab.act(&[
        "/ctr/outdir/rw/new = x",
        "own = x",
        "link -> ro/f",
        "link2 -> rw/new",
    ]);
    assert_eq!(lab.output().await, ["own", "rw/back"]);

    let world = World::new().await;
    let pdh = world.collection(&[("f", "f")]).await;
    let mut lab = world
        .lab(json!({"mounts": {
            OUT: {"kind": "tmp", "exclude_from_output": true}, "/ctr/outdir/in": part(&pdh, ""),
        }}))
        .await;
    lab.act(&["own = x"]);
    assert_eq!(lab.output().await, ["in/f"]);
}

#[tokio::test]
async fn secrets_never_leave_wherever_they_are_linked_from() {
    let secret = |text| json!({"kind": "text", "content": text});
    let mut lab = World::new()
        .await
        .lab_with_secrets(
            tmp_and(json!({})),
            json!({"/secret_text": secret("s1"), "/ctr/outdir/s/inner": secret("s2")}),
        )
        .await;
    lab.act(&[
        "link -> /secret_text",
        "link2 -> s/inner",
        "f = x",
        "link3 -> link",
    ]);
    assert_eq!(lab.output().await, ["f", "s/"]);
    let host = std::fs::read_to_string(lab.staged.output_dir.join("s/inner")).unwrap();
    assert_eq!(host, "", "the secret was written into the output directory");
}

#[tokio::test]
async fn a_secret_in_an_output_without_anything_else_gives_no_file() {
    let text = json!({"kind": "text", "content": "hypothetical"});
    let secret = json!({"/ctr/outdir/secret": text});
    let lab = World::new()
        .await
        .lab_with_secrets(tmp_and(json!({})), secret)
        .await;
    assert_eq!(lab.capture().await.unwrap().to_string(), "");

    let mut lab = World::new()
        .await
        .lab(tmp_and(json!({"/ctr/outdir/open": text})))
        .await;
    assert_eq!(
        lab.output().await,
        ["open"],
        "the same mount, not secret, is output"
    );
}
