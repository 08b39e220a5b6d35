//! `dispatch up`, with the real server, run by this test program, and a dispatcher that only
//! accepts connections.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{CommandResult, bare};

/// Variables with the program that this test program plays, and its first argument.
const PRETEND: &str = "TEST_PRETENDS_TO_BE";
const ARGUMENT: &str = "TEST_ARGUMENT";

/// Runs as a program when started by the scripts below; does nothing as a test.
#[tokio::test(flavor = "multi_thread")]
async fn pretend_to_be_a_program() {
    let argument = std::env::var(ARGUMENT).unwrap_or_default();
    match std::env::var(PRETEND).as_deref() {
        Ok("dispatch-api") => {
            let options = dispatch_api::Options::new(argument.into());
            let server = dispatch_api::Server::start(&options).await.unwrap();
            // Standard output has the output of the test harness; the script saved the real one.
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

struct Installation {
    dir: TempDir,
}

impl Installation {
    /// An installation: `dispatch` and the programs it starts, in one directory.
    fn new() -> Self {
        let installation = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let bin = installation.path("bin");
        fs::create_dir(&bin).unwrap();
        let dispatch = assert_cmd::cargo::cargo_bin!("dispatch");
        if fs::hard_link(dispatch, bin.join("dispatch")).is_err() {
            let copied = Command::new("cp").arg(dispatch).arg(&bin).status();
            assert!(copied.unwrap().success());
        }
        let own = std::env::current_exe().unwrap();
        for (name, flag) in [
            ("dispatch-api", "--state-dir"),
            ("dispatch-local", "--health-listen"),
        ] {
            installation.script(name, &format!(
                "env > \"$0.env\"\nwhile [ $# -gt 0 ]; do [ \"$1\" = {flag} ] && {ARGUMENT}=$2; shift; done\n\
                 export {ARGUMENT} {PRETEND}={name}\n\
                 exec {} --exact up::pretend_to_be_a_program --nocapture 3>&1 >/dev/null\n",
                own.display()
            ));
        }
        installation.script("crunch-run", "exit 0\n");
        installation
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        let (draft, path) = (self.path("draft"), self.path("bin").join(name));
        fs::write(&draft, format!("#!/bin/sh\n{text}")).unwrap();
        // Written by another process: a process forked by another test must not have it open.
        let mut install = Command::new("install");
        let done = install.args(["-m", "755"]).args([&draft, &path]).status();
        assert!(done.unwrap().success());
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/dispatch"));
        command
            .args(["--state-dir", "state"])
            .args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.dir.path())
            .env("ARVADOS_API_TOKEN", "a-secret-of-somebody");
        command
    }

    fn run(&self, args: &[&str]) -> CommandResult {
        CommandResult::of(&mut assert_cmd::Command::from_std(self.command(args)))
    }

    /// Starts `dispatch up` and reads the lines it prints when it is ready.
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

    /// Returns the exit status and the rest of the output.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut more = String::new();
        self.out.read_to_string(&mut more).unwrap();
        (status.code(), more)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test must not leave programs behind. The pid of an ended one may be reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("-TERM");
            let _ = self.child.wait();
        }
    }
}

fn kill(pid: u64, signal: &str) {
    // The process may have ended already.
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
    let installation = Installation::new();
    let (up, lines) = installation.up();
    assert!(
        lines[0].starts_with("export ARVADOS_API_HOST=127.0.0.1:"),
        "{lines:?}"
    );
    let token = fs::read_to_string(installation.path("state/api/tokens/user")).unwrap();
    let printed = installation.run(&["env"]).ok();
    assert!(printed.contains(token.trim()), "{printed}");
    assert!(!lines.concat().contains(token.trim()), "{lines:?}");
    // A shell gets the same of both.
    assert_eq!(evaluated(&lines.concat()), evaluated(&printed));
    assert_eq!(mode(&installation.path("state")), 0o700);
    let admin_token = installation.path("state/api/tokens/root");
    assert_eq!(mode(&admin_token), 0o600);
    let info = installation.run(&["--json", "info"]).json();
    assert!(
        info["state_dir"].as_str().unwrap().ends_with("/state"),
        "{info}"
    );

    installation
        .run(&["up"])
        .says(6, &["already runs on", "--state-dir"]);

    for program in ["dispatch-api", "dispatch-local"] {
        let environment =
            fs::read_to_string(installation.path(&format!("bin/{program}.env"))).unwrap();
        assert!(
            !environment.contains("secret") && !environment.contains("=v2/"),
            "{environment}"
        );
    }
    // The dispatcher asks no proxy for this server.
    let environment = fs::read_to_string(installation.path("bin/dispatch-local.env")).unwrap();
    assert!(
        environment.lines().any(|line| line == "no_proxy=127.0.0.1"),
        "{environment}"
    );
    up.signal("-TERM");
    let (code, more) = up.end();
    assert_eq!((code, more.as_str()), (Some(0), ""));
    assert!(!installation.path("state/up.json").exists());
    installation
        .run(&["list"])
        .says(4, &["no 'dispatch up' is running"]);
}

