//! What becomes of a container's output directory: every case of files, links, mounts and patterns.

mod files_world;

use std::collections::BTreeSet;

use files_world::{Lab, World, listing};
use serde_json::{Value, json};

const OUT: &str = "/ctr/outdir";

fn tmp_and(mounts: Value) -> Value {
    let mut all = json!({OUT: {"kind": "tmp"}});
    all.as_object_mut()
        .unwrap()
        .extend(mounts.as_object().unwrap().clone());
    json!({ "mounts": all })
}

fn part(pdh: &str, path: &str) -> Value {
    json!({"kind": "collection", "portable_data_hash": pdh, "path": path})
}

fn copy(pdh: &str, path: &str) -> Value {
    let mut mount = part(pdh, path);
    mount["writable"] = json!(true);
    mount
}

async fn plain() -> Lab {
    World::new().await.lab(tmp_and(json!({}))).await
}

#[tokio::test]
async fn an_empty_output_is_the_empty_collection() {
    let lab = plain().await;
    assert_eq!(lab.capture().await.unwrap().to_string(), "");
    let record = json!({"mounts": {OUT: {"kind": "collection", "writable": true}}});
    let lab = World::new().await.lab(record).await;
    assert_eq!(lab.capture().await.unwrap().to_string(), "");
}

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
async fn files_are_stored_and_empty_directories_kept() {
    let mut lab = plain().await;
    lab.act(&[
        "dir1/dir2/dir3/",
        "dir1/foo = foo",
        "dir1/ü \t\\ = odd",
        "zero = ",
    ]);
    let fifo = lab.staged.output_dir.join("dir1/fifo");
    let made = std::process::Command::new("mkfifo").arg(fifo).status();
    assert!(made.unwrap().success());
    let expected = ["dir1/dir2/dir3/.keep", "dir1/foo", "dir1/ü \t\\", "zero"];
    assert_eq!(lab.output().await, expected);
    let manifest = lab.capture().await.unwrap();
    assert_eq!(lab.read(&manifest, "dir1/foo").await, "foo");
    assert_eq!(lab.read(&manifest, "dir1/ü \t\\").await, "odd");
    assert_eq!(lab.read(&manifest, "zero").await, "");
}

#[tokio::test]
async fn a_directory_of_only_special_files_still_exists() {
    let mut lab = plain().await;
    lab.act(&["d/"]);
    let fifo = lab.staged.output_dir.join("d/fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(fifo)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(lab.output().await, ["d/"]);
}

#[tokio::test]
async fn the_manifest_of_one_file_is_the_known_one() {
    let record = tmp_and(json!({"stdout": {"kind": "file", "path": "/ctr/outdir/a/b/c.out"}}));
    let lab = World::new().await.lab(record).await;
    std::fs::write(lab.staged.stdout.as_ref().unwrap(), "bilbo\n").unwrap();
    let manifest = lab.capture().await.unwrap().stripped().to_string();
    assert_eq!(
        manifest,
        "./a/b 307372fa8fd5c146b22ae7a45b49bc31+6 0:6:c.out\n"
    );
}

#[tokio::test]
async fn links_that_lead_nowhere_or_in_circles_are_named() {
    let cases: [(&[&str], &[&str]); 12] = [
        (
            &[
                "dir1/",
                "dir2/",
                "dir1/l_dir2 -> ../dir2",
                "dir2/l_dir1 -> ../dir1",
            ],
            &["cycle"],
        ),
        (&["self -> self"], &["cycle", "/ctr/outdir/self"]),
        (&["a -> b", "b -> a"], &["cycle"]),
        (&["d/up -> ../d"], &["cycle", "/ctr/outdir/d/up"]),
        (&["dot -> ."], &["cycle"]),
        (
            &["l -> ./missing"],
            &["/ctr/outdir/l", "/ctr/outdir/missing"],
        ),
        (&["l -> ../boop"], &["/ctr/outdir/l", "/ctr/boop"]),
        (
            &["l -> /etc/hosts"],
            &["/ctr/outdir/l", "/etc/hosts", "neither"],
        ),
        (
            &["l -> ../../../../../../etc/passwd"],
            &["/etc/passwd", "neither"],
        ),
        (&["f = x", "l -> f/x"], &["/ctr/outdir/f/x"]),
        (&["l -> /ctr"], &["/ctr", "neither"]),
        (&["l -> /"], &["leads to /,", "neither"]),
    ];
    for (deeds, words) in cases {
        let lab = plain().await;
        lab.act(deeds);
        let error = lab.error().await;
        for word in words {
            assert!(error.to_string().contains(word), "{deeds:?}: {error}");
        }
        assert!(error.is_users_mistake(), "{error}");
    }
}

#[tokio::test]
async fn a_chain_of_eleven_links_passes_and_one_of_twelve_does_not() {
    for (links, passes) in [(11, true), (12, false)] {
        let lab = plain().await;
        lab.act(&["end/file = x"]);
        // Only the first one is in the way of the walk: the others are hidden by a pattern.
        let mut deeds: Vec<String> = (1..links).map(|i| format!("l{i} -> l{}", i + 1)).collect();
        deeds.push(format!("l{links} -> end/file"));
        lab.act(&deeds.iter().map(String::as_str).collect::<Vec<_>>());
        let mut lab = lab;
        lab.container.output_glob = vec!["l1".to_owned()];
        match lab.capture().await {
            Ok(manifest) => assert!(passes && listing(&manifest) == ["l1"]),
            Err(error) => assert!(
                !passes && error.to_string().contains("too many symlinks"),
                "{error}"
            ),
        }
    }
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

#[tokio::test]
async fn links_to_mounted_collections_are_taken_over_by_reference() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("foo", "foo"), ("dir/bar", "bar")])
        .await;
    let record = tmp_and(json!({
        "/mnt": part(&pdh, ""), "/mnt-w": {"kind": "collection", "writable": true},
        "/one": part(&pdh, "dir/bar"),
    }));
    let mut lab = world.lab(record).await;
    lab.act(&[
        "l_dir -> ../../mnt",
        "l_file -> /mnt/foo",
        "l_file_w -> /mnt-w/bar",
        "l_sub -> /mnt/dir",
        "l_one -> /one",
        "/mnt-w/bar = bar",
    ]);
    let expected = [
        "l_dir/dir/bar",
        "l_dir/foo",
        "l_file",
        "l_file_w",
        "l_one",
        "l_sub/bar",
    ];
    assert_eq!(lab.output().await, expected);
    let manifest = lab.capture().await.unwrap();
    assert_eq!(lab.read(&manifest, "l_file_w").await, "bar");
    let of_mount = lab
        .world
        .client
        .collection(&pdh)
        .await
        .unwrap()
        .manifest_text;
    let block = of_mount
        .split(' ')
        .nth(1)
        .unwrap()
        .split("+A")
        .next()
        .unwrap();
    assert!(
        manifest.to_string().contains(block),
        "{manifest} does not refer to {block}"
    );
}

