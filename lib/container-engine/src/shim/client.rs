//! crunch-run's side of one container: sends requests to the shim and keeps the state that the
//! shim's events report.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio as ProcessStdio;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::protocol::{CreateSpec, Event, Request, SHIM_ARGUMENT, send_stdio};
use super::read_only_program::ReadOnlyProgram;
use super::rootfs::WRITABLE_LAYER;
use super::runtime::{Runtime, RuntimeProcesses};
use super::{files_in_root, state_file};
use crate::{Container, ContainerUsers, EngineError, Exit, StartError, Stdio};
use cgroup::Cgroup;

/// Timeout of the creation, with images on slow disks.
const CREATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of a program that cannot be executed because it is open for writing.
const BUSY_PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
const BUSY_PROGRAM_INTERVAL: Duration = Duration::from_millis(10);
/// Timeout of the start: the command may be on a network file system.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of the removal, above the shim's own timeout for processes that do not die.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a stop beyond its grace.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// State of the container, as the shim reported it.
#[derive(Debug, Clone, Default)]
struct ShimState {
    created: Option<CreatedEvent>,
    failed: Option<StartError>,
    started: bool,
    exit: Option<Exit>,
    remove_container: Option<Vec<String>>,
    /// Why the shim is considered gone.
    lost: Option<String>,
}

/// What the shim said when it had created the container.
#[derive(Debug, Clone)]
struct CreatedEvent {
    pid: u32,
    has_group: bool,
    users: ContainerUsers,
}

pub struct ShimContainer {
    name: String,
    /// Where its control group is, if the shim makes one. What is killed there is never taken from
    /// the shim's words: it is a relative of processes of the image.
    group: Cgroup,
    runtime: Runtime,
    state: watch::Receiver<ShimState>,
    requests: AsyncMutex<OwnedWriteHalf>,
    shim: Mutex<Option<Child>>,
    state_file: PathBuf,
    /// Where the writable layer of its root may be.
    writable_layers: [PathBuf; 2],
}

/// Starts the shim, with `control` as its standard input.
async fn start_shim(program: &ReadOnlyProgram, control: OwnedFd) -> io::Result<Child> {
    let mut waited = Duration::ZERO;
    loop {
        let started = Command::new(program.path())
            .arg0("crunch-run")
            .arg(SHIM_ARGUMENT)
            .env_clear()
            .stdin(ProcessStdio::from(control.try_clone()?))
            .stdout(ProcessStdio::null())
            .stderr(ProcessStdio::null())
            .spawn();
        match started {
            // A child that another thread has just forked still has the descriptor that wrote the
            // copy of the program, until it executes its own.
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && waited < BUSY_PROGRAM_TIMEOUT =>
            {
                tokio::time::sleep(BUSY_PROGRAM_INTERVAL).await;
                waited += BUSY_PROGRAM_INTERVAL;
            }
            started => return started,
        }
    }
}

