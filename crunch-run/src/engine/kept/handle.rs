//! crunch-run's side of one container: it talks to the keeper and remembers what it heard.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::process::Stdio as ProcessStdio;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::protocol::{KEEPER_ARGUMENT, News, Order, Plan, send_stdio};
use crate::cgroup::Cgroup;
use crate::engine::{Container, EngineError, Exit, StartError, Stdio};

/// How long the keeper may take to make a container, with images on slow disks.
const CREATE_PATIENCE: Duration = Duration::from_secs(120);
/// How long a command may take to be loaded: it may lie on a network file system.
const START_PATIENCE: Duration = Duration::from_secs(300);
/// Above the keeper's own patience with processes that do not die.
const REMOVE_PATIENCE: Duration = Duration::from_secs(60);
/// What a stop may take beyond its grace.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// What is known of the container.
#[derive(Debug, Clone, Default)]
struct Known {
    created: Option<(u32, Option<Cgroup>)>,
    failed: Option<StartError>,
    started: bool,
    exit: Option<Exit>,
    removed: Option<Vec<String>>,
    /// The keeper's end of the socket is closed.
    lost: Option<String>,
}

pub struct KeptContainer {
    name: String,
    known: watch::Receiver<Known>,
    orders: AsyncMutex<OwnedWriteHalf>,
    keeper: Mutex<Option<Child>>,
}

impl KeptContainer {
    /// Starts a keeper and has it make the container. `note` is told the keeper's pid before it makes anything.
    pub async fn create(
        program: &Path,
        plan: Plan,
        stdio: Stdio,
        note: impl FnOnce(u32) -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        let name = plan.name.clone();
        let io_error = |what: &str| {
            let what = format!("the process that keeps container {name} {what}");
            move |source: io::Error| EngineError::Io { what, source }
        };
        let (ours, theirs) = StdStream::pair().map_err(io_error("got no socket"))?;
        ours.set_nonblocking(true)
            .map_err(io_error("got no socket"))?;
        send_stdio(
            &ours,
            [
                stdio.stdin.as_fd(),
                stdio.stdout.as_fd(),
                stdio.stderr.as_fd(),
            ],
        )
        .map_err(io_error("could not be given the container's files"))?;
        drop(stdio);

        let child = Command::new(program)
            .arg(KEEPER_ARGUMENT)
            .env_clear()
            .stdin(ProcessStdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(ProcessStdio::null())
            .stderr(ProcessStdio::null())
            .spawn()
            .map_err(io_error("could not be started"))?;
        note(child.id().unwrap_or_default())?;
        let stream = UnixStream::from_std(ours).map_err(io_error("got no socket"))?;
        let (reading, writing) = stream.into_split();
        let (tell, known) = watch::channel(Known::default());
        tokio::spawn(listen(reading, tell));
        let container = Self {
            name,
            known,
            orders: AsyncMutex::new(writing),
            keeper: Mutex::new(Some(child)),
        };
        container.order(&Order::Create(Box::new(plan))).await?;
        let known = container
            .until("made", CREATE_PATIENCE, |k| {
                k.created.is_some() || k.failed.is_some()
            })
            .await?;
        match known.failed {
            Some(error) => {
                // What was made of it is taken down before anything else is tried.
                let _ = container.removed().await;
                Err(error.into())
            }
            None => Ok(container),
        }
    }

    async fn order(&self, order: &Order) -> Result<(), EngineError> {
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        self.orders
            .lock()
            .await
            .write_all(&line)
            .await
            .map_err(|error| self.lost(&error.to_string()))
    }

    fn lost(&self, how: &str) -> EngineError {
        EngineError::KeeperLost {
            name: self.name.clone(),
            how: how.to_owned(),
        }
    }

    /// Waits until `is_true` of what is known. A lost keeper ends the wait: its container is killed.
    async fn heard(&self, is_true: impl Fn(&Known) -> bool) -> Result<Known, EngineError> {
        let mut known = self.known.clone();
        let seen = known
            .wait_for(|k| is_true(k) || k.lost.is_some())
            .await
            .map_err(|_| self.lost("its listener ended"))?
            .clone();
        if is_true(&seen) {
            return Ok(seen);
        }
        self.kill_what_is_left(&seen).await;
        Err(self.lost(seen.lost.as_deref().unwrap_or("it closed its socket")))
    }

    async fn until(
        &self,
        what: &str,
        patience: Duration,
        is_true: impl Fn(&Known) -> bool,
    ) -> Result<Known, EngineError> {
        tokio::time::timeout(patience, self.heard(is_true))
            .await
            .unwrap_or_else(|_| {
                Err(EngineError::Io {
                    what: format!("container {} is not {what}", self.name),
                    source: io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("nothing was heard of it for {} seconds", patience.as_secs()),
                    ),
                })
            })
    }

