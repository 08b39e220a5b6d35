//! Carries the container's streams between the daemon's connection and the files they belong to, with
//! bounded memory: a full pipe holds up the container, as it would without a daemon between.

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

use crate::engine::Stdio;

/// Pieces of output that may wait for a slow disk.
const MOST_WAITING: usize = 16;

/// What became of the streams: `None` while they are open.
pub type Outcome = Option<Result<(), String>>;

/// The streams of one container, on their way.
#[derive(Debug, Clone)]
pub struct Carrier {
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

impl Carrier {
    /// Begins to carry; ends when the daemon closes the connection of the output. Stdin has one of its own where `apart` is
    /// that.
    pub fn start(
        attached: AttachContainerResults,
        apart: Option<AttachContainerResults>,
        stdio: Stdio,
        stdin_is_given: bool,
    ) -> io::Result<Self> {
        let AttachContainerResults { mut output, input } = attached;
        let (input, unused) = match apart {
            None => (input, None),
            Some(apart) => (apart.input, Some((input, apart.output))),
        };
        let (send, receive) = mpsc::channel(MOST_WAITING);
        let (written, has_written) = tokio::sync::oneshot::channel();
        let (stdout, stderr) = (File::from(stdio.stdout), File::from(stdio.stderr));
        std::thread::Builder::new()
            .name("streams".to_owned())
            .spawn(move || {
                // Nobody waits any more when the container is given up.
                let _ = written.send(write(receive, stdout, stderr));
            })?;
        let (tell, outcome) = watch::channel(None);
        let stdin = File::from(stdio.stdin);
        let feeder = tokio::spawn(async move {
            // Open as long as this is: what is not used of two connections.
            let _unused = unused;
            if stdin_is_given {
                feed(stdin, input).await;
            } else {
                // Open as long as the container may be: its end would end the connection.
                let _input = input;
                std::future::pending::<()>().await;
            }
        });
        tokio::spawn(async move {
            let read = loop {
                let (to, piece) = match output.next().await {
                    None => break Ok(()),
                    // Closed with some of stdin not taken, as podman does for who does not read it: over a local
                    // socket all output has come before this.
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
                if send.send((to, piece)).await.is_err() {
                    break Err("the thread that writes it ended".to_owned());
                }
            };
            drop(send);
            feeder.abort();
            let written = has_written
                .await
                .unwrap_or_else(|_| Err("the thread that writes it ended".to_owned()));
            let _ = tell.send(Some(read.and(written)));
        });
        Ok(Self { outcome })
    }

    /// Waits until everything is written and the files are closed.
    pub async fn finished(&mut self) -> Result<(), String> {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            Err(_) => Err("nobody carries it any more".to_owned()),
        }
    }

    /// The same, of a container that has ended: nothing keeps its streams open for long.
    pub async fn finished_within(&mut self, patience: Duration) -> Result<(), String> {
        tokio::time::timeout(patience, self.finished())
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "the daemon still holds its connection open {} seconds after the container's end",
                    patience.as_secs()
                ))
            })
    }
}

fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// All of stdin, and then its end, once.
async fn feed(stdin: File, mut input: std::pin::Pin<Box<dyn AsyncWrite + Send>>) {
    let mut stdin = tokio::fs::File::from_std(stdin);
    // A container need not read what it was given.
    let _ = tokio::io::copy(&mut stdin, &mut input).await;
    let _ = input.shutdown().await;
    std::future::pending::<()>().await;
}

/// Writes until nothing more comes. After a failure the rest is taken and dropped.
fn write(
    mut pieces: mpsc::Receiver<(To, Bytes)>,
    mut stdout: File,
    mut stderr: File,
) -> Result<(), String> {
    let mut failed: Result<(), String> = Ok(());
    while let Some((to, piece)) = pieces.blocking_recv() {
        if failed.is_err() {
            continue;
        }
        let (name, file) = match to {
            To::Stdout => ("stdout", &mut stdout),
            To::Stderr => ("stderr", &mut stderr),
        };
        failed = file
            .write_all(&piece)
            .map_err(|error| format!("{name} cannot be written: {error}"));
    }
    failed
}
