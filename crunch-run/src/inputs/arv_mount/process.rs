//! Runs arv-mount: starts it, waits for its tree, watches it and unmounts it.

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

/// Timeout of the start; a busy server delays it.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of an unmount; longer than arv-mount's own.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(UNMOUNT_SECONDS as u64 + 1);
const LOG_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Words in arv-mount's log that the user is warned about, as in upstream.
const WARNING_PATTERNS: &[&str] = &[
    "Keep write error",
    "Block not found error",
    "Unhandled exception during FUSE operation",
];

/// Why arv-mount does not run. The node or the server is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ArvMountError {
    #[error(
        "arv-mount cannot be started: {0}; install it (python3-arvados-fuse), or use --mount-method=copy"
    )]
    Start(#[source] io::Error),
    #[error("the directory {path} for arv-mount cannot be used: {source}", path = path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("arv-mount ended before its mount was ready ({0}); see arv-mount.txt in the log")]
    Ended(String),
    #[error("arv-mount's mount is not ready after {} s; see arv-mount.txt in the log", READY_TIMEOUT.as_secs())]
    NotReady,
}

/// Directories and credentials for arv-mount.
pub struct MountEnvironment<'a> {
    /// Mount point.
    pub tree: &'a Path,
    pub logs: &'a LogDir,
    /// Maximum size of its log in bytes.
    pub log_limit: u64,
    /// API endpoint with the container's token.
    pub endpoint: &'a Endpoint,
}

/// A running arv-mount. Dropping it unmounts its tree.
#[derive(Debug)]
pub struct ArvMount {
    // Dropped in this order: kill the program, then unmount.
    kill: KillOnDrop,
    point: MountPoint,
    /// Exit status, once it ended.
    ended: watch::Receiver<Option<String>>,
    /// The first line of its log that matches `WARNING_PATTERNS`.
    warning: watch::Receiver<Option<String>>,
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
    pub async fn start(
        request: &Request<'_>,
        at: MountEnvironment<'_>,
    ) -> Result<Self, ArvMountError> {
        let failed_at = |path: &Path| {
            let path = path.to_owned();
            move |source| ArvMountError::Directory { path, source }
        };
        let point = MountPoint::make(at.tree).map_err(failed_at(at.tree))?;
        host_state::file::create_private_dir(request.cache_dir)
            .map_err(failed_at(request.cache_dir))?;
        let (warning_sender, warning) = watch::channel(None);
        let mut scanner = Scanner::new(WARNING_PATTERNS);
        let (writing, pump) = at
            .logs
            .open(ARV_MOUNT)
            .and_then(|file| {
                Pump::start_with_observer(file, at.log_limit, move |bytes| {
                    if let Some(line) = scanner.feed(bytes) {
                        warning_sender.send_replace(Some(line));
                    }
                })
            })
            .map_err(failed_at(&at.logs.file(ARV_MOUNT)))?;
        let also = writing.try_clone().map_err(ArvMountError::Start)?;
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments(request, point.path()))
            .env("ARVADOS_API_HOST", &at.endpoint.host)
            // Other users of the node can read arguments, but not the environment.
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
        // The command holds the writing end of the pipe.
        drop(command);
        let (exit_sender, ended) = watch::channel(None);
        let kill = Arc::new(Notify::new());
        tokio::spawn(supervise(child, kill.clone(), exit_sender));
        let mut mount = Self {
            kill: KillOnDrop(kill),
            point,
            ended,
            warning,
            pump: Some(pump),
        };
        mount.wait_until_ready().await?;
        Ok(mount)
    }

    /// Waits for the file that every tree has.
    async fn wait_until_ready(&mut self) -> Result<(), ArvMountError> {
        let mark = self.by_id().join("README");
        let until = Instant::now() + READY_TIMEOUT;
        while Instant::now() < until {
            if let Some(how) = self.ended.borrow().clone() {
                return Err(ArvMountError::Ended(how));
            }
            let entry = tokio::time::timeout(READY_TIMEOUT, tokio::fs::metadata(&mark)).await;
            if matches!(entry, Ok(Ok(_))) {
                return Ok(());
            }
            tokio::time::sleep(READY_POLL_INTERVAL).await;
        }
        Err(ArvMountError::NotReady)
    }

    /// Directory of collections by portable data hash.
    pub fn by_id(&self) -> PathBuf {
        self.point.path().join(BY_ID)
    }

    /// Waits until the program exits. Returns its exit status.
    pub async fn wait_for_exit(&self) -> String {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await;
        how.ok()
            .and_then(|how| how.clone())
            .unwrap_or_else(|| "unknown exit status".to_owned())
    }

    /// Waits for a line about something that could not be served.
    pub async fn wait_for_warning(&self) -> String {
        let mut warning = self.warning.clone();
        let line = warning.wait_for(Option::is_some).await;
        match line.ok().and_then(|line| line.clone()) {
            Some(line) => line,
            // The log has ended.
            None => std::future::pending().await,
        }
    }

    /// Unmounts the tree and ends the program; kills it if it does not end. Its last lines are then
    /// in the log.
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
            if tokio::time::timeout(UNMOUNT_TIMEOUT, gone).await.is_err() || self.point.is_mounted()
            {
                tracing::warn!("killing arv-mount, which did not unmount in time");
            }
        }
        self.kill.0.notify_one();
        if let Some(pump) = self.pump.take() {
            pump.finish(LOG_DRAIN_TIMEOUT).await;
        }
    }
}

async fn supervise(
    mut child: Child,
    kill: Arc<Notify>,
    exit_sender: watch::Sender<Option<String>>,
) {
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
    exit_sender.send_replace(Some(how));
}
