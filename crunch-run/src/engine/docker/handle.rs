//! One container of the daemon's: start, wait, stop, remove.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::container::AttachContainerResults;
use bollard::errors::Error;
use bollard::models::ContainerState;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, KillContainerOptionsBuilder, RemoveContainerOptionsBuilder,
};
use futures_util::future::BoxFuture;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::follow::{self, Follower, Process};
use super::messages::{self, About};
use super::stdio::Carrier;
use super::{Flavour, PATIENCE};
use crate::cgroup::Cgroup;
use crate::engine::{Container, EngineError, Exit, Stdio};

/// How long, and to how many questions, a daemon may not know what it has just started; and between two questions.
const BEGINNING: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

pub struct DockerContainer {
    client: Docker,
    flavour: Flavour,
    id: String,
    uuid: String,
    about: About,
    carrier: Mutex<Option<Carrier>>,
    process: OnceLock<Process>,
    exit: watch::Sender<Option<Result<Exit, String>>>,
    following: Mutex<Option<AbortOnDropHandle<()>>>,
    is_removed: AtomicBool,
}

impl DockerContainer {
    pub fn new(client: Docker, flavour: Flavour, id: String, uuid: String, about: About) -> Self {
        Self {
            client,
            flavour,
            id,
            uuid,
            about,
            carrier: Mutex::new(None),
            process: OnceLock::new(),
            exit: watch::Sender::new(None),
            following: Mutex::new(None),
            is_removed: AtomicBool::new(false),
        }
    }

    /// Takes its streams before it starts, so that nothing of them is lost.
    pub async fn attach(&self, stdio: Stdio, stdin_is_given: bool) -> Result<(), EngineError> {
        // Podman closes the whole connection, in the middle of a piece of output too, when the container ends with some of
        // its stdin not taken.
        let apart = stdin_is_given && self.flavour == Flavour::Podman;
        let output = self.connection(stdin_is_given && !apart, true).await?;
        let input = match apart {
            true => Some(self.connection(true, false).await?),
            false => None,
        };
        let carrier = Carrier::start(output, input, stdio, stdin_is_given)
            .map_err(|source| self.io("its streams cannot be taken", source))?;
        if let Ok(mut place) = self.carrier.lock() {
            *place = Some(carrier);
        }
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
        let carrier = self.carrier.lock().ok().and_then(|mut place| place.take());
        let carrier = carrier.ok_or_else(|| EngineError::Order {
            name: self.uuid.clone(),
            verb: "start",
            state: "was started before",
        })?;
        self.client
            .start_container(&self.id, None)
            .await
            .map_err(|error| self.explain("it cannot be started", error))?;
        // There is none if it has ended already.
        let pid = self.begun().await?.pid;
        let pid = pid
            .and_then(|pid| u32::try_from(pid).ok())
            .filter(|pid| *pid > 0);
        let process = pid.map(|pid| Process::of(pid, &self.id));
        if let Some(process) = &process {
            let _ = self.process.set(process.clone());
        }
        let follower = Follower {
            client: self.client.clone(),
            id: self.id.clone(),
            process,
            carrier,
        };
        let tell = self.exit.clone();
        let following = tokio::spawn(async move {
            tell.send_replace(Some(follower.follow().await));
        });
        if let Ok(mut place) = self.following.lock() {
            *place = Some(AbortOnDropHandle::new(following));
        }
        Ok(())
    }

    /// What is known of it just after its start. Of one that ends in that very moment podman says that it has no
    /// process, as a failure.
    async fn begun(&self) -> Result<ContainerState, EngineError> {
        let began = Instant::now();
        let mut asked = 0;
        loop {
            asked += 1;
            match follow::state(&self.client, &self.id).await {
                Ok(state) => return Ok(state),
                Err(why) if asked >= QUESTIONS && began.elapsed() > BEGINNING => {
                    return Err(self.io("nothing is known of it", io::Error::other(why)));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn explain(&self, what: &str, error: Error) -> EngineError {
        match self.about.mistake(&error) {
            Some(mistake) => mistake.into(),
            None => self.io(what, io::Error::other(error)),
        }
    }

    fn io(&self, what: &str, source: io::Error) -> EngineError {
        EngineError::Io {
            what: format!("{} container {}: {what}", self.flavour.name(), self.uuid),
            source,
        }
    }

    async fn ended(&self) -> Result<Exit, EngineError> {
        let mut exit = self.exit.subscribe();
        let exit = exit
            .wait_for(Option::is_some)
            .await
            .map(|exit| exit.clone())
            .unwrap_or_default();
        exit.unwrap_or_else(|| Err("nobody follows it".to_owned()))
            .map_err(|why| self.io("how it ended is not known", io::Error::other(why)))
    }

    /// To all its processes where we may, and else to the first.
    async fn signal(&self, signal: Signal, name: &str) -> Result<(), EngineError> {
        let group = self.process.get().and_then(|p| p.group.as_ref());
        if let Some(group) = group.filter(|_| rustix::process::geteuid().is_root()) {
            group.signal(signal, |_| false);
            return Ok(());
        }
        let options = KillContainerOptionsBuilder::new().signal(name).build();
        match self.client.kill_container(&self.id, Some(options)).await {
            // It has ended meanwhile.
            Err(error) if messages::is_conflict(&error) || messages::is_gone(&error) => Ok(()),
            Err(error) => Err(self.io("it cannot be signalled", io::Error::other(error))),
            Ok(()) => Ok(()),
        }
    }

    async fn end(&self, grace: Duration) -> Result<(), EngineError> {
        if !grace.is_zero() {
            self.signal(Signal::TERM, "SIGTERM").await?;
            if tokio::time::timeout(grace, self.ended()).await.is_ok() {
                return Ok(());
            }
        }
        self.signal(Signal::KILL, "SIGKILL").await?;
        match tokio::time::timeout(PATIENCE, self.ended()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.io(
                "it does not end",
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it was killed {} seconds ago", PATIENCE.as_secs()),
                ),
            )),
        }
    }

    async fn take_away(&self) -> Result<(), EngineError> {
        if self.is_removed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let removed = take_away(&self.client, &self.id, self.process.get()).await;
        removed.map_err(|error| self.io("it cannot be removed", error))?;
        self.is_removed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Kills what still runs and has the daemon forget it; works on the processes even where the daemon is gone.
async fn take_away(client: &Docker, id: &str, process: Option<&Process>) -> io::Result<()> {
    let group = process.and_then(|p| p.group.clone());
    if let Some(group) = group.filter(|_| rustix::process::geteuid().is_root()) {
        let killed = tokio::task::spawn_blocking(move || group.kill(PATIENCE)).await;
        killed
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
    }
    let options = RemoveContainerOptionsBuilder::new()
        .force(true)
        .v(true)
        .build();
    match client.remove_container(id, Some(options)).await {
        Err(error) if messages::is_gone(&error) || messages::is_conflict(&error) => Ok(()),
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
        Box::pin(self.ended())
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.end(grace))
    }

    fn remove(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.take_away())
    }
}

impl Drop for DockerContainer {
    fn drop(&mut self) {
        if self.is_removed.load(Ordering::Relaxed) {
            return;
        }
        // Without a runtime this program ends; the next attempt's `recover` finds the container.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (client, id) = (self.client.clone(), self.id.clone());
            let process = self.process.get().cloned();
            runtime.spawn(async move {
                if let Err(error) = take_away(&client, &id, process.as_ref()).await {
                    tracing::warn!("container {id} is left on this node: {error}");
                }
            });
        }
    }
}
