//! One container of the daemon: start, wait, stop, remove.

use std::collections::HashSet;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::container::{AttachContainerResults, PathStatResponse};
use bollard::errors::Error;
use bollard::models::{ChangeType, ContainerState};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, ContainerArchiveInfoOptionsBuilder, KillContainerOptionsBuilder,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::errors::{self, ErrorContext};
use super::recover;
use super::stdio::StreamCopier;
use super::wait::{self, ExitWaiter, Process};
use super::{DAEMON_STEP_TIMEOUT, Flavour};
use crate::shim::user;
use crate::{Container, EngineError, Exit, Stdio};
use cgroup::Cgroup;

/// Time for which a daemon may fail to report a container that it has just started.
const START_QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the listing of new files, which only helps to explain an empty output.
const LISTING_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_START_QUERIES: u32 = 3;
const START_QUERY_INTERVAL: Duration = Duration::from_millis(50);

pub struct DockerContainer {
    client: Docker,
    flavour: Flavour,
    id: String,
    uuid: String,
    context: ErrorContext,
    copier: Mutex<Option<StreamCopier>>,
    process: OnceLock<Process>,
    exit: watch::Sender<Option<Result<Exit, String>>>,
    waiting: Mutex<Option<AbortOnDropHandle<()>>>,
    is_removed: AtomicBool,
}

impl DockerContainer {
    pub fn new(
        client: Docker,
        flavour: Flavour,
        id: String,
        uuid: String,
        context: ErrorContext,
    ) -> Self {
        Self {
            client,
            flavour,
            id,
            uuid,
            context,
            copier: Mutex::new(None),
            process: OnceLock::new(),
            exit: watch::Sender::new(None),
            waiting: Mutex::new(None),
            is_removed: AtomicBool::new(false),
        }
    }