    /// The keeper was killed. Its container dies with it, but a control group stays.
    async fn kill_what_is_left(&self, known: &Known) {
        if let Some((_, Some(group))) = known.created.clone() {
            let ended = tokio::task::spawn_blocking(move || {
                group
                    .kill(KILL_PATIENCE)
                    .and_then(|()| group.remove(KILL_PATIENCE))
            })
            .await;
            if let Ok(Err(error)) = ended {
                tracing::warn!(container = self.name, "{error}");
            }
        }
    }

    async fn removed(&self) -> Result<(), EngineError> {
        let already = self.known.borrow().removed.is_some();
        if !already {
            self.order(&Order::Remove).await?;
        }
        let known = self
            .until("removed", REMOVE_PATIENCE, |k| k.removed.is_some())
            .await?;
        let keeper = self.keeper.lock().ok().and_then(|mut k| k.take());
        if let Some(mut keeper) = keeper {
            // It has said its last word.
            let _ = tokio::time::timeout(REMOVE_PATIENCE, keeper.wait()).await;
        }
        match known.removed.filter(|problems| !problems.is_empty()) {
            None => Ok(()),
            Some(problems) => Err(EngineError::Io {
                what: format!("container {} is not removed", self.name),
                source: io::Error::other(problems.join("; ")),
            }),
        }
    }
}

/// Writes down what the keeper says, until it is gone.
async fn listen(reading: OwnedReadHalf, tell: watch::Sender<Known>) {
    let mut lines = BufReader::new(reading).lines();
    let lost = loop {
        let news = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str::<News>(&line),
            Ok(None) => break "it closed its socket".to_owned(),
            Err(error) => break error.to_string(),
        };
        match news {
            Ok(news) => tell.send_modify(|known| match news {
                News::Created { pid, group } => known.created = Some((pid, group)),
                News::Failed(error) => known.failed = Some(error),
                News::Started => known.started = true,
                News::Exited(exit) => known.exit = Some(exit),
                News::Removed { problems } => known.removed = Some(problems),
            }),
            Err(error) => break format!("it said something that makes no sense: {error}"),
        }
    };
    tell.send_modify(|known| known.lost = Some(lost));
}

impl Container for KeptContainer {
    fn start(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            self.order(&Order::Start).await?;
            let known = self
                .until("started", START_PATIENCE, |k| {
                    k.started || k.failed.is_some() || k.exit.is_some()
                })
                .await?;
            match known.failed {
                Some(error) => Err(error.into()),
                None => Ok(()),
            }
        })
    }

    fn pid(&self) -> Option<u32> {
        self.known.borrow().created.as_ref().map(|(pid, _)| *pid)
    }

    fn cgroup(&self) -> Option<Cgroup> {
        self.known.borrow().created.as_ref()?.1.clone()
    }

    fn wait(&self) -> BoxFuture<'_, Result<Exit, EngineError>> {
        Box::pin(async {
            let known = self.heard(|k| k.exit.is_some()).await?;
            known.exit.ok_or_else(|| self.lost("it did not say how"))
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async move {
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            self.order(&Order::Stop { grace_ms }).await?;
            self.until("stopped", grace.saturating_add(KILL_PATIENCE), |k| {
                k.exit.is_some()
            })
            .await
            .map(drop)
        })
    }

    fn remove(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.removed())
    }
}