impl ShimContainer {
    /// Starts a shim that creates the container. `write_state_file` gets the shim's pid before
    /// anything is created.
    pub async fn create(
        program: &ReadOnlyProgram,
        spec: CreateSpec,
        group: Cgroup,
        stdio: Stdio,
        write_state_file: impl FnOnce(u32) -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        let (name, state_file) = (spec.name.clone(), spec.state_file.clone());
        let runtime = spec.runtime.clone();
        let writable_layers = [&spec.dir, &spec.spare_dir].map(|dir| dir.join(WRITABLE_LAYER));
        let io_error = |what: &str| {
            let what = format!("the shim of container {name} {what}");
            move |source: io::Error| EngineError::io(what, source)
        };
        let (own_end, shim_end) = StdStream::pair().map_err(io_error("got no socket"))?;
        own_end
            .set_nonblocking(true)
            .map_err(io_error("got no socket"))?;
        send_stdio(
            &own_end,
            [
                stdio.stdin.as_fd(),
                stdio.stdout.as_fd(),
                stdio.stderr.as_fd(),
            ],
        )
        .map_err(io_error("could not be given the container's files"))?;
        drop(stdio);

        let child = start_shim(program, shim_end.into())
            .await
            .map_err(io_error("could not be started"))?;
        write_state_file(child.id().unwrap_or_default())?;
        let stream = UnixStream::from_std(own_end).map_err(io_error("got no socket"))?;
        let (reading, writing) = stream.into_split();
        let (updates, state) = watch::channel(ShimState::default());
        tokio::spawn(receive_events(reading, updates));
        let container = Self {
            name,
            group,
            runtime,
            state,
            requests: AsyncMutex::new(writing),
            shim: Mutex::new(Some(child)),
            state_file,
            writable_layers,
        };
        container.send(&Request::Create(Box::new(spec))).await?;
        let state = container
            .wait_for_within("made", CREATE_TIMEOUT, |k| {
                k.created.is_some() || k.failed.is_some()
            })
            .await?;
        match state.failed {
            Some(error) => {
                // Everything created so far is removed before the error is returned.
                let _ = container.remove_container().await;
                Err(error.into())
            }
            None => Ok(container),
        }
    }

    async fn send(&self, send: &Request) -> Result<(), EngineError> {
        let mut line = serde_json::to_vec(send).unwrap_or_default();
        line.push(b'\n');
        self.requests
            .lock()
            .await
            .write_all(&line)
            .await
            .map_err(|error| self.lost(&error.to_string()))
    }

    fn lost(&self, how: &str) -> EngineError {
        EngineError::ShimLost {
            name: self.name.clone(),
            how: how.to_owned(),
        }
    }

    /// Waits until `is_true` of the state. A lost shim ends the wait: its container is killed.
    async fn wait_for(
        &self,
        is_true: impl Fn(&ShimState) -> bool,
    ) -> Result<ShimState, EngineError> {
        let mut state = self.state.clone();
        let state = state
            .wait_for(|k| is_true(k) || k.lost.is_some())
            .await
            .map_err(|_| self.lost("its listener ended"))?
            .clone();
        if is_true(&state) {
            return Ok(state);
        }
        self.kill_cgroup(&state).await;
        Err(self.lost(state.lost.as_deref().unwrap_or("it closed its socket")))
    }

    async fn wait_for_within(
        &self,
        what: &str,
        timeout: Duration,
        is_true: impl Fn(&ShimState) -> bool,
    ) -> Result<ShimState, EngineError> {
        tokio::time::timeout(timeout, self.wait_for(is_true))
            .await
            .unwrap_or_else(|_| {
                let reason = format!("no event of it for {} seconds", timeout.as_secs());
                let source = io::Error::new(io::ErrorKind::TimedOut, reason);
                let what = format!("container {} is not {what}", self.name);
                Err(EngineError::io(what, source))
            })
    }

    /// Kills and removes the control group of a container whose shim was killed.
    async fn kill_cgroup(&self, state: &ShimState) {
        if state.created.as_ref().is_some_and(|made| made.has_group) {
            let group = self.group.clone();
            let ended = tokio::task::spawn_blocking(move || {
                group
                    .kill(KILL_TIMEOUT)
                    .and_then(|()| group.remove(KILL_TIMEOUT))
            })
            .await;
            if let Ok(Err(error)) = ended {
                tracing::warn!(container = self.name, "{error}");
            }
        }
    }

    async fn remove_container(&self) -> Result<(), EngineError> {
        let removed = self.remove_by_shim().await;
        if self.state.borrow().lost.is_none() || !self.state_file.exists() {
            return removed;
        }
        // The shim was killed, so nothing else removes what is left of its container.
        let (state_file, name) = (self.state_file.clone(), self.name.clone());
        let removing = tokio::task::spawn_blocking(move || {
            let run_dir = state_file.parent().unwrap_or(Path::new("/"));
            state_file::remove_leftovers(run_dir, &name)
        });
        let left = removing.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        left.map(drop).map_err(|error| {
            let what = format!("what is left of container {} cannot be removed", self.name);
            EngineError::io(what, error)
        })
    }

