//! `dispatch up`: with the real server, run by this test program, and a dispatcher that only listens.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::world::{Done, bare};

/// Names the program this test program is to be, and its first argument.
const PRETEND: &str = "TEST_PRETENDS_TO_BE";
const ARGUMENT: &str = "TEST_ARGUMENT";

/// Run by the scripts below; among the tests it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn pretend_to_be_a_program() {
    let argument = std::env::var(ARGUMENT).unwrap_or_default();
    match std::env::var(PRETEND).as_deref() {
        Ok("dispatch-api") => {
            let options = dispatch_api::Options::new(argument.into());
            let server = dispatch_api::Server::start(&options).await.unwrap();
            // Standard output is full of the test harness's words; the script kept the real one.
            let mut out = fs::OpenOptions::new()
                .write(true)
                .open("/proc/self/fd/3")
                .unwrap();
            writeln!(out, "{}", server.ready()).unwrap();
        }
        Ok(_) => drop(Box::leak(Box::new(
            std::net::TcpListener::bind(argument).unwrap(),
        ))),
        Err(_) => return,
    }
    std::future::pending::<()>().await;
}

struct Place {
    dir: TempDir,
}

impl Place {
    /// An installation: `dispatch` and the programs it starts, in one directory.
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let bin = place.path("bin");
        fs::create_dir(&bin).unwrap();
        let dispatch = assert_cmd::cargo::cargo_bin!("dispatch");
        if fs::hard_link(dispatch, bin.join("dispatch")).is_err() {
            let copied = Command::new("cp").arg(dispatch).arg(&bin).status();
            assert!(copied.unwrap().success());
        }
        let own = std::env::current_exe().unwrap();
        for (name, flag) in [
            ("dispatch-api", "--state"),
            ("dispatch-local", "--health-listen"),
        ] {
            place.script(name, &format!(
                "env > \"$0.env\"\nwhile [ $# -gt 0 ]; do [ \"$1\" = {flag} ] && {ARGUMENT}=$2; shift; done\n\
                 export {ARGUMENT} {PRETEND}={name}\n\
                 exec {} --exact up::pretend_to_be_a_program --nocapture 3>&1 >/dev/null\n",
                own.display()
            ));
        }
        place.script("crunch-run", "exit 0\n");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        let (draft, path) = (self.path("draft"), self.path("bin").join(name));
        fs::write(&draft, format!("#!/bin/sh\n{text}")).unwrap();
        // By another process: one that is forked by another test must not have it open for writing.
        let mut install = Command::new("install");
        let done = install.args(["-m", "755"]).args([&draft, &path]).status();
        assert!(done.unwrap().success());
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/dispatch"));
        command
            .args(["--state", "state"])
            .args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.dir.path())
            .env("ARVADOS_API_TOKEN", "a-secret-of-somebody");
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        Done::of(&mut assert_cmd::Command::from_std(self.command(args)))
    }

    /// Starts it and reads what it prints when it is ready.
    fn up(&self) -> (Running, Vec<String>) {
        let mut child = self
            .command(&["up"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = vec![String::new(), String::new()];
        for line in &mut lines {
            out.read_line(line).unwrap();
        }
        (Running { child, out }, lines)
    }

    fn child_pid(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path("state/up.json")).ok()?;
        let record: Value = serde_json::from_str(&text).ok()?;
        let children = record["children"].as_array()?;
        children.iter().find(|child| child["name"] == name)?["pid"].as_u64()
    }
}

struct Running {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn signal(&self, signal: &str) {
        kill(u64::from(self.child.id()), signal);
    }

    /// Its exit status and what else it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut more = String::new();
        self.out.read_to_string(&mut more).unwrap();
        (status.code(), more)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test must not leave programs behind; the number of one that is over may be another's by now.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("-TERM");
            let _ = self.child.wait();
        }
    }
}

fn kill(pid: u64, signal: &str) {
    // The process may be gone already.
    let _ = Command::new("kill")
        .args([signal, &pid.to_string()])
        .output();
}

