//! A bell that a Slurm epilog rings when a job has ended: it touches a file in the shared directory, as the job's user.
//!
//! No port, no secret: who can write there can only have squeue asked a little sooner. What it says is not believed;
//! looking every so often finds everything without it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(200);

/// The file, and its time when it was last looked at.
#[derive(Debug)]
pub struct Bell {
    file: PathBuf,
    seen: Mutex<Option<SystemTime>>,
}

impl Bell {
    /// In the shared directory.
    pub fn in_directory(shared: &Path) -> Self {
        let file = shared.join("ended");
        let seen = Mutex::new(time(&file).ok());
        Self { file, seen }
    }

    /// Makes the file, for epilogs to find. Where it cannot be made nobody rings.
    pub fn hang(&self) {
        let made = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.file);
        if let Err(error) = made {
            tracing::warn!(file = %self.file.display(), %error, "no epilog can tell that a job has ended");
        }
    }

    /// Resolves once it has been rung since this was last asked. Given up half-way, it misses nothing.
    pub async fn rung(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            let file = self.file.clone();
            let looked = tokio::task::spawn_blocking(move || time(&file));
            if let Ok(Ok(now)) = looked.await
                && self.is_new(now)
            {
                return;
            }
        }
    }

    fn is_new(&self, now: SystemTime) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(|held| held.into_inner());
        seen.replace(now) != Some(now)
    }
}

/// It is opened to be looked at: only then does NFS ask the server instead of its own memory.
fn time(file: &Path) -> io::Result<SystemTime> {
    File::open(file)?.metadata()?.modified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_touch_rings_once() {
        let dir = tempfile::tempdir().unwrap();
        let bell = Bell::in_directory(dir.path());
        bell.hang();
        bell.rung().await;
        let file = File::open(dir.path().join("ended")).unwrap();
        let silent = |bell: &Bell| !bell.is_new(time(&bell.file).unwrap());
        assert!(silent(&bell));
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        bell.rung().await;
        assert!(silent(&bell));
        file.set_modified(SystemTime::now()).unwrap();
        bell.rung().await;
    }
}
