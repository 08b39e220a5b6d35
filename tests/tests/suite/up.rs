//! `dispatch up`: everything on one machine, as a person starts it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;

use crate::image;
use crate::program::{Program, binary};
use crate::stack::wait_for;

const PATIENCE: Duration = Duration::from_secs(90);

pub struct Up {
    program: Program,
    pub dir: TempDir,
}

impl Up {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut up = Self {
            program: program(dir.path()),
            dir,
        };
        up.program.start();
        up.wait_until_ready(1);
        up
    }

    /// Until it has printed its two lines so many times.
    fn wait_until_ready(&self, times: usize) {
        wait_for("dispatch up", PATIENCE, || {
            (self.program.answered().lines().count() == 2 * times).then_some(())
        });
    }

    /// What its two lines say, as a shell would understand them.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let answered = self.program.answered();
        let lines: Vec<&str> = answered.lines().collect();
        let last = &lines[lines.len() - 2..];
        let words: Vec<&str> = last
            .iter()
            .flat_map(|line| line.strip_prefix("export ").expect("an export").split(' '))
            .collect();
        let value = |name: &str| {
            let found = words
                .iter()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found
                .unwrap_or_else(|| panic!("{name} is not in {words:?}"))
                .to_owned()
        };
        [
            "ARVADOS_API_HOST",
            "ARVADOS_API_HOST_INSECURE",
            "ARVADOS_API_TOKEN",
        ]
        .into_iter()
        .map(|name| (name, value(name)))
        .collect()
    }

    pub fn add_image(&self) -> String {
        image::add(&self.environment(), self.dir.path())
    }

    /// A dispatch command as the same person types it, with nothing in the environment.
    pub fn dispatch(&self, args: &[&str]) -> Output {
        Command::new(binary("dispatch"))
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.dir.path())
            .env("DISPATCH_STATE", self.dir.path().join("state"))
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }

    /// One that succeeds; what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.dispatch(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{args:?}: {said}\n{}",
            self.program.said()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// One that fails; its exit status and what it said.
    pub fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.dispatch(args);
        let said = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap();
        assert_ne!(code, 0, "{args:?} did not fail: {said}");
        (code, said.trim().to_owned())
    }
}

impl Drop for Up {
    /// Killed, it would leave its programs to the next `dispatch up`.
    fn drop(&mut self) {
        self.program.end_quietly(PATIENCE);
    }
}

fn program(dir: &Path) -> Program {
    let state = dir.join("state");
    let args = ["up", "--state", state.to_str().unwrap()];
    Program::new(
        "dispatch",
        &dir.join("up"),
        &args,
        &[("HOME", dir.to_str().unwrap())],
    )
}

#[test]
fn one_at_a_time_and_the_next_one_takes_over_what_runs() {
    let mut up = Up::start();
    up.add_image();
    // A second one on the same state: one sentence, and the first goes on.
    let (code, said) = up.fails(&["up"]);
    assert_eq!((code, said.lines().count()), (6, 1), "{said}");

    let submitted = up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--",
        "sh",
        "-c",
        "sleep 15; echo kept > /out/result",
    ]);
    let job = submitted.split(' ').next().unwrap().to_owned();
    wait_for("the job to run", PATIENCE, || {
        up.ok(&["show", "--json", &job])
            .contains(r#""state":"Running""#)
            .then_some(())
    });
    assert!(up.program.terminate(PATIENCE).success());
    up.program.start();
    up.wait_until_ready(2);
    up.ok(&["wait", &job]);
    assert_eq!(up.ok(&["get", &format!("{job}:result"), "-"]), "kept\n");
}

#[test]
fn a_job_from_files_to_files() {
    let up = Up::start();
    up.add_image();
    std::fs::write(up.dir.path().join("words.txt"), "one two three").unwrap();
    let submit =
        "submit --image busybox:test --input words=words.txt --mem 32MiB --time 1m --wait -- sh -c";
    let mut args: Vec<&str> = submit.split(' ').collect();
    args.push("wc -w </input/words >/out/count; echo counted");
    up.ok(&args);
    assert_eq!(up.ok(&["logs", "1"]), "counted\n");
    up.ok(&["get", "1", "result"]);
    let count = std::fs::read_to_string(up.dir.path().join("result/count")).unwrap();
    assert_eq!(count.trim(), "3");
    let list = up.ok(&["list", "--json"]);
    assert!(list.contains(r#""state":"Complete""#), "{list}");
    let events = wait_for("the end in the audit file", PATIENCE, || {
        let audit = std::fs::read_to_string(up.dir.path().join("state/audit.log")).ok()?;
        let lines = audit.lines().map(serde_json::from_str);
        let events: Vec<serde_json::Value> = lines.collect::<Result<_, _>>().ok()?;
        (events.len() > 2).then_some(events)
    });
    let names: Vec<&str> = events.iter().filter_map(|e| e["event"].as_str()).collect();
    assert_eq!(names, ["decided_to_run", "dispatched", "ended"]);
    assert_eq!(events[2]["text"], "has ended: Complete, with exit code 0");
    let info = up.ok(&["info"]);
    assert!(info.contains("CPU"), "{info}");
}

#[test]
fn what_a_running_job_prints_is_seen_before_any_of_it_is_saved() {
    let up = Up::start();
    up.add_image();
    let command = "echo at work; sleep 300";
    let submit = [
        "submit",
        "--image",
        "busybox:test",
        "--",
        "sh",
        "-c",
        command,
    ];
    let submitted = up.ok(&submit);
    let job = submitted.split(' ').next().unwrap();
    wait_for("the first line", PATIENCE, || {
        let printed = up.dispatch(&["logs", job]).stdout;
        (printed == b"at work\n").then_some(())
    });
    let shown = up.ok(&["show", "--json", job]);
    assert!(shown.contains(r#""state":"Running""#), "{shown}");
    let files = up.ok(&["logs", "--files", job]);
    assert!(files.contains("crunch-run.txt"), "{files}");
    up.ok(&["kill", job]);
}