#[tokio::test]
async fn links_inside_the_output_become_copies() {
    let mut lab = plain().await;
    lab.act(&[
        "dir1/file = file",
        "dir1/dir2/dir3/",
        "l_abs_file -> /ctr/outdir/dir1/file",
        "l_abs_dir2 -> /ctr/outdir/dir1/dir2",
        "l_rel_file -> dir1/file",
        "l_rel_dir3 -> dir1/dir2/dir3",
        "morelinks/l_rel_dir2 -> ../l_abs_dir2",
        "morelinks/l_via -> ../l_abs_dir2/../file",
    ]);
    let expected = [
        "dir1/dir2/dir3/.keep",
        "dir1/file",
        "l_abs_dir2/dir3/.keep",
        "l_abs_file",
        "l_rel_dir3/.keep",
        "l_rel_file",
        "morelinks/l_rel_dir2/dir3/.keep",
        "morelinks/l_via",
    ];
    assert_eq!(lab.output().await, expected);
    let manifest = lab.capture().await.unwrap();
    for path in ["l_abs_file", "l_rel_file", "morelinks/l_via"] {
        assert_eq!(lab.read(&manifest, path).await, "file", "{path}");
    }
    // One file under four names is stored once.
    let blocks: BTreeSet<String> = manifest
        .stripped()
        .locators()
        .map(|l| l.to_string())
        .collect();
    let data = blocks.iter().filter(|block| !block.ends_with("+0"));
    assert_eq!(data.count(), 1, "{blocks:?}");
}

