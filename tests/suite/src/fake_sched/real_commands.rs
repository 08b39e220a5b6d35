//! Runs a real scheduler's command in place of the fake's own.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::{Invocation, Reply};

/// Exit status of a command that was ended by signal 0, in the convention of shells.
const SIGNAL_STATUS_BASE: i32 = 128;

/// Runs the command of this name in `path` with this process's other variables; returns its whole
/// answer.
pub fn run(path: &str, call: Invocation<'_>) -> io::Result<Reply> {
    let program = std::env::split_paths(path)
        .map(|dir| dir.join(call.name))
        .find(|file| file.is_file())
        .ok_or_else(|| io::Error::other(format!("no {} in {path}", call.name)))?;
    let mut child = Command::new(program)
        .args(call.arguments)
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // The command may exit without reading all input.
    let _ = stdin.write_all(call.input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    let status = output.status;
    let code = status
        .code()
        .or(status.signal().map(|s| SIGNAL_STATUS_BASE + s));
    Ok(Reply {
        output: output.stdout,
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        status: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255),
    })
}
