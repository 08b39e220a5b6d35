//! One program, kept running until it is told to stop.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::UpError;
use super::backoff::Backoff;
use super::leftovers::{send, start_time};
use super::log::ProgramLog;
use crate::state_dir::ChildRecord;

/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);
/// How long its last words are waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// A longer line of a program is logged in pieces.
const LONGEST_LINE: u64 = 64 << 10;

/// What happened to a program.
#[derive(Debug)]
pub enum Event {
    /// It runs.
    Started(ChildRecord),
    /// It wrote a line on standard output.
    Said { name: &'static str, line: String },
    /// It ended, and will be started again after the pause.
    Died {
        name: &'static str,
        status: ExitStatus,
        pause: Duration,
    },
    /// It could not be started at all, and will be tried again after the pause.
    NotStarted { error: UpError, pause: Duration },
}

/// How to start a program; asked before every start, since a port may have to change.
pub type MakeCommand = Box<dyn FnMut() -> Result<Command, UpError> + Send>;

/// A program being kept running.
#[derive(Debug)]
pub struct Keeper {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Starts it, and again whenever it ends.
    pub fn start(
        name: &'static str,
        make: MakeCommand,
        log: ProgramLog,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep(name, make, log, events, stop.clone()));
        Self { stop, task }
    }

    /// Asks it to end, waits, and forces it if it takes too long.
    pub async fn stop(self) {
        self.stop.cancel();
        // The task ends by itself soon after the grace; it cannot fail in a way that matters here.
        let _ = self.task.await;
    }
}

async fn keep(
    name: &'static str,
    mut make: MakeCommand,
    log: ProgramLog,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::default();
    while !stop.is_cancelled() {
        let begun = Instant::now();
        let started = make().and_then(|mut command| {
            // Its own group, so that Ctrl-C on the terminal reaches only us, and we end things in order.
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
        let event = match started {
            Err(error) => {
                let pause = backoff.after(Duration::ZERO);
                Event::NotStarted { error, pause }
            }
            Ok(child) => match follow(name, child, &log, &events, &stop).await {
                None => return,
                Some(status) => {
                    let pause = backoff.after(begun.elapsed());
                    log.remark(&format!(
                        "{name} ended ({status}); starting it again in {pause:?}"
                    ));
                    Event::Died {
                        name,
                        status,
                        pause,
                    }
                }
            },
        };
        let pause = match &event {
            Event::NotStarted { pause, .. } | Event::Died { pause, .. } => *pause,
            Event::Started(_) | Event::Said { .. } => Duration::ZERO,
        };
        // Nobody listens any more only when everything is being stopped.
        let _ = events.send(event).await;
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Until it ends (its status) or was told to (none).
async fn follow(
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
        start_time: start_time(pid).unwrap_or_default(),
    };
    let _ = events.send(Event::Started(record)).await;
    let out = child.stdout.take().map(|out| {
        let (mut out, events) = (Lines::new(out), events.clone());
        tokio::spawn(async move {
            while let Some(line) = out.next().await {
                let line = String::from_utf8_lossy(&line).into_owned();
                // Nobody listens any more only when everything is being stopped.
                let _ = events.send(Event::Said { name, line }).await;
            }
        })
    });
    let err = child.stderr.take().map(|err| {
        let (mut err, log) = (Lines::new(err), log.clone());
        tokio::spawn(async move {
            while let Some(line) = err.next().await {
                log.line(&line);
            }
        })
    });
    let ended = tokio::select! {
        status = child.wait() => status.ok(),
        () = stop.cancelled() => {
            send(pid, Signal::TERM);
            if timeout(GRACE, child.wait()).await.is_err() {
                log.remark(&format!("{name} did not end within {GRACE:?}; killing it"));
                // It is ours and not collected yet, so this cannot miss.
                let _ = child.kill().await;
            }
            None
        }
    };
    // What it said last is worth the wait; a process it left behind may hold the pipes open, and is not waited for.
    for reading in [out, err].into_iter().flatten() {
        let _ = timeout(LAST_WORDS, reading).await;
    }
    ended
}

/// What a program writes, line by line.
struct Lines<R> {
    from: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(from: R) -> Self {
        Self {
            from: BufReader::new(from),
        }
    }

    /// None at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        let mut from = (&mut self.from).take(LONGEST_LINE);
        let got = from.read_until(b'\n', &mut line).await.ok()?;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        (got > 0).then_some(line)
    }
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
        let (tell, mut events) = mpsc::channel(16);
        let keeper = Keeper::start(
            "p",
            shell("echo ready; echo trouble >&2; exit 3"),
            log,
            tell,
        );
        let (mut starts, mut said, mut deaths) = (0, 0, 0);
        while deaths < 2 {
            match events.recv().await.unwrap() {
                Event::Started(_) => starts += 1,
                Event::Said { line, .. } => said += usize::from(line == "ready"),
                Event::Died { status, .. } => {
                    assert_eq!(status.code(), Some(3));
                    deaths += 1;
                }
                Event::NotStarted { error, .. } => panic!("{error}"),
            }
        }
        keeper.stop().await;
        assert_eq!((starts, said), (2, 2));
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written.matches("trouble").count(), 2, "{written}");
    }

    #[tokio::test]
    async fn stopping_asks_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&dir.path().join("log"), dir.path()).unwrap();
        let (tell, mut events) = mpsc::channel(16);
        let script = "trap 'echo bye >&2; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let log = log.program("p").unwrap();
        let path = dir.path().join("p.log");
        let keeper = Keeper::start("p", shell(script), log, tell);
        while !matches!(events.recv().await.unwrap(), Event::Said { .. }) {}
        keeper.stop().await;
        assert!(std::fs::read_to_string(path).unwrap().contains("bye"));
    }
}
