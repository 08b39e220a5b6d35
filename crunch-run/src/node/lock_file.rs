//! The lock of a job directory: held while its crunch-run lives, with a note of its process.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use host_state::{ProcessIdentity, lock};
use serde::{Deserialize, Serialize};

/// Time to wait while another process only probes the lock.
const PROBE_LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another crunch-run is running in {dir}: it holds {path}", dir = path.parent().unwrap_or(path).display(), path = path.display())]
    Held { path: PathBuf },
    #[error("the lock file {path} cannot be used: {source}", path = path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockOwner {
    pub uuid: ContainerUuid,
    /// UUID of the attempt token, if the token contains it.
    pub attempt: Option<TokenUuid>,
    #[serde(flatten)]
    pub process: ProcessIdentity,
}

impl LockOwner {
    /// Identifies a running process, or one that was not reaped.
    pub fn of(uuid: ContainerUuid, attempt: Option<TokenUuid>, pid: u32) -> io::Result<Self> {
        Ok(Self {
            uuid,
            attempt,
            process: ProcessIdentity::of(pid)?,
        })
    }
}

/// A held lock. It belongs to the open file: every copy, also in another process, holds it.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Like [`acquire`](Self::acquire), but retries while another process, such as a dispatcher,
    /// only probes the lock. If the owner in the file is alive, it fails at once.
    pub fn acquire_after_probes(path: &Path) -> Result<Self, LockError> {
        Self::acquire_within(path, PROBE_LOCK_TIMEOUT)
    }

    fn acquire_within(path: &Path, probe_timeout: Duration) -> Result<Self, LockError> {
        let began = Instant::now();
        loop {
            match Self::acquire(path) {
                Err(LockError::Held { .. })
                    if began.elapsed() < probe_timeout && !owner_is_alive(path) =>
                {
                    std::thread::sleep(LOCK_RETRY_INTERVAL);
                }
                taken => return taken,
            }
        }
    }

    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let path = path.to_owned();
        match lock::try_exclusive(&path) {
            Ok(Some(file)) => Ok(Self { file, path }),
            Ok(None) => Err(LockError::Held { path }),
            Err(source) => Err(LockError::Io { path, source }),
        }
    }

    /// Returns a copy of the lock for another process.
    pub fn share(&self) -> Result<OwnedFd, LockError> {
        let copy = self
            .file
            .try_clone()
            .map_err(|source| self.failed(source))?;
        Ok(copy.into())
    }

    /// Takes over a lock that this process inherited.
    pub fn from_fd(file: OwnedFd, path: &Path) -> Self {
        Self {
            file: file.into(),
            path: path.to_owned(),
        }
    }

    /// Writes the owner and syncs it to disk. Two processes may write the same owner at the same
    /// time.
    pub fn write_owner(&self, owner: &LockOwner) -> Result<(), LockError> {
        let mut text = serde_json::to_vec(owner).unwrap_or_default();
        text.push(b'\n');
        let put = || -> io::Result<()> {
            self.file.write_all_at(&text, 0)?;
            self.file.set_len(text.len() as u64)?;
            self.file.sync_all()
        };
        put().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> LockError {
        LockError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// Whether the process that wrote the owner still runs.
fn owner_is_alive(path: &Path) -> bool {
    let owner = fs::read(path).ok();
    let owner: Option<LockOwner> = owner.and_then(|text| serde_json::from_slice(&text).ok());
    owner.is_some_and(|LockOwner { process, .. }| {
        ProcessIdentity::of(process.pid).is_ok_and(|now| now == process)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AN_HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_lock_is_held_by_every_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = LockFile::acquire(&path).unwrap();
        let copy = lock.share().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let owner = LockOwner::of(uuid, None, std::process::id()).unwrap();
        lock.write_owner(&owner).unwrap();
        lock.write_owner(&owner).unwrap();
        drop(lock);
        assert!(matches!(
            LockFile::acquire(&path),
            Err(LockError::Held { .. })
        ));
        drop(copy);
        // A child of another test may have a copy of the lock for a moment.
        let until = Instant::now() + PROBE_LOCK_TIMEOUT;
        while let Err(error) = LockFile::acquire(&path) {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(LOCK_RETRY_INTERVAL);
        }
        let read: LockOwner = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read, owner);
        assert_eq!(read.process.boot_id.len(), 36);
    }

    #[test]
    fn who_only_looks_whether_it_is_held_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let looking = LockFile::acquire(&path).unwrap();
        let began = Instant::now();
        let over = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(looking);
        });
        let taken = LockFile::acquire_within(&path, AN_HOUR).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(200));
        over.join().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let owner = LockOwner::of(uuid, None, std::process::id()).unwrap();
        taken.write_owner(&owner).unwrap();
        // A running owner is not waited for.
        let refused = LockFile::acquire_within(&path, AN_HOUR);
        assert!(matches!(refused, Err(LockError::Held { .. })));
        let mut dead = owner;
        dead.process.start_time += 1;
        taken.write_owner(&dead).unwrap();
        let began = Instant::now();
        let probe_timeout = Duration::from_millis(50);
        let refused = LockFile::acquire_within(&path, probe_timeout);
        assert!(matches!(refused, Err(LockError::Held { .. })));
        assert!(began.elapsed() >= probe_timeout);
    }
}
