//! Patterns of `output_glob`, on files of this node and of collections.

use serde_json::json;

use crate::files_world::World;
use crate::output::{OUT, copy, part, plain, tmp_and};

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
        // Matching directories remain, here empty; only files are compared.
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
