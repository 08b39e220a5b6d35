//! Watches a file in the state directory that a Slurm epilog touches, as the job's user, when a
//! job has ended.
//!
//! It needs no port and no secret: a user who can write there can only make squeue run earlier. The
//! file is only a hint: regular polling finds every ended job without it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

/// Interval between checks of the file.
const EPILOG_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The file, and its modification time at the last check.
#[derive(Debug)]
pub struct EpilogWatcher {
    file: PathBuf,
    last_modified: Mutex<Option<SystemTime>>,
}

impl EpilogWatcher {
    /// Watches the file in the state directory.
    pub fn in_directory(shared: &Path) -> Self {
        let file = shared.join("ended");
        let last_modified = Mutex::new(modified_at(&file).ok());
        Self {
            file,
            last_modified,
        }
    }

    /// Creates the file for epilogs. Without it, ended jobs are found by polling only.
    pub fn create_file(&self) {
        let made = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.file);
        if let Err(error) = made {
            tracing::warn!(file = %self.file.display(), %error, "cannot create the epilog notification file; ended jobs are found by polling only");
        }
    }

    /// Resolves once the file was touched since the last call. A call that is dropped loses no
    /// change.
    pub async fn changed(&self) {
        loop {
            tokio::time::sleep(EPILOG_POLL_INTERVAL).await;
            let file = self.file.clone();
            let check = tokio::task::spawn_blocking(move || modified_at(&file));
            if let Ok(Ok(now)) = check.await
                && self.is_new(now)
            {
                return;
            }
        }
    }

    fn is_new(&self, now: SystemTime) -> bool {
        let mut last_modified = self.last_modified.lock();
        last_modified.replace(now) != Some(now)
    }
}

/// Opens the file, because only then NFS queries the server instead of its cache.
fn modified_at(file: &Path) -> io::Result<SystemTime> {
    File::open(file)?.metadata()?.modified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_touch_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let watcher = EpilogWatcher::in_directory(dir.path());
        watcher.create_file();
        watcher.changed().await;
        let file = File::open(dir.path().join("ended")).unwrap();
        let silent = |watcher: &EpilogWatcher| !watcher.is_new(modified_at(&watcher.file).unwrap());
        assert!(silent(&watcher));
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        watcher.changed().await;
        assert!(silent(&watcher));
        file.set_modified(SystemTime::now()).unwrap();
        watcher.changed().await;
    }
}
