//! Runs one program and restarts it whenever it ends, until it is stopped.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use exp_backoff::Backoff;
use rustix::process::Signal;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::UpError;
use super::log::ProgramLog;
use super::orphans::signal_process;
use crate::state_dir::ChildRecord;

/// Delay before the first restart; it doubles with each.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Run time after which the delay is the initial one again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(60);
/// Timeout after SIGTERM before SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for reading the rest of the output once the program has ended.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a logged line; a longer one is logged in pieces.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Event of a supervised program.
#[derive(Debug)]
pub enum Event {
    /// The program was started.
    Started(ChildRecord),
    /// The program wrote a line on standard output.
    StdoutLine { name: &'static str, line: String },
    /// The program ended and is restarted after the delay.
    Exited {
        name: &'static str,
        status: ExitStatus,
        delay: Duration,
    },
    /// The program could not be started; the start is retried.
    SpawnFailed { error: UpError },
}

/// Makes the command of a program. Called before every start, because a port may have to change.
pub type MakeCommand = Box<dyn FnMut() -> Result<Command, UpError> + Send>;

/// A supervised program.
#[derive(Debug)]
pub struct SupervisedChild {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl SupervisedChild {
    /// Starts the program and restarts it whenever it ends.
    pub fn start(
        name: &'static str,
        make: MakeCommand,
        log: ProgramLog,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(supervise(name, make, log, events, stop.clone()));
        Self { stop, task }
    }

    /// Stops the program with SIGTERM, and with SIGKILL after a timeout.
    pub async fn stop(self) {
        self.stop.cancel();
        // The task ends soon after the timeout; its result does not matter.
        let _ = self.task.await;
    }
}

async fn supervise(
    name: &'static str,
    mut make: MakeCommand,
    log: ProgramLog,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(INITIAL_BACKOFF, MAX_BACKOFF);
    while !stop.is_cancelled() {
        let started_at = Instant::now();
        let started = make().and_then(|mut command| {
            // A process group of its own: Ctrl-C on the terminal reaches only this process, which
            // stops programs in order.
            let command = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0)
                .kill_on_drop(true);
            command.spawn().map_err(|source| UpError::Spawn {
                name: name.to_owned(),
                source,
            })
        });
        let ended = match started {
            Err(error) => Err(error),
            Ok(child) => match run_once(name, child, &log, &events, &stop).await {
                None => return,
                Some(status) => Ok(status),
            },
        };
        if ended.is_ok() && started_at.elapsed() >= BACKOFF_RESET_AFTER {
            backoff.reset();
        }
        let delay = backoff.next_delay();
        let event = match ended {
            Err(error) => Event::SpawnFailed { error },
            Ok(status) => {
                log.append_note(&format!(
                    "{name} ended ({status}); restarting it in {delay:?}"
                ));
                Event::Exited {
                    name,
                    status,
                    delay,
                }
            }
        };
        // The receiver is closed only while everything is being stopped.
        let _ = events.send(event).await;
        tokio::select! {
            () = sleep(delay) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Runs the program once. Returns its exit status, or `None` if it was stopped.
async fn run_once(
    name: &'static str,
    mut child: Child,
    log: &ProgramLog,
    events: &mpsc::Sender<Event>,
    stop: &CancellationToken,
) -> Option<ExitStatus> {
    let pid = child.id().unwrap_or_default();
    let record = ChildRecord {
        name: name.to_owned(),
        pid,
        start_time: host_state::live_start_time(pid).unwrap_or_default(),
    };
    let _ = events.send(Event::Started(record)).await;
    let out = child.stdout.take().map(|out| {
        let (mut out, events) = (BufReader::new(out), events.clone());
        tokio::spawn(async move {
            while let Some(line) = next_line(&mut out).await {
                let line = String::from_utf8_lossy(&line).into_owned();
                // The receiver is closed only while everything is being stopped.
                let _ = events.send(Event::StdoutLine { name, line }).await;
            }
        })
    });
    let err = child.stderr.take().map(|err| {
        let (mut err, log) = (BufReader::new(err), log.clone());
        tokio::spawn(async move {
            while let Some(line) = next_line(&mut err).await {
                log.append_line(&line);
            }
        })
    });
    let ended = tokio::select! {
        status = child.wait() => status.ok(),
        () = stop.cancelled() => {
            signal_process(pid, Signal::TERM);
            if timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
                log.append_note(&format!("{name} did not end within {STOP_TIMEOUT:?}; killing it"));
                // The child is not reaped yet, so its pid cannot belong to another process.
                let _ = child.kill().await;
            }
            None
        }
    };
    // Read the rest of the output. A process that the program left behind may hold the pipes open,
    // hence the timeout.
    for reading in [out, err].into_iter().flatten() {
        let _ = timeout(OUTPUT_DRAIN_TIMEOUT, reading).await;
    }
    ended
}

/// The next line of the output of a program; `None` at the end.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin)) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let got = from.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    (got.ok()? > 0).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::log::Log;

    fn shell(script: &'static str) -> MakeCommand {
        Box::new(move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        })
    }

    #[tokio::test]
    async fn a_program_that_dies_is_started_again_and_what_it_says_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&dir.path().join("log"), dir.path()).unwrap();
        let log = log.program("p").unwrap();
        let path = dir.path().join("p.log");
        let (sender, mut events) = mpsc::channel(16);
        let child = SupervisedChild::start(
            "p",
            shell("echo ready; echo trouble >&2; exit 3"),
            log,
            sender,
        );
        let (mut starts, mut lines, mut deaths) = (0, 0, 0);
        while deaths < 2 {
            match events.recv().await.unwrap() {
                Event::Started(_) => starts += 1,
                Event::StdoutLine { line, .. } => lines += usize::from(line == "ready"),
                Event::Exited { status, .. } => {
                    assert_eq!(status.code(), Some(3));
                    deaths += 1;
                }
                Event::SpawnFailed { error, .. } => panic!("{error}"),
            }
        }
        child.stop().await;
        assert_eq!((starts, lines), (2, 2));
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written.matches("trouble").count(), 2, "{written}");
    }

    #[tokio::test]
    async fn stopping_asks_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&dir.path().join("log"), dir.path()).unwrap();
        let (sender, mut events) = mpsc::channel(16);
        let script = "trap 'echo bye >&2; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let log = log.program("p").unwrap();
        let path = dir.path().join("p.log");
        let child = SupervisedChild::start("p", shell(script), log, sender);
        while !matches!(events.recv().await.unwrap(), Event::StdoutLine { .. }) {}
        child.stop().await;
        assert!(std::fs::read_to_string(path).unwrap().contains("bye"));
    }
}
