//! Files, directories and special files in an output, and the warnings about them.

use crunch_run::output::BadEntries;
use serde_json::json;

use crate::files_world::{World, listing};
use crate::output::{OUT, part, plain, tmp_and};

#[tokio::test]
async fn an_empty_output_is_the_empty_collection() {
    let lab = plain().await;
    assert_eq!(lab.capture().await.unwrap().to_string(), "");
    let record = json!({"mounts": {OUT: {"kind": "collection", "writable": true}}});
    let lab = World::new().await.lab(record).await;
    assert_eq!(lab.capture().await.unwrap().to_string(), "");
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
async fn progress_ends_at_the_size_of_the_files() {
    let lab = plain().await;
    lab.act(&[&format!("large = {}", "x".repeat(700_000)), "small = y"]);
    let seen = std::sync::Mutex::new(Vec::new());
    let note = |p: crunch_run::inputs::Progress| seen.lock().unwrap().push((p.done, p.total));
    let captured = crunch_run::output::capture(
        &lab.staged,
        &lab.container,
        &lab.world.keep,
        BadEntries::Refuse,
        &note,
    )
    .await;
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
    let captured = lab.capture_or(BadEntries::Refuse).await.unwrap();
    assert_eq!(listing(&captured.manifest), ["d/file"]);
    let remarks = captured.remarks;
    assert_eq!(remarks.len(), 2, "{remarks:?}");
    assert!(
        remarks[0].starts_with("output_glob \"[\" matches nothing"),
        "{remarks:?}"
    );
    assert!(
        remarks[1].starts_with("mount /ctr/outdir/mount is not in the output"),
        "{remarks:?}"
    );
    assert_eq!(
        captured.left_out.sentences(),
        ["/ctr/outdir/d/fifo is not in the output because it is a pipe"]
    );
}
