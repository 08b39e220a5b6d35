//! Mounts staged on this node, from collections of a real server.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::files_world::{World, container, node_path};
use arvados_client::records::Container;
use serde_json::{Value, json};

const OUT: &str = "/ctr/outdir";

fn with(mounts: Value) -> Container {
    let mut all = json!({OUT: {"kind": "tmp"}});
    all.as_object_mut()
        .unwrap()
        .extend(mounts.as_object().unwrap().clone());
    container(&json!({ "mounts": all }))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn every_kind_is_put_in_place() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("a", "file a"), ("dir/b", "file b"), ("dir/empty", "")])
        .await;
    let part = |more: Value| {
        let mut mount = json!({"kind": "collection", "portable_data_hash": pdh});
        mount
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        mount
    };
    let container = with(json!({
        "/tmp": {"kind": "tmp"},
        "/whole": part(json!({})),
        "/dir": part(json!({"path": "./dir"})),
        "/one": part(json!({"path": "/dir/b"})),
        "/new": {"kind": "collection", "writable": true},
        "/conf": {"kind": "json", "content": {"b": "<", "a": 1}},
        "/note": {"kind": "text", "content": "hello"},
        "/ctr/outdir/copy": part(json!({"writable": true})),
        "/ctr/outdir/copy/more": {"kind": "text", "content": "beside"},
        "/ctr/outdir/ro": part(json!({})),
        "/ctr/outdir/sub/conf": {"kind": "json", "content": null},
        "stdin": part(json!({"path": "a"})),
        "stdout": {"kind": "file", "path": "/ctr/outdir/logs/x/out.txt"},
        "stderr": {"kind": "file", "path": "/ctr/outdir/copy/err.txt"},
    }));
    let secret = json!({"/key": {"kind": "text", "content": "s3cret"}});
    let staged = world.stage(&container, &secret).await.unwrap();
    let at = |path: &str| node_path(&staged, path);

    let contents = [
        ("/whole/a", "file a"),
        ("/whole/dir/b", "file b"),
        ("/whole/dir/empty", ""),
        ("/dir/b", "file b"),
        ("/one", "file b"),
        ("/conf", r#"{"a":1,"b":"\u003c"}"#),
        ("/note", "hello"),
        ("/key", "s3cret"),
        ("/ctr/outdir/copy/dir/b", "file b"),
        ("/ctr/outdir/copy/more", "beside"),
        ("/ctr/outdir/ro/a", "file a"),
        ("/ctr/outdir/sub/conf", "null"),
    ];
    for (path, expected) in contents {
        assert_eq!(text(&at(path)), expected, "{path}");
    }
    let modes = [
        ("/tmp", 0o2777),
        ("/new", 0o2777),
        (OUT, 0o2777),
        ("/ctr/outdir/copy/dir", 0o2777),
        ("/ctr/outdir/copy/a", 0o777),
        ("/ctr/outdir/sub", 0o2777),
        ("/ctr/outdir/sub/conf", 0o777),
        ("/whole/dir", 0o755),
        ("/whole/a", 0o555),
        ("/one", 0o555),
        ("/note", 0o444),
        ("/key", 0o444),
    ];
    for (path, expected) in modes {
        assert_eq!(mode(&at(path)), expected, "{path}");
    }
    // Another user can reach the files only through a mount.
    assert_eq!(mode(&world.scratch().join("mounts")), 0o700);

    let bound = |writable| {
        let binds = staged.binds.iter().filter(|bind| bind.writable == writable);
        let mut targets: Vec<&str> = binds.map(|b| b.target.to_str().unwrap()).collect();
        targets.sort();
        targets
    };
    assert_eq!(bound(true), [OUT, "/new", "/tmp"]);
    let read_only = [
        "/conf",
        "/ctr/outdir/ro",
        "/dir",
        "/key",
        "/note",
        "/one",
        "/whole",
    ];
    assert_eq!(bound(false), read_only);

    assert_eq!(text(staged.stdin.as_ref().unwrap()), "file a");
    assert_eq!(staged.output_dir, at(OUT));
    assert_eq!(staged.stdout, Some(at("/ctr/outdir/logs/x/out.txt")));
    assert_eq!(staged.stderr, Some(at("/ctr/outdir/copy/err.txt")));
    assert_eq!(text(staged.stdout.as_ref().unwrap()), "");
    assert!(
        staged.output_dir.join("ro").is_dir(),
        "the place for the mount is missing"
    );
}

#[tokio::test]
async fn mounts_inside_mounts_have_their_places_made_before_they_are_read_only() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("dir/b", "file b"), ("taken", "x")])
        .await;
    let part = json!({"kind": "collection", "portable_data_hash": pdh});
    let note = json!({"kind": "text", "content": "n"});
    let container = with(json!({
        "/in": part, "/in/dir/sub": part, "/in/dir/sub/note": note, "/in/taken": note,
        "/also": part, "/again": part,
    }));
    let staged = world.stage(&container, &json!({})).await.unwrap();
    let order: Vec<_> = staged
        .binds
        .iter()
        .map(|b| b.target.to_str().unwrap())
        .collect();
    let at = |target| order.iter().position(|t| *t == target).unwrap();
    assert!(at("/in") < at("/in/dir/sub") && at("/in/dir/sub") < at("/in/dir/sub/note"));
    let inside = node_path(&staged, "/in");
    assert!(inside.join("dir/sub").is_dir());
    assert!(node_path(&staged, "/in/dir/sub").join("note").is_file());
    // Two mounts without mounts inside share one copy, and no others do.
    assert_eq!(node_path(&staged, "/also"), node_path(&staged, "/again"));
    assert_ne!(node_path(&staged, "/also"), inside);
    assert!(!node_path(&staged, "/also").join("dir/sub").exists());

    let wrong = with(json!({"/in": part, "/in/taken": {"kind": "tmp"}}));
    let error = world.stage(&wrong, &json!({})).await.unwrap_err();
    let sentence =
        "mount /in/taken is in the way of something else: /in/taken is there already as a file";
    assert!(error.to_string().starts_with(sentence), "{error}");
    assert!(error.is_user_error());

    let wrong = with(json!({
        "/in": {"kind": "collection", "portable_data_hash": pdh, "path": "taken"},
        "/in/x": {"kind": "tmp"},
    }));
    let error = world.stage(&wrong, &json!({})).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("mount /in/x is inside mount /in, which is a file"),
        "{error}"
    );
}

