//! A node with a full disk runs nothing: the container runs elsewhere, and the BrokenNodeHook is
//! run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::run_lab::{World, can_run, file, finish, lines};
use arvados_client::records::ContainerState;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use tempfile::TempDir;

/// A file system of one MiB, removed with the test.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        mount(
            "tmpfs",
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            Some(c"size=1m,mode=700"),
        )
        .unwrap();
        Self(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).unwrap();
    }
}

fn hook(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("drain");
    fs::write(
        &path,
        format!(
            "#!/bin/sh\necho \"drained because $1\"\ntouch {}/drained\n",
            dir.display()
        ),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[tokio::test]
async fn a_full_disk_raises_the_alarm_and_leaves_the_container_to_another_node() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let disk = SmallDisk::new();
    let own = tempfile::tempdir().unwrap();
    let marker = own.path().join("broken");
    let flags = |flag: &str, path: &Path| vec![flag.to_owned(), path.display().to_string()];
    let with_marker = flags("--broken-node-marker", &marker);
    let with_hook = [
        flags("--broken-node-hook", &hook(own.path())),
        with_marker.clone(),
    ]
    .concat();
    for (flags, hooked) in [(with_hook, true), (with_marker, false)] {
        let job = world.lock(&["true"], json!({})).await;
        let mut program = world.program_with_cache(&job, disk.0.path());
        let finished = finish(program.args(&flags).spawn().unwrap()).await;
        assert_eq!(finished.code, 75, "{}", finished.output);
        let record = world.record(&job).await;
        assert_eq!(record.state, ContainerState::Locked);
        // The log that outlives the attempt has the reason.
        let log = world.log(&job).await;
        let story = lines(file(&log, "crunch-run.txt"));
        let is_said = |words: &str| story.iter().any(|line| line.contains(words));
        assert!(is_said("This node seems to be broken: "), "{story:?}");
        assert!(is_said("No space left on device"), "{story:?}");
        assert_eq!(
            is_said("drained because the image cannot be made ready"),
            hooked,
            "{story:?}"
        );
        assert_eq!(marker.exists(), !hooked);
    }
    assert!(own.path().join("drained").exists());
    assert!(
        fs::read_to_string(marker)
            .unwrap()
            .contains("No space left on device")
    );
}
