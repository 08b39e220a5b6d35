//! Upload of files to the server, and their download.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_can_be_got_back_the_same() {
    let fixture = Fixture::new().await;
    let big: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    fs::create_dir_all(fixture.path("in/sub dir/empty")).unwrap();
    fs::write(fixture.path("in/big"), &big).unwrap();
    fs::write(fixture.path("in/none"), "").unwrap();
    fs::write(fixture.path("in/sub dir/ünï"), "text").unwrap();
    let put = fixture.run(&["put", "in"]).await.ok();
    let (uuid, pdh) = put.trim().split_once(' ').unwrap();
    for (name, into) in [(uuid, "by-uuid"), (pdh, "by-pdh")] {
        fixture.run(&["get", name, into]).await.ok();
        let into = fixture.path(into);
        assert_eq!(fs::read(into.join("big")).unwrap(), big);
        assert_eq!(fs::read(into.join("none")).unwrap(), b"");
        assert_eq!(fs::read(into.join("sub dir/ünï")).unwrap(), b"text");
        assert!(into.join("sub dir/empty").is_dir());
        let left: Vec<_> = fs::read_dir(&into).unwrap().collect();
        assert_eq!(left.len(), 3, "no temporary file is left: {left:?}");
    }
    let part = format!("{pdh}:sub dir");
    fixture.run(&["get", &part, "part"]).await.ok();
    assert_eq!(fs::read(fixture.path("part/ünï")).unwrap(), b"text");
    let file = format!("{pdh}:sub dir/ünï");
    assert_eq!(fixture.run(&["get", &file, "-"]).await.ok(), "text");
    fixture
        .run(&["get", &part, "-"])
        .await
        .says(1, &["directory"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_overwritten_unless_that_is_asked_for() {
    let fixture = Fixture::new().await;
    let pdh = fixture.store(&[("a", "new"), ("b", "new")]).await;
    fs::create_dir(fixture.path("dir")).unwrap();
    fs::write(fixture.path("dir/b"), "mine").unwrap();
    let refused = fixture.run(&["get", &pdh, "dir"]).await;
    refused.says(7, &["dir/b", "--force"]);
    assert!(!fixture.path("dir/a").exists(), "nothing was written");
    assert_eq!(fs::read(fixture.path("dir/b")).unwrap(), b"mine");
    fixture.run(&["get", "--force", &pdh, "dir"]).await.ok();
    assert_eq!(fs::read(fixture.path("dir/b")).unwrap(), b"new");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_through_a_link_or_outside() {
    let fixture = Fixture::new().await;
    let pdh = fixture.store(&[("sub/a", "new")]).await;
    fs::create_dir_all(fixture.path("elsewhere")).unwrap();
    fs::create_dir_all(fixture.path("dir")).unwrap();
    symlink("../elsewhere", fixture.path("dir/sub")).unwrap();
    for force in ["--list", "--force"] {
        let done = fixture.run(&["get", force, &pdh, "dir"]).await;
        if force == "--force" {
            done.says(1, &["dir/sub", "symbolic link"]);
        }
    }
    assert_eq!(fs::read_dir(fixture.path("elsewhere")).unwrap().count(), 0);

    fs::create_dir_all(fixture.path("link/sub")).unwrap();
    fs::write(fixture.path("target"), "mine").unwrap();
    symlink("../../target", fixture.path("link/sub/a")).unwrap();
    fixture
        .run(&["get", &pdh, "link"])
        .await
        .says(7, &["link/sub/a"]);
    fixture.run(&["get", "--force", &pdh, "link"]).await.ok();
    assert_eq!(
        fs::read(fixture.path("target")).unwrap(),
        b"mine",
        "the link was replaced"
    );
    assert_eq!(fs::read(fixture.path("link/sub/a")).unwrap(), b"new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_output_is_fetched_by_its_number() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture
        .run(&["get", &job.id])
        .await
        .says(3, &["no output", "dispatch wait 1"]);
    fixture.start(&job).await;
    fixture
        .finish(
            &job,
            0,
            &[("table.csv", "1,2"), ("sub/x", "y")],
            &[("stdout.txt", "")],
        )
        .await;
    let listed = fixture.run(&["get", "--list", &job.id]).await.ok();
    assert_eq!(listed, "       3 B  table.csv\n       1 B  sub/x\n");
    let one = format!("{}:table.csv", job.id);
    assert_eq!(fixture.run(&["get", &one, "-"]).await.ok(), "1,2");
    fixture.run(&["get", &job.uuid, "out"]).await.ok();
    assert_eq!(fs::read(fixture.path("out/sub/x")).unwrap(), b"y");
}

/// What cannot be stored costs itself alone, and is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_with_odd_entries_is_stored_without_them() {
    let fixture = Fixture::new().await;
    let dir = fixture.path("in");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("good"), "x").unwrap();
    symlink("nowhere", dir.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    let put = fixture.run(&["put", "in"]).await;
    for words in ["in/link is left out: it is a link", "in/socket is left out"] {
        assert!(put.err.contains(words), "{put:?}");
    }
    let stored = put.ok();
    let uuid = stored.split_whitespace().next().unwrap();
    let listed = fixture.run(&["get", "--list", uuid]).await.ok();
    assert!(
        listed.contains("good") && listed.lines().count() == 1,
        "{listed}"
    );
}

/// Each job of a range has a directory. One without an output costs only itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_outputs_of_a_range_are_fetched() {
    let fixture = Fixture::with_image().await;
    for name in ["a", "b", "c"] {
        let job = fixture.submit(name).await;
        if name != "b" {
            fixture.start(&job).await;
            let files = [("name", name)];
            fixture.finish(&job, 0, &files, &[("stdout.txt", "")]).await;
        }
    }
    let got = fixture.run(&["get", "1-3", "all"]).await;
    assert_eq!(got.code, 3, "{got:?}");
    assert!(got.err.contains("job 2 has no output"), "{got:?}");
    for (number, name) in [("1", "a"), ("3", "c")] {
        let file = fixture.path("all").join(number).join("name");
        assert_eq!(fs::read_to_string(file).unwrap(), name);
    }
    assert!(!fixture.path("all/2").exists());
    for wrong in [&["get", "--list", "1-3"][..], &["get", "1-3", "-"]] {
        fixture.run(wrong).await.says(1, &["1-3 is a range"]);
    }
    fixture.run(&["get", "7-9"]).await.says(3, &["7-9"]);
}

/// `get` and `wait` tell what is not in an output, and that it is empty.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_in_an_output_is_told() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    let status = json!({"warning": "1 entry is not in its output", "warningDetail": "link /out/l leads \u{1b}[2Jnowhere"});
    let update = json!({"runtime_status": status});
    fixture.update(&job, update).await;
    fixture.finish(&job, 0, &[], &[("stdout.txt", "")]).await;
    // Without what would change the terminal.
    let warnings = [
        "dispatch: warning: job 1: 1 entry is not in its output\n",
        "dispatch: warning: job 1: link /out/l leads \u{fffd}[2Jnowhere\n",
    ];
    let told = fixture.run(&["wait", &job.id]).await;
    assert_eq!(
        (told.code, told.err.as_str()),
        (0, warnings.concat().as_str())
    );
    let empty = "0 files, 0 B, into out\njob 1 wrote no files below /out, which is what becomes its output\n";
    let told = fixture.run(&["get", &job.id, "out"]).await;
    assert_eq!(told.err, format!("{empty}{}", warnings.concat()));
    let summary = fixture.run(&["--json", "wait", &job.id]).await.json();
    assert_eq!(summary["warnings"][0], "1 entry is not in its output");
}