#[tokio::test]
async fn a_collection_by_uuid_is_mounted_as_it_is_now() {
    let world = World::new().await;
    let pdh = world.collection(&[("a", "now")]).await;
    let text_of = world.client.collection(&pdh).await.unwrap().manifest_text;
    let saved = world
        .client
        .create_collection(json!({"manifest_text": text_of}))
        .await
        .unwrap();
    let container = with(json!({"/in": {"kind": "collection", "uuid": saved.uuid}}));
    let staged = world.stage(&container, &json!({})).await.unwrap();
    assert_eq!(text(&node_path(&staged, "/in/a")), "now");
}

#[tokio::test]
async fn what_cannot_be_mounted_is_the_users_to_mend_and_named() {
    let world = World::new().await;
    let pdh = world.collection(&[("a", "x"), ("dir/b", "y")]).await;
    let long = world
        .save(&format!(". {EMPTY} 0:0:{}\n", "x".repeat(300)))
        .await;
    let unknown = "1f4b0bc7583c2a7f9102c395f4ffc5e3+45";
    let part = |pdh: &str, path: &str| json!({"kind": "collection", "portable_data_hash": pdh, "path": path});
    let cases = [
        ("/in", part(unknown, ""), unknown),
        ("/in", part(&pdh, "missing"), "\"missing\""),
        ("/in", part(&pdh, "../../etc"), "\"../../etc\""),
        ("/in", part(&long, ""), "cannot exist on a file system"),
        ("stdin", part(&pdh, "dir"), "not a file"),
        ("stdin", part(&pdh, "missing"), "\"missing\""),
    ];
    for (target, mount, word) in cases {
        let container = with(json!({target: mount}));
        let error = world.stage(&container, &json!({})).await.unwrap_err();
        assert!(error.to_string().contains(word), "{mount}: {error}");
        assert!(error.is_user_error(), "{error}");
    }
}

const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

#[tokio::test]
async fn a_node_that_fails_is_not_the_users_mistake() {
    let world = World::new().await;
    let container = with(json!({"/note": {"kind": "text", "content": "n"}}));
    std::fs::write(world.scratch().with_extension("file"), "").unwrap();
    let sources = crunch_run::inputs::Sources {
        client: &world.client,
        blocks: &node_cache::BlockCache::none(world.keep.clone()),
        scratch: &world.scratch().with_extension("file"),
        tree: None,
        progress: &|_| {},
    };
    let plan = crunch_run::inputs::plan(&container, &Default::default(), false).unwrap();
    let error = crunch_run::inputs::stage(plan, sources).await.unwrap_err();
    assert!(!error.is_user_error(), "{error}");
}

#[tokio::test]
async fn large_and_small_files_arrive_whole() {
    let world = World::new().await;
    // Several blocks, files that begin in the middle of one, and many that share one.
    let mut writer =
        arvados_client::keep::CollectionWriter::with_limits(world.keep.clone(), 100_000, 2);
    let content = |seed: usize, len: usize| -> Vec<u8> {
        (0..len)
            .map(|i| ((i * 31 + seed * 17) % 251) as u8)
            .collect()
    };
    let sizes = [350_000, 1, 0, 99_999, 100_000, 100_001];
    for (seed, size) in sizes.iter().enumerate() {
        writer.start_file(&format!("large/{seed}")).unwrap();
        writer.write(&content(seed, *size)).await.unwrap();
    }
    for seed in 0..500 {
        writer
            .start_file(&format!("small/{}/{seed}", seed % 7))
            .unwrap();
        writer.write(&content(seed, seed)).await.unwrap();
    }
    let pdh = world
        .save(&writer.finish().await.unwrap().to_string())
        .await;
    let container = with(json!({"/in": {"kind": "collection", "portable_data_hash": pdh}}));
    let staged = world.stage(&container, &json!({})).await.unwrap();
    let at = |path: String| std::fs::read(node_path(&staged, &path)).unwrap();
    for (seed, size) in sizes.iter().enumerate() {
        assert!(
            at(format!("/in/large/{seed}")) == content(seed, *size),
            "large {seed}"
        );
    }
    for seed in 0..500 {
        assert!(
            at(format!("/in/small/{}/{seed}", seed % 7)) == content(seed, seed),
            "{seed}"
        );
    }
}

#[tokio::test]
async fn files_are_this_users_and_nothing_is_outside_of_the_scratch_directory() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("a b", "x"), ("tab\there", "y"), ("ü/ß", "z")])
        .await;
    let container = with(json!({"/in": {"kind": "collection", "portable_data_hash": pdh}}));
    let staged = world.stage(&container, &json!({})).await.unwrap();
    for bind in &staged.binds {
        assert!(bind.host.starts_with(world.scratch()), "{bind:?}");
    }
    let us = std::fs::metadata(world.scratch()).unwrap().uid();
    for name in ["a b", "tab\there", "ü/ß"] {
        let path = node_path(&staged, "/in").join(name);
        assert_eq!(std::fs::metadata(&path).unwrap().uid(), us, "{name}");
    }
}
