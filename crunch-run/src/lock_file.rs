//! The lock of a job directory: held as long as its crunch-run lives, and a note of which process that is.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// Nobody only looks for longer, also where a machine stands still now and then.
const A_LOOK: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another crunch-run is at work in {dir}: it holds {path}", dir = path.parent().unwrap_or(path).display(), path = path.display())]
    Held { path: PathBuf },
    #[error("the lock file {path} cannot be used: {source}", path = path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Which process holds the lock. The start time tells it from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub uuid: ContainerUuid,
    /// The attempt's token, by name; a bare secret does not tell it.
    pub attempt: Option<TokenUuid>,
    pub pid: u32,
    /// In ticks since the boot.
    pub start_time: u64,
    pub boot_id: String,
}

impl Note {
    /// About a running process, or one that has not been waited for.
    pub fn of(uuid: ContainerUuid, attempt: Option<TokenUuid>, pid: u32) -> io::Result<Self> {
        let stat = procfs::process::Process::new(pid as i32)
            .and_then(|process| process.stat())
            .map_err(io::Error::other)?;
        Ok(Self {
            uuid,
            attempt,
            pid,
            start_time: stat.starttime,
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")?
                .trim()
                .to_owned(),
        })
    }
}

/// A held lock. It is the open file that holds it: every copy of it, also in another process, counts.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// As [`take`](Self::take), where it may be held for a moment by somebody who only looks whether it is: a dispatcher
    /// learns in this way whether a crunch-run lives. A crunch-run that does is not waited for: it has its note there.
    pub fn take_in_time(path: &Path) -> Result<Self, LockError> {
        Self::take_within(path, A_LOOK)
    }

    fn take_within(path: &Path, a_look: Duration) -> Result<Self, LockError> {
        let began = Instant::now();
        loop {
            match Self::take(path) {
                Err(LockError::Held { .. }) if began.elapsed() < a_look && !is_at_work(path) => {
                    std::thread::sleep(PAUSE);
                }
                taken => return taken,
            }
        }
    }

    pub fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io {
            path: path.to_owned(),
            source,
        };
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                file,
                path: path.to_owned(),
            }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Held {
                path: path.to_owned(),
            }),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// A copy for the process that is to go on holding it.
    pub fn share(&self) -> Result<OwnedFd, LockError> {
        let copy = self
            .file
            .try_clone()
            .map_err(|source| self.failed(source))?;
        Ok(copy.into())
    }

    /// The lock that this process was given open.
    pub fn given(file: OwnedFd, path: &Path) -> Self {
        Self {
            file: file.into(),
            path: path.to_owned(),
        }
    }

    /// Replaces the note; it is on the disk when this returns. Two may write the same one at the same time.
    pub fn write(&self, note: &Note) -> Result<(), LockError> {
        let mut text = serde_json::to_vec(note).unwrap_or_default();
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

/// Whether the process lives that left its note there.
fn is_at_work(path: &Path) -> bool {
    let note = fs::read(path).ok();
    let note: Option<Note> = note.and_then(|text| serde_json::from_slice(&text).ok());
    note.is_some_and(|note| {
        let now = Note::of(note.uuid.clone(), note.attempt.clone(), note.pid);
        now.is_ok_and(|now| now == note)
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
        let lock = LockFile::take(&path).unwrap();
        let copy = lock.share().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let note = Note::of(uuid.clone(), None, std::process::id()).unwrap();
        lock.write(&note).unwrap();
        lock.write(&note).unwrap();
        drop(lock);
        assert!(matches!(LockFile::take(&path), Err(LockError::Held { .. })));
        drop(copy);
        // What another test starts has a copy for a moment, too.
        let until = Instant::now() + A_LOOK;
        while let Err(error) = LockFile::take(&path) {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(PAUSE);
        }
        let read: Note = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((read.uuid, read.pid), (uuid, std::process::id()));
        assert!(read.start_time > 0 && read.boot_id.len() == 36);
    }

    #[test]
    fn who_only_looks_whether_it_is_held_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let looking = LockFile::take(&path).unwrap();
        let began = Instant::now();
        let over = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(looking);
        });
        let taken = LockFile::take_within(&path, AN_HOUR).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(200));
        over.join().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let note = Note::of(uuid, None, std::process::id()).unwrap();
        taken.write(&note).unwrap();
        // One at work is not waited for.
        let refused = LockFile::take_within(&path, AN_HOUR);
        assert!(matches!(refused, Err(LockError::Held { .. })));
        let dead = Note {
            start_time: note.start_time + 1,
            ..note
        };
        taken.write(&dead).unwrap();
        let began = Instant::now();
        let a_look = Duration::from_millis(50);
        let refused = LockFile::take_within(&path, a_look);
        assert!(matches!(refused, Err(LockError::Held { .. })));
        assert!(began.elapsed() >= a_look);
    }
}
