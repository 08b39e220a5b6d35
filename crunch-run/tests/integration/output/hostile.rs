//! Malicious outputs: names, depths, links to the node, files that change or cannot be read.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use arvados_client::keep::MemoryStore;
use arvados_client::manifest::Manifest;
use crunch_run::inputs::Progress;
use crunch_run::output::{BadEntries, OutputError};
use rustix::fs::FileType;

use crate::files_world::{Lab, listing};
use crate::output::plain;

#[tokio::test]
async fn names_and_depths_that_fit_no_collection_are_named() {
    use std::os::unix::ffi::OsStrExt;
    let lab = plain().await;
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    std::fs::write(lab.staged.output_dir.join(name), "x").unwrap();
    let error = lab.error().await;
    assert!(
        error.to_string().contains("/ctr/outdir/caf") && error.is_user_error(),
        "{error}"
    );
    lab.act(&["good = x"]);
    let (files, left_out) = lab.without_bad_entries().await;
    assert_eq!(
        (files, left_out),
        (vec!["good".to_owned()], vec![error.to_string()])
    );

    let lab = plain().await;
    lab.act(&[&"d/".repeat(250)]);
    let error = lab.error().await;
    assert!(
        error.to_string().contains("levels deep") && error.is_user_error(),
        "{error}"
    );
    lab.act(&["good = x"]);
    let (files, left_out) = lab.without_bad_entries().await;
    // The directory above is there, and empty.
    assert_eq!((files.len(), files[1].as_str()), (2, "good"));
    assert_eq!(left_out, [error.to_string()]);
}

/// Sockets, pipes and devices, which root can make in a container.
#[tokio::test]
async fn special_files_are_left_out_and_named() {
    let lab = plain().await;
    lab.act(&["d/file = x"]);
    let out = &lab.staged.output_dir;
    let _socket = std::os::unix::net::UnixListener::bind(out.join("d/socket")).unwrap();
    make_node(&out.join("d/pipe"), FileType::Fifo, 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    let has_device = make_node(&out.join("d/zz"), FileType::CharacterDevice, null).is_ok();
    symlink("pipe", out.join("d/to-pipe")).unwrap();
    let (files, left_out) = lab.without_bad_entries().await;
    assert_eq!(files, ["d/file"]);
    let mut expected = vec![
        "/ctr/outdir/d/pipe is not in the output because it is a pipe",
        "/ctr/outdir/d/socket is not in the output because it is a socket",
        "/ctr/outdir/d/pipe is not in the output because it is a pipe",
    ];
    if has_device {
        expected.push("/ctr/outdir/d/zz is not in the output because it is a device");
    }
    assert_eq!(left_out, expected);
}

fn make_node(path: &Path, kind: FileType, device: u64) -> std::io::Result<()> {
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        kind,
        mode,
        device,
    )?)
}

#[tokio::test]
async fn odd_names_come_back_as_they_were() {
    let mut lab = plain().await;
    let names = [
        "a\nb",
        "new\nline/in\ndir",
        " leading and trailing ",
        ":0:5:",
        "\\012",
        "\u{7f}",
        "...",
        "-rf",
    ];
    for (i, name) in names.iter().enumerate() {
        let path = lab.staged.output_dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, i.to_string()).unwrap();
    }
    let mut expected: Vec<&str> = names.to_vec();
    expected.sort();
    assert_eq!(lab.output().await, expected);
    let manifest = lab.capture().await.unwrap();
    let saved = lab.world.save(&manifest.to_string()).await;
    let text = lab.world.client.collection(&saved).await.unwrap();
    let manifest = Manifest::parse(&text.manifest_text).unwrap();
    for (i, name) in names.iter().enumerate() {
        assert_eq!(lab.read(&manifest, name).await, i.to_string(), "{name:?}");
    }
}