    async fn remove_by_shim(&self) -> Result<(), EngineError> {
        let already = self.state.borrow().remove_container.is_some();
        if !already {
            self.send(&Request::Remove).await?;
        }
        let state = self
            .wait_for_within("removed", REMOVE_TIMEOUT, |k| k.remove_container.is_some())
            .await?;
        let shim = self.shim.lock().take();
        if let Some(mut shim) = shim {
            // The shim has sent its last event.
            let _ = tokio::time::timeout(REMOVE_TIMEOUT, shim.wait()).await;
        }
        let problems = state.remove_container.unwrap_or_default();
        if problems.is_empty() {
            return Ok(());
        }
        let what = format!("container {} is not removed", self.name);
        Err(EngineError::io(what, io::Error::other(problems.join("; "))))
    }
}

/// Applies the shim's events to the state until the shim is gone.
async fn receive_events(reading: OwnedReadHalf, updates: watch::Sender<ShimState>) {
    let mut lines = BufReader::new(reading).lines();
    let lost = loop {
        let event = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str::<Event>(&line),
            Ok(None) => break "it closed its socket".to_owned(),
            Err(error) => break error.to_string(),
        };
        match event {
            Ok(event) => updates.send_modify(|state| match event {
                Event::Created {
                    pid,
                    has_group,
                    users,
                } => {
                    state.created = Some(CreatedEvent {
                        pid,
                        has_group,
                        users,
                    });
                }
                Event::Failed(error) => state.failed = Some(error),
                Event::Started => state.started = true,
                Event::Exited(exit) => state.exit = Some(exit),
                Event::Removed { problems } => state.remove_container = Some(problems),
            }),
            Err(error) => break format!("it sent an invalid event: {error}"),
        }
    };
    updates.send_modify(|state| state.lost = Some(lost));
}

impl Container for ShimContainer {
    fn start(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            self.send(&Request::Start).await?;
            let state = self
                .wait_for_within("started", START_TIMEOUT, |k| {
                    k.started || k.failed.is_some() || k.exit.is_some()
                })
                .await?;
            match state.failed {
                Some(error) => Err(error.into()),
                None => Ok(()),
            }
        })
    }

    fn pid(&self) -> Option<u32> {
        self.state.borrow().created.as_ref().map(|made| made.pid)
    }

    fn runtime_processes(&self) -> RuntimeProcesses {
        RuntimeProcesses::new(self.runtime.clone(), self.pid())
    }

    fn cgroup(&self) -> Option<Cgroup> {
        let has_group = self.state.borrow().created.as_ref()?.has_group;
        has_group.then(|| self.group.clone())
    }

    fn users(&self) -> Option<ContainerUsers> {
        Some(self.state.borrow().created.as_ref()?.users.clone())
    }

    fn writable_layers(&self) -> &[PathBuf] {
        &self.writable_layers
    }

    fn wait(&self) -> BoxFuture<'_, Result<Exit, EngineError>> {
        Box::pin(async {
            let state = self.wait_for(|k| k.exit.is_some()).await?;
            state
                .exit
                .ok_or_else(|| self.lost("it sent no exit status"))
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async move {
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            self.send(&Request::Stop { grace_ms }).await?;
            self.wait_for_within("stopped", grace.saturating_add(KILL_TIMEOUT), |k| {
                k.exit.is_some()
            })
            .await
            .map(drop)
        })
    }

    fn files_in_root(&self, wanted: fn(&str) -> bool, limit: usize) -> BoxFuture<'_, Vec<String>> {
        let layers = self.writable_layers.clone();
        let finding =
            tokio::task::spawn_blocking(move || files_in_root::find(&layers, wanted, limit));
        Box::pin(async { finding.await.unwrap_or_default() })
    }

    fn remove(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.remove_container())
    }
}
