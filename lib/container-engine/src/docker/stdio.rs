//! Copies the container's streams between the daemon's connection and their files, with bounded
//! memory: a full pipe blocks the container, as without a daemon.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use crate::Stdio;

/// Maximum number of chunks of output that wait for a slow disk.
const MAX_QUEUED_CHUNKS: usize = 16;

/// Outcome of the copy: `None` while the streams are open.
pub type Outcome = Option<Result<(), String>>;

/// Copies the streams of one container in the background.
#[derive(Debug, Clone)]
pub struct StreamCopier {
    outcome: watch::Receiver<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Stdout,
    Stderr,
}

/// Whether that is `/dev/null`.
pub fn is_null(file: &OwnedFd) -> bool {
    let number = |stat: rustix::fs::Stat| stat.st_rdev;
    let (given, null) = (
        rustix::fs::fstat(file.as_fd()).map(number),
        rustix::fs::stat("/dev/null").map(number),
    );
    matches!((given, null), (Ok(given), Ok(null)) if given == null)
}

impl StreamCopier {
    /// Starts the copy, which ends when the daemon closes the output's connection. Stdin uses
    /// `separate_stdin` if there is one.
    pub fn start(
        attached: AttachContainerResults,
        separate_stdin: Option<AttachContainerResults>,
        stdio: Stdio,
        stdin_is_given: bool,
    ) -> io::Result<Self> {
        let AttachContainerResults { mut output, input } = attached;
        let (input, unused) = match separate_stdin {
            None => (input, None),
            Some(separate_stdin) => (separate_stdin.input, Some((input, separate_stdin.output))),
        };
        let (send, receive) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let (written, has_written) = tokio::sync::oneshot::channel();
        let (stdout, stderr) = (File::from(stdio.stdout), File::from(stdio.stderr));
        std::thread::Builder::new()
            .name("streams".to_owned())
            .spawn(move || {
                // The receiver is gone if the container was abandoned.
                let _ = written.send(write(receive, stdout, stderr));
            })?;
        let (outcome_sender, outcome) = watch::channel(None);
        let stdin = File::from(stdio.stdin);
        let feeder = tokio::spawn(async move {
            // Keeps the unused halves of both connections open.
            let _unused = unused;
            if stdin_is_given {
                feed(stdin, input).await;
            } else {
                // Closing it would end the connection.
                let _input = input;
                std::future::pending::<()>().await;
            }
        });
        tokio::spawn(async move {
            let read = loop {
                let (to, chunk) = match output.next().await {
                    None => break Ok(()),
                    // Podman resets the connection if the container did not read all of stdin. Over
                    // a local socket all output has arrived before.
                    Some(Err(Error::IOError { err })) if is_reset(&err) && stdin_is_given => {
                        break Ok(());
                    }
                    Some(Err(error)) => break Err(format!("the connection broke: {error}")),
                    Some(Ok(LogOutput::StdErr { message })) => (To::Stderr, message),
                    Some(Ok(LogOutput::StdOut { message } | LogOutput::StdIn { message })) => {
                        (To::Stdout, message)
                    }
                    Some(Ok(LogOutput::Console { .. })) => {
                        break Err("the connection ended in the middle of a message".to_owned());
                    }
                };
                if send.send((to, chunk)).await.is_err() {
                    break Err("the thread that writes it ended".to_owned());
                }
            };
            drop(send);
            feeder.abort();
            let written = has_written
                .await
                .unwrap_or_else(|_| Err("the thread that writes it ended".to_owned()));
            let _ = outcome_sender.send(Some(read.and(written)));
        });
        Ok(Self { outcome })
    }

    /// Waits until everything is written and the files are closed.
    pub async fn wait(&mut self) -> Result<(), String> {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            Err(_) => Err("the task that copied it ended".to_owned()),
        }
    }

    /// Like [`Self::wait`], for an ended container, within `timeout`.
    pub async fn wait_within(&mut self, timeout: Duration) -> Result<(), String> {
        tokio::time::timeout(timeout, self.wait())
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "the daemon still holds its connection open {} seconds after the container's end",
                    timeout.as_secs()
                ))
            })
    }
}

fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// Sends all of stdin, then its end.
async fn feed(stdin: File, mut input: std::pin::Pin<Box<dyn AsyncWrite + Send>>) {
    let mut stdin = tokio::fs::File::from_std(stdin);
    // The container need not read all of it.
    let _ = tokio::io::copy(&mut stdin, &mut input).await;
    let _ = input.shutdown().await;
    std::future::pending::<()>().await;
}

/// Writes all chunks. After a failure the rest is received and dropped.
fn write(
    mut chunks: mpsc::Receiver<(To, Bytes)>,
    mut stdout: File,
    mut stderr: File,
) -> Result<(), String> {
    let mut failed: Result<(), String> = Ok(());
    while let Some((to, chunk)) = chunks.blocking_recv() {
        if failed.is_err() {
            continue;
        }
        let (name, file) = match to {
            To::Stdout => ("stdout", &mut stdout),
            To::Stderr => ("stderr", &mut stderr),
        };
        failed = file
            .write_all(&chunk)
            .map_err(|error| format!("{name} cannot be written: {error}"));
    }
    failed
}
