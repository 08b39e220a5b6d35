//! A real container with staged mounts: what it can read, write and smuggle out. Needs root and
//! busybox-static.

use crate::engine_lab::{Lab as Engine, shell};
use crate::files_world::{World, listing};
use crunch_run::output::BadEntries;
use serde_json::json;

#[tokio::test]
async fn a_container_sees_its_mounts_and_only_its_own_files_come_out() {
    let world = World::new().await;
    let pdh = world
        .collection(&[("tool", "#!/bin/sh\necho tool ran\n"), ("dir/b", "file b")])
        .await;
    let part = json!({"kind": "collection", "portable_data_hash": pdh});
    let mut copy = part.clone();
    copy["writable"] = json!(true);
    let lab = world
        .lab_with_secrets(
            json!({"mounts": {
                "/ctr/outdir": {"kind": "tmp"}, "/scratch": {"kind": "tmp"},
                "/in": part, "/in/dir/deep/note": {"kind": "text", "content": "deep note"},
                "/ctr/outdir/ro": part, "/ctr/outdir/rw": copy,
                "/ctr/outdir/conf": {"kind": "json", "content": {"a": 1}},
            }}),
            json!({"/ctr/outdir/key": {"kind": "text", "content": "s3cret"}, "/run/key": {"kind": "text", "content": "s3cret"}}),
        )
        .await;
    // Whatever user the image has.
    let engine = Engine::with_config(json!({"Env": ["PATH=/bin"], "User": "ann"}));
    let mut request = shell(
        "set -e
        /in/tool; cat /in/dir/b /in/dir/deep/note /run/key /ctr/outdir/key /ctr/outdir/conf; echo
        for f in /in/new /in/dir/b /ctr/outdir/ro/new /ctr/outdir/key /run/key; do
            if echo x 2>/dev/null >>$f; then echo WROTE $f; fi
        done
        cd /ctr/outdir
        echo own >own; echo more >>rw/dir/b; rm rw/tool; rm conf; echo x >/scratch/x
        ln -s /in/dir linked; ln -s /scratch/x scratch; ln -s /run/key stolen; ln -s key stolen2
        mkdir empty; mkfifo pipe",
    );
    request.binds = lab.staged.binds.clone();
    let ended = engine.run(request).await.unwrap();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let stdout = "tool ran\nfile bdeep notes3crets3cret{\"a\":1}\n";
    assert_eq!(ended.stdout, stdout, "{}", ended.stderr);

    let expected = [
        "empty/.keep",
        "linked/b",
        "linked/deep/note",
        "own",
        "ro/dir/b",
        "ro/tool",
        "rw/dir/b",
    ];
    let captured = lab.capture_or(BadEntries::LeaveOut).await.unwrap();
    let manifest = captured.manifest;
    assert_eq!(listing(&manifest), expected);
    let [pipe, link] = captured.left_out.sentences() else {
        panic!("{:?}", captured.left_out);
    };
    assert_eq!(
        pipe,
        "/ctr/outdir/pipe is not in the output because it is a pipe"
    );
    assert!(
        link.contains("/ctr/outdir/scratch leads to /scratch/x"),
        "{link}"
    );
    assert_eq!(lab.read(&manifest, "rw/dir/b").await, "file bmore\n");
    for file in manifest.files() {
        let content = lab.read(&manifest, &file.path).await;
        assert!(!content.contains("s3cret"), "{} has the secret", file.path);
    }
}

#[tokio::test]
async fn links_to_files_of_the_node_give_an_error_and_not_the_file() {
    for target in [
        "/etc/shadow",
        "/proc/1/environ",
        "../../../../../etc/shadow",
        "/ctr/outdir/../../etc/shadow",
    ] {
        let lab = World::new()
            .await
            .lab(json!({"mounts": {"/ctr/outdir": {"kind": "tmp"}}}))
            .await;
        let engine = Engine::new();
        let mut request = shell(&format!(
            "ln -s {target} /ctr/outdir/link; mkdir /ctr/outdir/d; ln -s .. /ctr/outdir/d/up; rm /ctr/outdir/d/up"
        ));
        request.binds = lab.staged.binds.clone();
        assert_eq!(engine.run(request).await.unwrap().code(), 0);
        let error = lab.error().await;
        assert!(
            error.is_user_error() && error.to_string().contains("/ctr/outdir/link"),
            "{error}"
        );
    }
}