    /// Refuses an image whose accounts the daemon would wait for. The daemon itself decides about
    /// files that it cannot describe.
    pub async fn check_accounts(&self) -> Result<(), EngineError> {
        /// Bits of Go's mode of what is neither a regular file nor a link.
        const NO_FILE: u32 = 0x8728_0000;
        for file in user::ACCOUNTS {
            let mut found = self.stat(file).await;
            if let Some(target) = found.as_ref().map(|found| found.link_target.clone())
                && !target.is_empty()
            {
                found = self.stat(&target).await;
            }
            match found {
                Some(found) if found.file_mode & NO_FILE != 0 => {
                    return Err(user::unusable(file, "is not a regular file").into());
                }
                Some(found) if found.size > user::MAX_BYTES as i64 => {
                    return Err(user::unusable(file, "is too large").into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn stat(&self, path: &str) -> Option<PathStatResponse> {
        let options = ContainerArchiveInfoOptionsBuilder::new().path(path).build();
        let found = self
            .client
            .get_container_archive_info(&self.id, Some(options));
        found.await.ok()
    }

    /// Attaches its streams before it starts, so that no output is lost.
    pub async fn attach(&self, stdio: Stdio, stdin_is_given: bool) -> Result<(), EngineError> {
        // Podman closes the whole connection, even in the middle of output, when the container ends
        // without reading all of its stdin. So stdin gets a connection of its own.
        let apart = stdin_is_given && self.flavour == Flavour::Podman;
        let output = self.connection(stdin_is_given && !apart, true).await?;
        let input = match apart {
            true => Some(self.connection(true, false).await?),
            false => None,
        };
        let copier = StreamCopier::start(output, input, stdio, stdin_is_given)
            .map_err(|source| self.io("its streams cannot be taken", source))?;
        *self.copier.lock() = Some(copier);
        Ok(())
    }

    async fn connection(
        &self,
        stdin: bool,
        output: bool,
    ) -> Result<AttachContainerResults, EngineError> {
        let options = AttachContainerOptionsBuilder::new()
            .stream(true)
            .stdin(stdin)
            .stdout(output)
            .stderr(output)
            .build();
        self.client
            .attach_container(&self.id, Some(options))
            .await
            .map_err(|error| self.explain("its streams cannot be taken", error))
    }

    async fn run(&self) -> Result<(), EngineError> {
        let copier = self.copier.lock().take();
        let copier = copier.ok_or_else(|| EngineError::WrongState {
            name: self.uuid.clone(),
            verb: "start",
            state: "was started before",
        })?;
        self.client
            .start_container(&self.id, None)
            .await
            .map_err(|error| self.explain("it cannot be started", error))?;
        // A container that has ended has no pid.
        let pid = self.inspect_started().await?.pid;
        let pid = pid
            .and_then(|pid| u32::try_from(pid).ok())
            .filter(|pid| *pid > 0);
        let process = pid.map(|pid| Process::of(pid, &self.id));
        if let Some(process) = &process {
            let _ = self.process.set(process.clone());
        }
        let waiter = ExitWaiter {
            client: self.client.clone(),
            id: self.id.clone(),
            process,
            copier,
        };
        let exit_sender = self.exit.clone();
        let waiting = tokio::spawn(async move {
            exit_sender.send_replace(Some(waiter.wait().await));
        });
        *self.waiting.lock() = Some(AbortOnDropHandle::new(waiting));
        Ok(())
    }

    /// The state just after the start. If the container ends at that moment, podman fails because
    /// it has no process.
    async fn inspect_started(&self) -> Result<ContainerState, EngineError> {
        let began = Instant::now();
        let mut queries = 0;
        loop {
            queries += 1;
            match wait::state(&self.client, &self.id).await {
                Ok(state) => return Ok(state),
                Err(why)
                    if queries >= MIN_START_QUERIES && began.elapsed() > START_QUERY_TIMEOUT =>
                {
                    return Err(self.io("its state is unknown", io::Error::other(why)));
                }
                Err(_) => tokio::time::sleep(START_QUERY_INTERVAL).await,
            }
        }
    }

    fn explain(&self, what: &str, error: Error) -> EngineError {
        match self.context.user_error(&error) {
            Some(user_error) => user_error.into(),
            None => self.io(what, io::Error::other(error)),
        }
    }

    fn io(&self, what: &str, source: io::Error) -> EngineError {
        let flavour = self.flavour.name();
        EngineError::io(format!("{flavour} container {}: {what}", self.uuid), source)
    }

    async fn wait_for_exit(&self) -> Result<Exit, EngineError> {
        let mut exit = self.exit.subscribe();
        let exit = exit.wait_for(Option::is_some).await;
        exit.ok()
            .and_then(|exit| exit.clone())
            .unwrap_or_else(|| Err("no task waits for it".to_owned()))
            .map_err(|why| self.io("its exit status is unknown", io::Error::other(why)))
    }

    /// Signals all its processes as root, else the first one by the daemon.
    async fn signal(&self, signal: Signal, name: &str) -> Result<(), EngineError> {
        let group = self.process.get().and_then(|p| p.group.as_ref());
        if let Some(group) = group.filter(|_| rustix::process::geteuid().is_root()) {
            group.signal(signal, |_| false);
            return Ok(());
        }
        let options = KillContainerOptionsBuilder::new().signal(name).build();
        match self.client.kill_container(&self.id, Some(options)).await {
            // The container has ended meanwhile.
            Err(error) if errors::is_conflict(&error) || errors::is_gone(&error) => Ok(()),
            Err(error) => Err(self.io("it cannot be signalled", io::Error::other(error))),
            Ok(()) => Ok(()),
        }
    }

    async fn stop_within(&self, grace: Duration) -> Result<(), EngineError> {
        if !grace.is_zero() {
            self.signal(Signal::TERM, "SIGTERM").await?;
            let ended = tokio::time::timeout(grace, self.wait_for_exit()).await;
            if ended.is_ok() {
                return Ok(());
            }
        }
        self.signal(Signal::KILL, "SIGKILL").await?;
        let ended = tokio::time::timeout(DAEMON_STEP_TIMEOUT, self.wait_for_exit()).await;
        ended.map(drop).map_err(|_| {
            let seconds = DAEMON_STEP_TIMEOUT.as_secs();
            let reason = format!("it was killed {seconds} seconds ago");
            let source = io::Error::new(io::ErrorKind::TimedOut, reason);
            self.io("it does not end", source)
        })
    }

    /// The daemon lists what is new in the root; of that, what has nothing new below it.
    async fn new_in_root(&self, wanted: fn(&str) -> bool, limit: usize) -> Vec<String> {
        let listing = self.client.container_changes(&self.id);
        let changes = match tokio::time::timeout(LISTING_TIMEOUT, listing).await {
            Ok(Ok(Some(changes))) => changes,
            _ => return Vec::new(),
        };
        let paths: Vec<String> = changes
            .into_iter()
            .filter(|change| change.kind == ChangeType::_1)
            .map(|change| change.path)
            .collect();
        let parents: HashSet<&str> = paths
            .iter()
            .filter_map(|path| Some(path.rsplit_once('/')?.0))
            .collect();
        paths
            .iter()
            .filter(|path| !parents.contains(path.as_str()))
            .filter(|path| !self.context.is_mount(path) && wanted(path))
            .take(limit)
            .cloned()
            .collect()
    }

    async fn kill_and_remove(&self) -> Result<(), EngineError> {
        if self.is_removed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let removed = kill_and_remove(&self.client, &self.id, self.process.get()).await;
        removed.map_err(|error| self.io("it cannot be removed", error))?;
        self.is_removed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Kills what still runs and removes the container. The kill works without the daemon too.
async fn kill_and_remove(client: &Docker, id: &str, process: Option<&Process>) -> io::Result<()> {
    let group = process.and_then(|p| p.group.clone());
    if let Some(group) = group.filter(|_| rustix::process::geteuid().is_root()) {
        let killed = tokio::task::spawn_blocking(move || group.kill(DAEMON_STEP_TIMEOUT)).await;
        killed
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
    }
    match recover::remove(client, id, Duration::ZERO).await {
        Err(error) if errors::is_conflict(&error) => Ok(()),
        done => done.map_err(io::Error::other),
    }
}

impl Container for DockerContainer {
    fn start(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.run())
    }

    fn pid(&self) -> Option<u32> {
        self.process.get().map(|process| process.pid)
    }

    fn cgroup(&self) -> Option<Cgroup> {
        self.process.get().and_then(|process| process.group.clone())
    }

    fn wait(&self) -> BoxFuture<'_, Result<Exit, EngineError>> {
        Box::pin(self.wait_for_exit())
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.stop_within(grace))
    }

    fn files_in_root(&self, wanted: fn(&str) -> bool, limit: usize) -> BoxFuture<'_, Vec<String>> {
        Box::pin(self.new_in_root(wanted, limit))
    }

    fn remove(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.kill_and_remove())
    }
}

impl Drop for DockerContainer {
    fn drop(&mut self) {
        if self.is_removed.load(Ordering::Relaxed) {
            return;
        }
        // Without a tokio runtime this program is ending; the next attempt's `recover` finds the
        // container.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (client, id) = (self.client.clone(), self.id.clone());
            let process = self.process.get().cloned();
            runtime.spawn(async move {
                if let Err(error) = kill_and_remove(&client, &id, process.as_ref()).await {
                    tracing::warn!(%id, %error, "cannot remove a container of the daemon; it stays on this node");
                }
            });
        }
    }
}
