//! `dispatch up` of an ordinary user on a machine whose control groups are of version 2, and whose
//! first process is systemd. Such a machine, made for these tests, is in `make test-cgroup-v2`.

use std::fs;
use std::path::{Path, PathBuf};

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::wait_for;

use crate::up::Up;

/// The user whom `tests/labs/virtual-machine` has made. Their services go on without a session.
fn lingering_user() -> String {
    std::env::var("VIRTUAL_MACHINE_USER").expect("make test-cgroup-v2 sets it")
}

fn start(user: &str, path: &str) -> Up {
    let up = Up::start_as(user, path);
    up.add_image();
    up
}

/// What `dispatch up` says when its check of the engine has ended.
fn notes(up: &Up) -> String {
    wait_for("the end of the check", STEP_TIMEOUT, || {
        let notes = up.notes();
        notes.contains("engine ").then_some(notes)
    })
}

/// The control groups below `dir` that limit memory to this size.
fn groups_with(dir: &Path, memory: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let limit = fs::read_to_string(dir.join("memory.max"));
    if limit.is_ok_and(|limit| limit.trim() == memory) {
        found.push(dir.to_owned());
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(groups_with(&entry.path(), memory));
        }
    }
    found
}

#[test]
#[ignore = "needs systemd and control groups version 2: make test-cgroup-v2"]
fn the_kernel_keeps_the_limits_of_an_ordinary_user_s_containers() {
    // Apptainer is in /usr/local, and is taken before the others.
    let all = std::env::var("PATH").unwrap();
    for (path, engine) in [
        ("/usr/bin:/usr/sbin:/bin:/sbin", "oci"),
        (&all, "apptainer"),
    ] {
        limits_are_kept(path, engine);
    }
}

fn limits_are_kept(path: &str, engine: &str) {
    let up = start(&lingering_user(), path);
    let notes = notes(&up);
    let limits = format!("engine {engine}; the kernel limits memory, CPUs and processes");
    assert!(notes.contains(&limits), "{notes}");

    let memory = (64 << 20).to_string();
    up.ok_line("submit --image busybox:test --memory 64MiB --cpus 1 -- sleep 100000");
    up.wait_until_running("1");
    let groups = groups_with(Path::new("/sys/fs/cgroup/user.slice"), &memory);
    let [group] = groups.as_slice() else {
        panic!("{groups:?}");
    };
    let limit = |name: &str| fs::read_to_string(group.join(name)).unwrap();
    assert_eq!(limit("cpu.max").trim(), "100000 100000");
    assert!(limit("pids.max").trim().parse::<u64>().is_ok());
    up.kill("1");
    assert!(!group.exists(), "{group:?}");

    // `tail` reads a line without an end into its memory.
    let submit = "submit --image busybox:test --memory 64MiB --wait -- tail /dev/zero";
    let arguments: Vec<&str> = submit.split(' ').collect();
    let (code, said) = up.fails(&arguments);
    assert_eq!(code, 137, "{said}");
    assert!(said.contains("killed by its memory limit"), "{said}");

    let own = fs::read_to_string(format!("/proc/{}/cgroup", up.pid())).unwrap();
    let own = own.trim().strip_prefix("0::/").unwrap();
    let scope = Path::new("/sys/fs/cgroup").join(own.strip_suffix("/dispatch-up").unwrap());
    assert!(scope.exists());
    drop(up);
    wait_for("the end of the scope", STEP_TIMEOUT, || {
        (!scope.exists()).then_some(())
    });
}

/// Containers would end with the last session of this user.
#[test]
#[ignore = "needs systemd and control groups version 2: make test-cgroup-v2"]
fn without_lingering_the_command_that_allows_limits_is_named() {
    let up = start("65534", &std::env::var("PATH").unwrap());
    let notes = notes(&up);
    let advice = "the kernel can limit memory, CPUs and processes of containers after: \
         loginctl enable-linger";
    assert!(notes.contains(advice), "{notes}");
    let limits = "crunch-run watches memory; nothing limits CPUs and processes";
    assert!(notes.contains(limits), "{notes}");
}
