//! The running arv-mount: started, waited for until its tree is there, watched, and ended.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::Endpoint;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

use super::mount_point::MountPoint;
use super::{BY_ID, PROGRAM, Request, UNMOUNT_SECONDS, arguments, unmount_arguments};
use crate::logs::{ARV_MOUNT, LogDir, Pump, Scanner};

/// How long its tree may take to be there; a busy server makes it wait.
const READY: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
/// Longer than its own patience.
const UNMOUNTED: Duration = Duration::from_secs(UNMOUNT_SECONDS as u64 + 1);
const LAST_LINES: Duration = Duration::from_secs(5);
/// Upstream warns of the same.
const TROUBLE: &[&str] = &[
    "Keep write error",
    "Block not found error",
    "Unhandled exception during FUSE operation",
];

/// Why there is no tree. The node or the server is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ArvMountError {
    #[error(
        "arv-mount cannot be started: {0}; install it (python3-arvados-fuse), or use --mount-method=copy"
    )]
    Start(#[source] io::Error),
    #[error("the directory {path} for arv-mount cannot be used: {source}", path = path.display())]
    Place {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("arv-mount ended before its tree was there ({0}); arv-mount.txt in the log says why")]
    Ended(String),
    #[error("arv-mount's tree is not there after {} s; arv-mount.txt in the log may say why", READY.as_secs())]
    NotReady,
}

/// Where it works and what it is given.
pub struct Surroundings<'a> {
    /// The tree is put here.
    pub tree: &'a Path,
    pub logs: &'a LogDir,
    /// Most that is kept of what it says.
    pub log_limit: u64,
    /// With the container's token.
    pub endpoint: &'a Endpoint,
}

/// An arv-mount whose tree is there. Dropping it takes the tree away.
#[derive(Debug)]
pub struct ArvMount {
    // Killed and unmounted in this order, however this ends.
    kill: KillOnDrop,
    point: MountPoint,
    /// How it ended.
    ended: watch::Receiver<Option<String>>,
    /// The first line of its log that tells of what the container may have noticed as well.
    trouble: watch::Receiver<Option<String>>,
    pump: Option<Pump>,
}

#[derive(Debug)]
struct KillOnDrop(Arc<Notify>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl ArvMount {
    pub async fn start(request: &Request<'_>, at: Surroundings<'_>) -> Result<Self, ArvMountError> {
        let failed_at = |path: &Path| {
            let path = path.to_owned();
            move |source| ArvMountError::Place { path, source }
        };
        let point = MountPoint::make(at.tree).map_err(failed_at(at.tree))?;
        crate::job_dir::make_private(request.cache_dir).map_err(failed_at(request.cache_dir))?;
        let (tell_trouble, trouble) = watch::channel(None);
        let mut scanner = Scanner::new(TROUBLE);
        let (writing, pump) = at
            .logs
            .open(ARV_MOUNT)
            .and_then(|file| {
                Pump::start_heard(file, at.log_limit, move |bytes| {
                    if let Some(line) = scanner.feed(bytes) {
                        tell_trouble.send_replace(Some(line));
                    }
                })
            })
            .map_err(failed_at(&at.logs.file(ARV_MOUNT)))?;
        let also = writing.try_clone().map_err(ArvMountError::Start)?;
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments(request, point.path()))
            .env("ARVADOS_API_HOST", &at.endpoint.host)
            // Other users of the node can read arguments, and not this.
            .env("ARVADOS_API_TOKEN", at.endpoint.token.expose())
            .stdin(Stdio::null())
            .stdout(writing)
            .stderr(also)
            .kill_on_drop(true);
        if at.endpoint.insecure {
            command.env("ARVADOS_API_HOST_INSECURE", "1");
        }
        if let Some(path) = &at.endpoint.ca_file {
            command.env("SSL_CERT_FILE", path);
        }
        let child = command.spawn().map_err(ArvMountError::Start)?;
        // It holds the pipe's writing end.
        drop(command);
        let (tell, ended) = watch::channel(None);
        let kill = Arc::new(Notify::new());
        tokio::spawn(watch_over(child, kill.clone(), tell));
        let mut mount = Self {
            kill: KillOnDrop(kill),
            point,
            ended,
            trouble,
            pump: Some(pump),
        };
        mount.ready().await?;
        Ok(mount)
    }

    /// Until the file that is always in its tree is there.
    async fn ready(&mut self) -> Result<(), ArvMountError> {
        let mark = self.by_id().join("README");
        let until = Instant::now() + READY;
        while Instant::now() < until {
            if let Some(how) = self.ended.borrow().clone() {
                return Err(ArvMountError::Ended(how));
            }
            let seen = tokio::time::timeout(READY, tokio::fs::metadata(&mark)).await;
            if matches!(seen, Ok(Ok(_))) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(ArvMountError::NotReady)
    }

    /// Every collection under its portable data hash.
    pub fn by_id(&self) -> PathBuf {
        self.point.path().join(BY_ID)
    }

    /// Waits for it to end by itself, and says how it did.
    pub async fn died(&self) -> String {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await;
        how.ok()
            .and_then(|how| how.clone())
            .unwrap_or_else(|| "nobody waits for it".to_owned())
    }

    /// Waits for it to say that it could not serve something, and gives that line.
    pub async fn trouble(&self) -> String {
        let mut trouble = self.trouble.clone();
        let line = trouble.wait_for(Option::is_some).await;
        match line.ok().and_then(|line| line.clone()) {
            Some(line) => line,
            // It says nothing any more.
            None => std::future::pending().await,
        }
    }

    /// Has it let go of its tree; kills it if it does not. Its last words are in the log then.
    pub async fn end(mut self) {
        let mut ended = self.ended.clone();
        if ended.borrow().is_none() {
            let unmounting = Command::new(PROGRAM)
                .args(unmount_arguments(self.point.path()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .status();
            let gone = async {
                let _ = unmounting.await;
                let _ = ended.wait_for(Option::is_some).await;
            };
            if tokio::time::timeout(UNMOUNTED, gone).await.is_err() || self.point.is_mounted() {
                tracing::warn!("arv-mount does not let go of its tree and is killed");
            }
        }
        self.kill.0.notify_one();
        if let Some(pump) = self.pump.take() {
            pump.finish(LAST_LINES).await;
        }
    }
}

async fn watch_over(mut child: Child, kill: Arc<Notify>, tell: watch::Sender<Option<String>>) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = kill.notified() => {
            let _ = child.start_kill();
            child.wait().await
        }
    };
    let how = match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    tell.send_replace(Some(how));
}
