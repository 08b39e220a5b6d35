//! One-off commands of this node, such as `runc --version`, with a timeout.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Timeout of `PROGRAM --version`. Long, because a busy node with a network file system is slow.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Runs a command without input and returns its output. It is killed, and fails with
/// [`io::ErrorKind::TimedOut`], if it runs longer than `timeout`. For output that fits into a pipe
/// (64 KiB): a command that writes more blocks until then.
pub fn output_within(command: &mut Command, timeout: Duration) -> io::Result<Output> {
    let command = command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        if began.elapsed() >= timeout {
            child.kill()?;
            child.wait()?;
            let words = format!("no answer within {} s", timeout.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    child.wait_with_output()
}

/// What a runtime prints with `--version`. An error is a reason for which it cannot be used.
pub fn version_of(program: &Path) -> Result<String, String> {
    let name = program.display();
    let output = output_within(Command::new(program).arg("--version"), VERSION_TIMEOUT)
        .map_err(|error| format!("{name} cannot be run: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} --version fails: {}", stderr.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_killed_and_others_answer() {
        let mut shell = Command::new("sh");
        let echo = output_within(
            shell.args(["-c", "echo out; echo err >&2"]),
            VERSION_TIMEOUT,
        );
        let echo = echo.unwrap();
        assert_eq!(
            (&*echo.stdout, &*echo.stderr),
            (&b"out\n"[..], &b"err\n"[..])
        );
        let mut hangs = Command::new("sleep");
        let error = output_within(hangs.arg("1000"), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_version_that_cannot_be_had_says_why() {
        let fails = version_of(Path::new("false")).unwrap_err();
        assert!(fails.starts_with("false --version fails"), "{fails}");
        let missing = version_of(Path::new("/no/such")).unwrap_err();
        assert!(missing.starts_with("/no/such cannot be run"), "{missing}");
    }
}