/// The variables that a shell gets from these lines.
fn evaluated(lines: &str) -> String {
    let names = ["ARVADOS_API_HOST", "SSL_CERT_FILE", "ARVADOS_API_TOKEN"];
    let show: String = names.map(|name| format!("echo \"${name}\"\n")).concat();
    let script = lines.to_owned() + &show;
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn people_get_an_ordinary_token_and_user_commands_the_administrator_s() {
    let installation = Installation::new();
    let (up, _) = installation.up();
    let env = installation.run(&["--json", "env"]).json();
    let token = env["ARVADOS_API_TOKEN"].as_str().unwrap();
    installation.run(&["user", "add", "ana"]).ok();
    let users = installation.run(&["--json", "user", "list"]).json();
    let is_admin = |name: &str| {
        let user = users.as_array().unwrap().iter().find(|u| u["name"] == name);
        user.unwrap_or_else(|| panic!("no {name} in {users}"))["is_admin"] == true
    };
    assert!(!is_admin("user") && !is_admin("ana") && is_admin("root"));
    assert_eq!(installation.run(&["--json", "info"]).json()["user"], "user");
    let admin = installation.run(&["--admin", "--json", "info"]).json();
    assert_eq!(admin["user"], "root, the system user", "{admin}");
    let of_all = || {
        let info = installation.run(&["info"]).ok();
        let line = info.lines().find(|line| line.starts_with("All users"));
        line.map(str::to_owned)
    };
    assert_eq!(of_all(), None);
    let root = installation.path("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("tool"), "not run in these tests").unwrap();
    let add = ["--admin", "image", "add", "tool", root.to_str().unwrap()];
    installation.run(&add).ok();
    let submit = "--admin submit --image tool --cpus 4000 -- tool";
    let submit: Vec<&str> = submit.split(' ').collect();
    installation.run(&submit).ok();
    let line = of_all().unwrap();
    assert!(line.contains("0 running, 0 starting, 1 waiting;"), "{line}");
    // This dispatcher accepts connections and does not answer.
    let waited = installation.run(&["--admin", "wait", "1", "--timeout", "1s"]);
    assert!(waited.err.contains("does not reply"), "{waited:?}");
    // With these variables alone, the commands do not find the administrator's token.
    let mut away = bare(installation.dir.path(), &["user", "list"]);
    for (name, value) in env.as_object().unwrap() {
        away.env(name, value.as_str().unwrap());
    }
    CommandResult::of(&mut away).says(4, &["only an administrator", "user user"]);

    for name in ["root", "dispatch", "user"] {
        let path = installation.path("state/api/tokens").join(name);
        assert_eq!(mode(&path), 0o600);
        let secret = fs::read_to_string(path).unwrap();
        let files = ["state/up.json", "state/log", "state/ca-certificates.pem"];
        for file in files {
            let text = fs::read_to_string(installation.path(file)).unwrap();
            assert!(!text.contains(secret.trim()), "{name} in {file}");
        }
        assert_eq!(secret.trim() == token, name == "user");
    }
    up.signal("-TERM");
    assert_eq!(up.end().0, Some(0));
}

#[test]
fn programs_that_die_are_started_again_and_end_with_up() {
    let installation = Installation::new();
    let (up, _) = installation.up();
    let printed = installation.run(&["env"]).ok();
    let mut pids = Vec::new();
    for name in ["dispatch-local", "dispatch-api"] {
        let first = installation.child_pid(name).unwrap();
        kill(first, "-KILL");
        eventually(&format!("{name} was not started again"), || {
            installation.child_pid(name).is_some_and(|pid| pid != first)
        });
        pids.push(installation.child_pid(name).unwrap());
    }
    eventually("the server does not come back", || {
        installation.run(&["list"]).code == 0
    });
    assert_eq!(
        installation.run(&["env"]).ok(),
        printed,
        "it is where it was"
    );
    up.signal("-INT");
    assert_eq!(up.end().0, Some(0));
    assert!(!pids.into_iter().any(is_alive), "a program was left behind");
}

#[test]
fn who_waits_for_a_server_that_hangs_is_told_so() {
    let installation = Installation::new();
    let (up, _) = installation.up();
    let server = installation.child_pid("dispatch-api").unwrap();
    let said = installation.path("said");
    kill(server, "-STOP");
    let mut list = installation
        .command(&["list"])
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    eventually("nothing is said", || {
        let said = fs::read_to_string(&said).unwrap();
        said.contains("waiting for an answer of 127.0.0.1")
    });
    kill(server, "-CONT");
    assert!(list.wait().unwrap().success());
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(said.matches("waiting").count(), 1, "{said}");
    up.signal("-TERM");
    assert_eq!(up.end().0, Some(0));
}

#[test]
fn what_a_killed_up_left_behind_is_ended_by_the_next() {
    let installation = Installation::new();
    let (up, _) = installation.up();
    let left: Vec<u64> = ["dispatch-api", "dispatch-local"]
        .iter()
        .filter_map(|n| installation.child_pid(n))
        .collect();
    up.signal("-KILL");
    assert_eq!(up.end().0, None);
    assert!(
        left.iter().all(|pid| is_alive(*pid)),
        "this tests nothing if they are gone"
    );
    installation
        .run(&["list"])
        .says(4, &["no 'dispatch up' is running"]);
    let (again, _) = installation.up();
    assert!(!left.into_iter().any(is_alive));
    installation.run(&["list"]).ok();
    again.signal("-TERM");
    assert_eq!(again.end().0, Some(0));
}

#[test]
fn a_program_that_cannot_start_says_why() {
    let installation = Installation::new();
    installation.script(
        "dispatch-local",
        "echo 'the state directory is made of cheese' >&2; exit 78\n",
    );
    let done = installation.run(&["up"]);
    assert_eq!((done.code, done.out.as_str()), (1, ""), "{done:?}");
    assert!(
        done.err.contains("dispatch-local does not start"),
        "{done:?}"
    );
    assert!(done.err.contains("made of cheese"), "{done:?}");
    let log = fs::read_to_string(installation.path("state/log")).unwrap();
    assert!(log.contains("dispatch-local the state directory"), "{log}");
    assert!(!installation.path("state/up.json").exists());

    fs::remove_file(installation.path("bin/dispatch-local")).unwrap();
    let done = installation.run(&["up"]);
    // It may be installed on this machine, but not in a directory that is searched.
    done.says(1, &["cannot find the program dispatch-local"]);
}

/// Why it does not start may pass, as a full disk does: `up` goes on, and says why.
#[test]
fn a_program_that_ran_before_is_started_until_it_runs_again() {
    let installation = Installation::new();
    let (mut up, _) = installation.up();
    let script = installation.path("bin/dispatch-api");
    let good = fs::read_to_string(&script).unwrap();
    installation.script("dispatch-api", "echo 'there is no room' >&2; exit 78\n");
    kill(installation.child_pid("dispatch-api").unwrap(), "-KILL");
    let mut errors = BufReader::new(up.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("78") {
        line.clear();
        assert_ne!(errors.read_line(&mut line).unwrap(), 0, "it ended");
    }
    assert!(
        line.contains("there is no room; restarting it in"),
        "{line}"
    );
    let body = good.strip_prefix("#!/bin/sh\n").unwrap();
    installation.script("dispatch-api", body);
    eventually("it serves again", || installation.run(&["list"]).code == 0);
    drop(errors);
    up.signal("-TERM");
    assert_eq!(up.end().0, Some(0));
}

#[test]
fn up_needs_a_place_for_its_state() {
    let home = tempfile::tempdir().unwrap();
    let mut command = bare(home.path(), &["up"]);
    command.env_remove("HOME");
    CommandResult::of(&mut command).says(1, &["set XDG_STATE_HOME or HOME"]);
}
