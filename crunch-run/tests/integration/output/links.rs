//! Symlinks: followed as the container would follow them, and named where they lead nowhere.

use std::collections::BTreeSet;

use crunch_run::output::BadEntries;
use serde_json::json;

use crate::files_world::{World, listing};
use crate::output::{part, plain, tmp_and};

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
        assert!(error.is_user_error(), "{error}");
        // They cost themselves alone.
        lab.act(&["result/a = x", "z = y"]);
        let (files, left_out) = lab.without_bad_entries().await;
        let expected = ["result/a", "z"];
        assert!(
            expected.iter().all(|file| files.iter().any(|f| f == file)),
            "{deeds:?}: {files:?}"
        );
        assert!(
            left_out.contains(&error.to_string()),
            "{deeds:?}: {left_out:?}"
        );
    }
}

#[tokio::test]
async fn a_chain_of_eleven_links_passes_and_one_of_twelve_does_not() {
    for (links, passes) in [(11, true), (12, false)] {
        let lab = plain().await;
        lab.act(&["end/file = x"]);
        // Only the first link is followed: a pattern excludes the others.
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
async fn links_into_another_tmp_mount_are_left_out_as_those_into_the_container() {
    let record = tmp_and(json!({"/t": {"kind": "tmp"}, "/conf": {"kind": "json", "content": 1}}));
    let lab = World::new().await.lab(record.clone()).await;
    lab.act(&["/t/d/x = x", "l -> /t", "one -> /t/d/x", "conf -> /conf"]);
    let (files, left_out) = lab.without_bad_entries().await;
    assert_eq!(files, ["conf"]);
    let says = |link: &str, target: &str| {
        let said = format!("/ctr/outdir/{link} leads to {target}, which is neither in the output");
        left_out.iter().any(|sentence| sentence.contains(&said))
    };
    assert!(says("l", "/t") && says("one", "/t/d/x"), "{left_out:?}");
    // Upstream refuses everything.
    let error = lab.error().await.to_string();
    assert!(error.contains("leads to /t"), "{error}");

    let lab = World::new().await.lab(record).await;
    lab.act(&["/t/host -> /etc/shadow", "l -> /t/host"]);
    let (files, left_out) = lab.without_bad_entries().await;
    assert!(
        files.is_empty() && left_out[0].contains("/etc/shadow"),
        "{left_out:?}"
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
    let captured = lab.capture_or(BadEntries::LeaveOut).await.unwrap();
    let files = listing(&captured.manifest).len();
    assert!(
        files < 100_000 && captured.left_out.count() > 10_000,
        "{files}"
    );
    assert!(captured.left_out.sentences().len() <= 100);
}
