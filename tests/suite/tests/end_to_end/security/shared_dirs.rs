//! Names in directories where every user of a machine may write: all that the programs use there is
//! in a table, with what keeps others from taking it.

use std::collections::BTreeSet;
use std::path::Path;

use suite_tests::program::{Program, binary, write_script};
use tempfile::TempDir;

use crate::up::Up;

/// Directories where others may write, or could on some systems.
const SHARED: [&str; 5] = ["/tmp/", "/var/tmp/", "/dev/shm/", "/run/", "/var/lock/"];

/// What the programs use there. `*` stands for letters and digits that nobody can know before.
const KNOWN: [(&str, &str); 15] = [
    ("/run/crunch-run", "root's: host_state::private_dir"),
    (
        "/run/crunch-run-*",
        "the same, if another user had taken that",
    ),
    ("/tmp/crunch-run-65534", "a user's: host_state::private_dir"),
    (
        "/tmp/crunch-run-65534-*",
        "the same, if another user had taken that",
    ),
    (
        "/tmp/crunch-run-list-65534",
        "a user's: host_state::private_dir",
    ),
    (
        "/tmp/crunch-run-check.*",
        "made anew by one mkdir with mode 0700",
    ),
    (
        "/dev/shm/dispatch-machine",
        "of all users: machine_claims believes a file's owner only",
    ),
    ("/run/docker.sock", "root's: the daemon"),
    ("/run/podman", "root's: the daemon"),
    ("/run/systemd", "root's: whether systemd runs"),
    ("/run/cdi", "root's, for reading: the CDI specification"),
    ("/run/crun", "of crun"),
    ("/tmp/crun.*", "of crun"),
    ("/tmp/.tmp*", "runs of other tests, from root's own records"),
    ("/tmp/cr-docker-*", "a daemon of other tests, from the same"),
];

/// Calls that find nothing out and change nothing, or act on a name that is no path of the host.
const HARMLESS: [&str; 6] = [
    "readlink",
    "readlinkat",
    "statfs",
    "getcwd",
    "umount2",
    "umount",
];

/// `dispatch up` of a user under `strace`, with its own state beside.
fn traced(user: &str) -> Up {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("traced");
    let dispatch = binary("dispatch");
    let trace = dir.path().join("trace");
    write_script(
        &script,
        &format!(
            "#!/bin/sh\nexec strace -D -f -qq -e trace=%file -e signal=none -o {} {} \"$@\"\n",
            trace.display(),
            dispatch.display()
        ),
    );
    let owned = std::process::Command::new("chown")
        .arg(user)
        .arg(dir.path())
        .status();
    assert!(owned.unwrap().success());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (state, home) = (text(&dir.path().join("state")), text(dir.path()));
    let arguments = ["up", "--state-dir", &state];
    let program = Program::new(
        "dispatch",
        &dir.path().join("up"),
        &arguments,
        &[("HOME", &home)],
    );
    Up::start_program(program.run_as(user, script), dir, None)
}

/// The names below [`SHARED`] in a trace, but for those of the test itself, and of the programs and
/// their sources, which may be there.
fn names(trace: &str, own: &TempDir) -> BTreeSet<String> {
    let programs = binary("dispatch").with_file_name("");
    let sources = suite_tests::workspace().canonicalize().unwrap();
    let own = [own.path(), &programs, &sources].map(|path| path.to_str().unwrap().to_owned());
    let is_own = |path: &str| own.iter().any(|own| path.starts_with(own));
    let mut names = BTreeSet::new();
    for line in trace.lines() {
        let Some((before, arguments)) = line.split_once('(') else {
            continue;
        };
        let call = before.split_whitespace().last().unwrap_or_default();
        if HARMLESS.contains(&call) {
            continue;
        }
        for path in arguments.split('"').skip(1).step_by(2) {
            let path = path
                .replace("/var/run/", "/run/")
                .replace("/run/lock/", "/var/lock/");
            let parent = SHARED.into_iter().find(|parent| path.starts_with(parent));
            if let Some(parent) = parent.filter(|_| !is_own(&path)) {
                let name = path[parent.len()..].split('/').next().unwrap();
                names.insert(format!("{parent}{name}"));
            }
        }
    }
    names.retain(|name| !SHARED.contains(&name.as_str()));
    names
}

fn is_known(name: &str) -> bool {
    KNOWN
        .iter()
        .any(|(known, _)| match known.strip_suffix('*') {
            Some(start) => name.strip_prefix(start).is_some_and(|rest| {
                !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric())
            }),
            None => name == *known,
        })
}

fn assert_only_known_names(user: &str) {
    let mut up = traced(user);
    up.add_image();
    up.ok_line("submit --image busybox:test --memory 16MiB --wait -- true");
    up.end();
    let trace = std::fs::read_to_string(up.dir.path().join("trace")).unwrap();
    let names = names(&trace, &up.dir);
    assert!(
        names.iter().any(|name| name.contains("crunch-run")),
        "{names:?}"
    );
    let unknown: Vec<&String> = names.iter().filter(|name| !is_known(name)).collect();
    let uses = |name: &&String| trace.lines().rfind(|line| line.contains(name.as_str()));
    let uses: Vec<&str> = unknown.iter().filter_map(uses).collect();
    assert!(
        unknown.is_empty(),
        "used where others may write, and in no table: {unknown:?}\n{uses:#?}"
    );
}

#[test]
fn root_uses_only_names_that_are_its_own() {
    assert_only_known_names("0");
}

#[test]
fn an_ordinary_user_uses_only_names_that_are_its_own() {
    assert_only_known_names("65534");
}
