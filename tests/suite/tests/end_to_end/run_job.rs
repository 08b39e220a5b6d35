//! `dispatch run`: what the job prints, its standard input, its exit code.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::up::Up;
use suite_tests::program::binary;

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
    let stderr = String::from_utf8(output.stderr).unwrap();
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
    assert_eq!(output.stderr, b"");

    // A job that never ran has no exit code of its own.
    let output = run(&up, &["--", "no-such-program"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(123), "{stderr}");
    assert!(stderr.contains("not found in the image"), "{stderr}");
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
