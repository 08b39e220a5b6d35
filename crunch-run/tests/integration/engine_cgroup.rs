//! A real control group: filled, counted, killed and removed.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cgroup::{Cgroup, Layout, Scope};

fn make(leaf: &str) -> Option<Cgroup> {
    let group = Layout::of_this_process().ok()?.container_group(leaf);
    for dir in group.dirs() {
        fs::create_dir(dir).ok()?;
        // A new cpuset group has no CPUs and accepts no process until it has some.
        for name in ["cpuset.cpus", "cpuset.mems"] {
            if let Some(parent) = dir.parent()
                && let Ok(value) = fs::read_to_string(parent.join(name))
            {
                let _ = fs::write(dir.join(name), value.trim());
            }
        }
    }
    Some(group)
}

#[test]
fn everything_in_a_group_is_killed_however_it_was_started_and_the_group_is_removed() {
    let leaf = format!("crunch-run-test-{}", std::process::id());
    let Some(group) = make(&leaf) else {
        suite_tests::skip("this test needs control groups that it may create");
        return;
    };
    // Ignores TERM, and leaves a grandchild in a session of its own.
    let mut child = Command::new("/bin/sh")
        .args([
            "-c",
            "read go; trap '' TERM; setsid sleep 600 & while :; do sleep 1; done",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    for dir in group.dirs() {
        fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    drop(child.stdin.take());
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while group.processes().len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", group.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(group.processes().contains(&child.id()));
    assert!(group.memory_current().is_some_and(|bytes| bytes > 0));
    assert_eq!(group.oom_kills(), Some(0));
    assert!(group.cpu(Scope::Own).is_some());

    // The test reaps its child, as init would; until then some kernels count it as a member.
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    group.kill(suite_tests::STEP_TIMEOUT).unwrap();
    assert_eq!(reaper.join().unwrap().signal(), Some(9));
    group.remove(suite_tests::STEP_TIMEOUT).unwrap();
    assert!(!group.exists());
    // Killing again has no effect.
    group.kill(suite_tests::STEP_TIMEOUT).unwrap();
    group.remove(suite_tests::STEP_TIMEOUT).unwrap();
}