fn is_alive(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn one_command_makes_a_server_that_others_find() {
    let place = Place::new();
    let (up, lines) = place.up();
    assert!(
        lines[0].starts_with("export ARVADOS_API_HOST=127.0.0.1:"),
        "{lines:?}"
    );
    assert!(
        lines[0].ends_with(" ARVADOS_API_HOST_INSECURE=1\n"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("export ARVADOS_API_TOKEN=v2/"),
        "{lines:?}"
    );
    assert_eq!(place.run(&["env"]).ok(), lines.concat());
    assert_eq!(mode(&place.path("state/env")), 0o600);
    assert_eq!(mode(&place.path("state")), 0o700);
    let info = place.run(&["--json", "info"]).json();
    assert!(
        info["state_dir"].as_str().unwrap().ends_with("/state"),
        "{info}"
    );

    place.run(&["up"]).says(6, &["already runs on", "--state"]);

    for program in ["dispatch-api", "dispatch-local"] {
        let environment = fs::read_to_string(place.path(&format!("bin/{program}.env"))).unwrap();
        assert!(
            !environment.contains("secret") && !environment.contains("=v2/"),
            "{environment}"
        );
    }
    up.signal("-TERM");
    let (code, more) = up.end();
    assert_eq!((code, more.as_str()), (Some(0), ""));
    assert!(!place.path("state/env").exists());
    place
        .run(&["list"])
        .says(4, &["no 'dispatch up' is running"]);
}

#[test]
fn programs_that_die_are_started_again_and_end_with_up() {
    let place = Place::new();
    let (up, lines) = place.up();
    let mut pids = Vec::new();
    for name in ["dispatch-local", "dispatch-api"] {
        let first = place.child_pid(name).unwrap();
        kill(first, "-KILL");
        eventually(&format!("{name} was not started again"), || {
            place.child_pid(name).is_some_and(|pid| pid != first)
        });
        pids.push(place.child_pid(name).unwrap());
    }
    eventually("the server does not come back", || {
        place.run(&["list"]).code == 0
    });
    assert_eq!(
        place.run(&["env"]).ok(),
        lines.concat(),
        "it is where it was"
    );
    up.signal("-INT");
    assert_eq!(up.end().0, Some(0));
    assert!(!pids.into_iter().any(is_alive), "a program was left behind");
}

#[test]
fn what_a_killed_up_left_behind_is_ended_by_the_next() {
    let place = Place::new();
    let (up, _) = place.up();
    let left: Vec<u64> = ["dispatch-api", "dispatch-local"]
        .iter()
        .filter_map(|n| place.child_pid(n))
        .collect();
    up.signal("-KILL");
    assert_eq!(up.end().0, None);
    assert!(
        left.iter().all(|pid| is_alive(*pid)),
        "this tests nothing if they are gone"
    );
    place
        .run(&["list"])
        .says(4, &["no 'dispatch up' is running"]);
    let (again, _) = place.up();
    assert!(!left.into_iter().any(is_alive));
    place.run(&["list"]).ok();
    again.signal("-TERM");
    assert_eq!(again.end().0, Some(0));
}

#[test]
fn a_program_that_cannot_start_says_why() {
    let place = Place::new();
    place.script(
        "dispatch-local",
        "echo 'the run directory is made of cheese' >&2; exit 78\n",
    );
    let done = place.run(&["up"]);
    assert_eq!((done.code, done.out.as_str()), (1, ""), "{done:?}");
    assert!(
        done.err.contains("dispatch-local does not start"),
        "{done:?}"
    );
    assert!(done.err.contains("made of cheese"), "{done:?}");
    let log = fs::read_to_string(place.path("state/log")).unwrap();
    assert!(log.contains("dispatch-local the run directory"), "{log}");
    assert!(!place.path("state/up.json").exists());

    fs::remove_file(place.path("bin/dispatch-local")).unwrap();
    let done = place.run(&["up"]);
    // It may be installed on the machine the tests run on, but not where we look.
    done.says(1, &["cannot find the program dispatch-local"]);
}

#[test]
fn up_needs_a_place_for_its_state() {
    let home = tempfile::tempdir().unwrap();
    let mut command = bare(home.path(), &["up"]);
    command.env_remove("HOME");
    Done::of(&mut command).says(1, &["set XDG_STATE_HOME or HOME"]);
}
