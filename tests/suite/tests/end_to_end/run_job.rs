//! `dispatch run`: what the job prints, its standard input, its exit code; and what is left of that
//! when its crunch-run is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::up::Up;
use suite_tests::STEP_TIMEOUT;
use suite_tests::program::binary;
use suite_tests::stack::wait_for;

fn run(up: &Up, arguments: &[&str]) -> Command {
    let mut command = up.command(binary("dispatch"));
    command
        .args(["run", "--image", "busybox:test"])
        .args(arguments)
        .env("DISPATCH_STATE_DIR", up.dir.path().join("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What the job printed to stderr: `dispatch run` says before it what a job waits for that does not
/// start at once.
fn after_the_wait(mut stderr: &[u8], job: usize) -> &[u8] {
    let note = format!("dispatch: job {job} is ");
    while let Some(line) = stderr.split_inclusive(|byte| *byte == b'\n').next()
        && line.starts_with(note.as_bytes())
    {
        stderr = &stderr[line.len()..];
    }
    stderr
}

#[test]
fn it_is_like_running_the_command_here() {
    let up = Up::start();
    up.add_image();
    let script = "cat; echo to stderr >&2; exit 3";
    let mut child = run(&up, &["--stdin", "-", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"from here\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(after_the_wait(&output.stderr, 1));
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "from here\n");
    assert_eq!(
        stderr,
        "to stderr\ndispatch: job 1 ended with exit code 3\n"
    );

    // Without --stdin, the input is left to others.
    let mut child = run(&up, &["--", "cat"]).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"not read\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), Vec::new()));
    assert_eq!(after_the_wait(&output.stderr, 2), b"");

    // A job that never ran has no exit code of its own.
    let output = run(&up, &["--", "no-such-program"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(123), "{stderr}");
    assert!(stderr.contains("not found in the image"), "{stderr}");
}

/// Neither what is no text nor a line of any length is changed, in the pipe and in the saved log.
#[test]
fn every_byte_that_it_prints_arrives() {
    let up = Up::start();
    up.add_image();
    let full = "x".repeat(64 << 10);
    let mut printed: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    printed.extend(format!("\n{full}\n{full}{full}y\ncaf\u{e9}\n\n").into_bytes());
    for (number, end) in [b"no end".as_slice(), full.as_bytes(), b"an end\n"]
        .into_iter()
        .enumerate()
    {
        let printed = [&printed, end].concat();
        let mut child = run(&up, &["--stdin", "-", "--", "sh", "-c", "tee /dev/stderr"])
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&printed).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let stderr = after_the_wait(&output.stderr, number + 1);
        assert!(output.stdout == printed && stderr == printed, "{number}");
        let logs = up.dispatch(&["logs", &(number + 1).to_string()]);
        assert!(logs.stdout == printed && logs.stderr == printed, "{number}");
    }
    // Each line has its time once, however long it is.
    let with_times = up.dispatch(&["logs", "-t", "3"]);
    let times = with_times.stdout.split_inclusive(|byte| *byte == b'\n');
    let lines = printed.split_inclusive(|byte| *byte == b'\n').count();
    assert_eq!(times.count(), lines + 1);
}

/// As with docker and srun, the command begins with the first word that is no flag.
#[test]
fn the_command_needs_no_dashes_before_it() {
    let up = Up::start();
    up.add_image();
    let output = run(&up, &["echo", "-n", "--memory", "x"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--memory x");
    let output = run(&up, &["--frob", "echo"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_line_is_seen_while_the_job_runs() {
    let up = Up::start();
    up.add_image();
    let mut child = run(&up, &["--", "sh", "-c", "echo first; sleep 300"])
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "first\n");
    let shown = up.ok(&["show", "--json", "1"]);
    assert!(shown.contains(r#""state":"Running""#), "{shown}");
    up.kill("1");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(123), "{output:?}");
}

/// crunch-run saves the log every 30 minutes. Who kills it leaves the rest in its directory.
#[test]
fn what_a_job_printed_outlives_its_crunch_run() {
    let up = Up::start();
    up.add_image();
    up.submit("1", "echo first; echo second >&2; sleep 100000");
    let job_dir = || {
        let dirs = std::fs::read_dir(up.dir.path().join("state/run")).unwrap();
        let mut dirs = dirs.map(|entry| entry.unwrap().path());
        dirs.find(|dir| dir.is_dir() && dir.join("lock").exists())
    };
    let lock = wait_for("both lines", STEP_TIMEOUT, || {
        let dir = job_dir()?;
        let is_there = |file: &str, line: &str| {
            std::fs::read_to_string(dir.join("log").join(file))
                .is_ok_and(|text| text.contains(line))
        };
        let both = is_there("stdout.txt", "first") && is_there("stderr.txt", "second");
        both.then(|| std::fs::read(dir.join("lock")).unwrap())
    });
    let worker: serde_json::Value = serde_json::from_slice(&lock).unwrap();
    let worker = Pid::from_raw(worker["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    up.dispatch(&["wait", "1"]);
    let logs = up.dispatch(&["logs", "1"]);
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "first\n");
    assert_eq!(String::from_utf8_lossy(&logs.stderr), "second\n");
    let explained = up.ok(&["explain", "1"]);
    assert!(explained.contains("crunch-run was killed"), "{explained}");
    assert!(explained.contains("dispatch retry 1"), "{explained}");
    // What crunch-run printed itself is in the log, not in the reason.
    assert_eq!(explained.lines().count(), 4, "{explained}");
    let own = up.ok(&["logs", "1", "--file", "dispatch.txt"]);
    assert!(own.contains("The dispatcher wrote this log"), "{own}");
}

#[test]
fn a_reused_result_is_printed_like_any_other() {
    let up = Up::start();
    up.add_image();
    let line = "run --image busybox:test --memory 16MiB --reuse -- echo hello";
    let arguments: Vec<&str> = line.split(' ').collect();
    assert_eq!(up.ok(&arguments), "hello\n");
    let again = up.dispatch(&arguments);
    assert_eq!(String::from_utf8_lossy(&again.stdout), "hello\n");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        said.contains("the result of an equal job is reused"),
        "{said}"
    );
}
