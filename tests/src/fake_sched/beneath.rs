//! A real scheduler's command in place of the fake's own.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::{Order, Reply};

/// Exit status of a command that a signal ended, as shells say it.
const BY_SIGNAL: i32 = 128;

/// Runs the command that has this name in `path`, with this process's other variables; its whole answer.
pub fn run(path: &str, order: Order<'_>) -> io::Result<Reply> {
    let program = std::env::split_paths(path)
        .map(|dir| dir.join(order.name))
        .find(|file| file.is_file())
        .ok_or_else(|| io::Error::other(format!("no {} in {path}", order.name)))?;
    let mut child = Command::new(program)
        .args(order.arguments)
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // It may have seen enough.
    let _ = stdin.write_all(order.input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    let status = output.status;
    let code = status.code().or(status.signal().map(|s| BY_SIGNAL + s));
    Ok(Reply {
        output: output.stdout,
        complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
        status: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255),
    })
}