#[tokio::test]
async fn links_into_another_tmp_mount_are_copied_and_cannot_leave_it() {
    let record = tmp_and(json!({"/t": {"kind": "tmp"}, "/conf": {"kind": "json", "content": 1}}));
    let mut lab = World::new().await.lab(record.clone()).await;
    lab.act(&["/t/d/x = x", "/t/up -> d/x", "l -> /t", "conf -> /conf"]);
    assert_eq!(lab.output().await, ["conf", "l/d/x", "l/up"]);
    let manifest = lab.capture().await.unwrap();
    assert_eq!(lab.read(&manifest, "conf").await, "1");

    let lab = World::new().await.lab(record).await;
    lab.act(&["/t/host -> /etc/shadow", "l -> /t/host"]);
    assert!(lab.error().await.to_string().contains("/etc/shadow"));
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
    // What the container sees there is the mounts, whatever is behind them.
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
    // The server takes it as it is: every locator is signed.
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

#[tokio::test]
async fn two_hundred_mounts_of_one_collection_share_their_memory_and_their_copy() {
    let world = World::new().await;
    let paths: Vec<String> = (0..1000)
        .map(|i| format!("d/file-with-a-long-name-{i}"))
        .collect();
    let files: Vec<(&str, &str)> = paths.iter().map(|p| (p.as_str(), "x")).collect();
    let pdh = world.collection(&files).await;
    let mut mounts = json!({});
    for i in 0..200 {
        mounts[format!("/ctr/outdir/m{i}")] = part(&pdh, &format!("d/file-with-a-long-name-{i}"));
        mounts[format!("/in/m{i}")] = part(&pdh, "");
    }
    let before = resident();
    let mut lab = world.lab(tmp_and(mounts)).await;
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

#[tokio::test]
async fn patterns_choose_among_files_and_directories() {
    let mut lab = plain().await;
    lab.act(&[
        "dir1/file11 = 1",
        "dir1/dir11/file111 = 2",
        "dir1/dir12/",
        "dir2/file2 = 3",
    ]);
    let all: &[&str] = &[
        "dir1/dir11/file111",
        "dir1/dir12/.keep",
        "dir1/file11",
        "dir2/file2",
    ];
    let cases: [(&[&str], &[&str]); 9] = [
        (&[], all),
        (&["**"], all),
        (&["**/file111"], &["dir1/dir11/file111"]),
        (&["nothing"], &[]),
        (&["**/dir12"], &["dir1/dir12/"]),
        (
            &["**/file*"],
            &["dir1/dir11/file111", "dir1/file11", "dir2/file2"],
        ),
        (&["**/dir1[12]"], &["dir1/dir11/", "dir1/dir12/"]),
        (&["**/dir1[^2]"], &["dir1/dir11/"]),
        (
            &["dir1/**"],
            &["dir1/dir11/file111", "dir1/dir12/.keep", "dir1/file11"],
        ),
    ];
    for (globs, expected) in cases {
        assert_eq!(lab.output_of(globs).await, expected, "{globs:?}");
    }
}

#[tokio::test]
async fn patterns_choose_among_files_of_mounted_collections() {
    let world = World::new().await;
    let files = ["foo", "bar", "baz/quux", "baz/parent1/item1"];
    let pdh = world.collection(&files.map(|f| (f, "x"))).await;
    let record = json!({"mounts": {OUT: {"kind": "collection", "writable": true, "portable_data_hash": pdh}}});
    let mut as_copy = world.lab(record).await;
    let world = World::new().await;
    let pdh = world.collection(&files.map(|f| (f, "x"))).await;
    let mut by_reference = world
        .lab(tmp_and(json!({
            "/ctr/outdir/foo": part(&pdh, "foo"), "/ctr/outdir/bar": part(&pdh, "bar"),
            "/ctr/outdir/baz": part(&pdh, "baz"),
        })))
        .await;
    let all: &[&str] = &["bar", "baz/parent1/item1", "baz/quux", "foo"];
    let below: &[&str] = &["baz/parent1/item1", "baz/quux"];
    let cases: [(&[&str], &[&str]); 18] = [
        (&[], all),
        (&["**"], all),
        (&["**/*"], all),
        (&["foo"], &["foo"]),
        (&["baz/parent1/item1"], &["baz/parent1/item1"]),
        (&["*"], &["bar", "foo"]),
        (&["baz"], &[]),
        (&["b*/**"], below),
        (&["baz/**"], below),
        (&["baz/*"], &["baz/quux"]),
        (&["baz/**/*uu?"], &["baz/quux"]),
        (&["**/*m1"], &["baz/parent1/item1"]),
        (&["*/*/*/**/*1"], &[]),
        (&["f*", "**/q*"], &["foo", "baz/quux"]),
        (&["\\"], &[]),
        (&["\\", "foo"], &["foo"]),
        (&["foo/**"], &[]),
        (&["foo*/**"], &[]),
    ];
    for (globs, expected) in cases {
        let mut expected: Vec<&str> = expected.to_vec();
        expected.sort();
        assert_eq!(by_reference.output_of(globs).await, expected, "{globs:?}");
        let mut files = as_copy.output_of(globs).await;
        // Wanted directories remain, here empty; only files count.
        files.retain(|path| !path.ends_with('/'));
        assert_eq!(files, expected, "copied, {globs:?}");
    }
}

#[tokio::test]
async fn mounts_without_a_match_are_left_out() {
    let world = World::new().await;
    let pdh = world.collection(&[("f", "f")]).await;
    let mut lab = world
        .lab(tmp_and(json!({
            "/ctr/outdir/include/includer": part(&pdh, ""),
            "/ctr/outdir/include/includew": copy(&pdh, ""),
            "/ctr/outdir/exclude/excluder": part(&pdh, ""),
            "/ctr/outdir/exclude/excludew": copy(&pdh, ""),
        })))
        .await;
    let found = lab.output_of(&["?ncl*/*r/*", "*/?ncl*/**"]).await;
    assert_eq!(found, ["include/includer/f", "include/includew/f"]);
}

#[tokio::test]
async fn links_that_no_pattern_wants_do_no_harm() {
    let mut lab = plain().await;
    lab.act(&["good = x", "tmp/bad -> /nowhere"]);
    assert_eq!(lab.output_of(&["good"]).await, ["good"]);
}

#[tokio::test]
async fn files_that_share_an_inode_are_stored_once() {
    let mut lab = plain().await;
    lab.act(&["a = hello", "d/"]);
    let dir = &lab.staged.output_dir;
    std::fs::hard_link(dir.join("a"), dir.join("d/b")).unwrap();
    assert_eq!(lab.output().await, ["a", "d/b"]);
    let manifest = lab.capture().await.unwrap();
    assert_eq!(lab.read(&manifest, "d/b").await, "hello");
}

#[tokio::test]
async fn names_and_depths_that_fit_no_collection_are_named() {
    use std::os::unix::ffi::OsStrExt;
    let lab = plain().await;
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    std::fs::write(lab.staged.output_dir.join(name), "x").unwrap();
    let error = lab.error().await;
    assert!(
        error.to_string().contains("/ctr/outdir/caf") && error.is_users_mistake(),
        "{error}"
    );

    let lab = plain().await;
    lab.act(&[&"d/".repeat(250)]);
    let error = lab.error().await;
    assert!(
        error.to_string().contains("levels deep") && error.is_users_mistake(),
        "{error}"
    );
}

#[tokio::test]
async fn two_links_in_every_directory_cannot_make_an_endless_output() {
    let lab = plain().await;
    let mut deeds = vec!["d40/f = x".to_owned()];
    for i in 0..40 {
        deeds.push(format!("d{i}/a -> ../d{}", i + 1));
        deeds.push(format!("d{i}/b -> ../d{}", i + 1));
    }
    lab.act(&deeds.iter().map(String::as_str).collect::<Vec<_>>());
    let error = lab.error().await;
    assert!(error.to_string().contains("too many symlinks"), "{error}");
}

#[tokio::test]
async fn progress_ends_at_the_size_of_the_files() {
    let lab = plain().await;
    lab.act(&[&format!("large = {}", "x".repeat(700_000)), "small = y"]);
    let seen = std::sync::Mutex::new(Vec::new());
    let note = |p: crunch_run::mounts::Progress| seen.lock().unwrap().push((p.done, p.total));
    let captured =
        crunch_run::output::capture(&lab.staged, &lab.container, &lab.world.keep, &note).await;
    captured.unwrap();
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.first(), Some(&(0, 700_001)));
    assert_eq!(seen.last(), Some(&(700_001, 700_001)));
    assert!(seen.len() > 3 && seen.is_sorted(), "{seen:?}");
}

#[tokio::test]
async fn what_is_left_out_is_said() {
    let world = World::new().await;
    let pdh = world.collection(&[("f", "f")]).await;
    let mut lab = world
        .lab(tmp_and(json!({"/ctr/outdir/mount": part(&pdh, "")})))
        .await;
    lab.act(&["d/file = x"]);
    let fifo = lab.staged.output_dir.join("d/fifo");
    let made = std::process::Command::new("mkfifo").arg(fifo).status();
    assert!(made.unwrap().success());
    lab.container.output_glob = vec!["d/**".to_owned(), "[".to_owned()];
    let said = std::sync::Mutex::new(Vec::new());
    let say = |remark: &str| said.lock().unwrap().push(remark.to_owned());
    let keep = &lab.world.keep;
    let captured =
        crunch_run::output::capture_saying(&lab.staged, &lab.container, keep, &|_| {}, &say);
    assert_eq!(listing(&captured.await.unwrap()), ["d/file"]);
    let said = said.into_inner().unwrap();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[0].starts_with("output_glob \"[\" matches nothing"),
        "{said:?}"
    );
    assert_eq!(
        said[1],
        "/ctr/outdir/d/fifo is not in the output because it is a pipe"
    );
    assert!(
        said[2].starts_with("mount /ctr/outdir/mount is not in the output"),
        "{said:?}"
    );
}