/// A path longer than the kernel accepts in one call.
#[tokio::test]
async fn a_path_of_five_thousand_bytes_is_captured() {
    let lab = plain().await;
    let name = "x".repeat(250);
    let mut dir = std::fs::File::open(&lab.staged.output_dir).unwrap();
    for _ in 0..20 {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkdirat(&dir, &name, mode).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        let below = rustix::fs::openat(&dir, &name, flags, rustix::fs::Mode::empty()).unwrap();
        dir = below.into();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::openat(&dir, "f", flags, rustix::fs::Mode::RWXU).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    let manifest = lab.capture().await.unwrap();
    let path = format!("{name}/").repeat(20) + "f";
    assert_eq!(listing(&manifest), [path.as_str()]);
    assert_eq!(lab.read(&manifest, &path).await, "deep");
}

#[tokio::test]
async fn links_into_the_node_are_refused_by_name() {
    let long = format!("/{}", "y/".repeat(2000));
    for (link, words) in [
        ("l -> /proc/self/root/etc/shadow", "/proc/self/root"),
        ("l -> /proc/self/fd/0", "/proc/self/fd/0"),
        ("l -> /sys/kernel", "/sys/kernel"),
        ("l -> ../../../../../proc/1/environ", "/proc/1/environ"),
        (format!("l -> {long}").as_str(), "/y/y/y"),
    ] {
        let lab = plain().await;
        lab.act(&[link]);
        let error = lab.error().await;
        let text = error.to_string();
        assert!(
            text.starts_with("output link /ctr/outdir/l leads to "),
            "{text}"
        );
        assert!(
            text.contains(words) && text.contains("neither in the output"),
            "{text}"
        );
        assert!(error.is_user_error());
    }
}

/// Captures the output while `deed` changes it between the walk and the reading.
async fn captured_while(
    lab: &Lab,
    deed: impl Fn(&Path) + Send + Sync,
) -> Result<Manifest, OutputError> {
    let out = lab.staged.output_dir.clone();
    let done = Mutex::new(false);
    let at_first = move |progress: Progress| {
        if progress.done == 0 && !std::mem::replace(&mut *done.lock().unwrap(), true) {
            deed(&out);
        }
    };
    let captured = crunch_run::output::capture(
        &lab.staged,
        &lab.container,
        &lab.world.keep,
        BadEntries::LeaveOut,
        &at_first,
    );
    Ok(captured.await?.manifest)
}

#[tokio::test]
async fn a_file_that_vanishes_before_it_is_read_is_worth_another_look() {
    let mut lab = plain().await;
    lab.act(&["a = 1", "b = 2"]);
    let vanish = |out: &Path| std::fs::remove_file(out.join("b")).unwrap();
    let error = captured_while(&lab, vanish).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("output file b cannot be read"), "{text}");
    assert!(!error.is_user_error());
    assert_eq!(lab.output().await, ["a"]);
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_as_long_as_what_was_read() {
    let lab = plain().await;
    lab.act(&["a = 1", "grows = 22", "shrinks = 333"]);
    let change = |out: &Path| {
        std::fs::write(out.join("grows"), "22 and more").unwrap();
        std::fs::write(out.join("shrinks"), "").unwrap();
    };
    let manifest = captured_while(&lab, change).await.unwrap();
    assert_eq!(lab.read(&manifest, "grows").await, "22 and more");
    assert_eq!(lab.read(&manifest, "shrinks").await, "");
    assert_eq!(lab.read(&manifest, "a").await, "1");
}

#[tokio::test]
async fn a_file_that_becomes_a_link_or_a_pipe_is_never_opened() {
    let to_shadow = |path: &Path| symlink("/etc/shadow", path).unwrap();
    let to_pipe = |path: &Path| make_node(path, FileType::Fifo, 0).unwrap();
    for become_other in [&to_shadow as &(dyn Fn(&Path) + Send + Sync), &to_pipe] {
        let lab = plain().await;
        lab.act(&["d/a = 1"]);
        let change = |out: &Path| {
            std::fs::remove_file(out.join("d/a")).unwrap();
            become_other(&out.join("d/a"));
        };
        let error = captured_while(&lab, change).await.unwrap_err();
        assert!(
            error.to_string().starts_with("output file d/a cannot"),
            "{error}"
        );
    }
}

/// As an ordinary user: root can read everything, so the threads of the walk run as nobody.
#[test]
fn what_may_not_be_read_is_the_container_s_mistake() {
    let world = tokio::runtime::Runtime::new().unwrap();
    for (path, words) in [("closed", "output file closed"), ("dir", "/ctr/outdir/dir")] {
        let lab = world.block_on(plain());
        lab.act(&["closed = x", "dir/"]);
        let nobody = rustix::process::Uid::from_raw(65534);
        if rustix::process::geteuid().is_root() {
            let mut ancestor: Option<&Path> = Some(&lab.staged.output_dir);
            while let Some(dir) = ancestor.filter(|dir| *dir != std::env::temp_dir()) {
                std::os::unix::fs::chown(dir, Some(nobody.as_raw()), None).unwrap();
                ancestor = dir.parent();
            }
        }
        let closed = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(lab.staged.output_dir.join(path), closed).unwrap();
        let ordinary = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || {
                if rustix::process::geteuid().is_root() {
                    rustix::thread::set_thread_uid(nobody).unwrap();
                }
            })
            .build()
            .unwrap();
        let error = ordinary.block_on(lab.error());
        assert!(error.to_string().starts_with(words) || error.to_string().contains(words));
        assert!(error.to_string().contains("Permission denied"), "{error}");
        assert!(error.is_user_error(), "{error}");
        std::fs::write(lab.staged.output_dir.join("good"), "x").unwrap();
        let (files, left_out) = ordinary.block_on(lab.without_bad_entries());
        assert!(files.contains(&"good".to_owned()), "{files:?}");
        assert!(
            !files.iter().any(|file| file.starts_with(path)),
            "{files:?}"
        );
        assert_eq!(left_out, [error.to_string()]);
    }
}

/// Holes are zeros, and equal blocks are stored once.
#[tokio::test]
async fn a_sparse_file_is_as_long_as_it_says() {
    let lab = plain().await;
    let path = lab.staged.output_dir.join("sparse");
    let file = std::fs::File::create(path).unwrap();
    file.set_len(3 * (64 << 20)).unwrap();
    file.write_all_at(b"end", 3 * (64 << 20)).unwrap();
    let store = Arc::new(MemoryStore::new());
    let captured = lab.capture_into(&store, BadEntries::Refuse).await;
    assert_eq!(captured.unwrap().manifest.total_size(), 3 * (64 << 20) + 3);
    assert_eq!(store.len(), 2);
}
