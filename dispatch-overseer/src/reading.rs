//! The demand file as it is read again and again: the last good reading holds until it is too old.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use demand::{Demand, LONGEST, ReadError, Status};

use crate::decide::Standing;

/// How far its clock may be ahead of ours, in seconds.
const AHEAD: u64 = 60;

/// Why a look brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("there is no {} yet", .0.display())]
    Missing(PathBuf),
    #[error("{} cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not a plain file", .0.display())]
    NotAFile(PathBuf),
    #[error(
        "{} belongs to the user with uid {owner}: what it names would be run as you, so it must be yours or root's",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error(
        "others may write {}, and what it names would be run as you: take that away with chmod go-w",
        .0.display()
    )]
    Writable(PathBuf),
    #[error("{} is refused: {source}", path.display())]
    Refused { path: PathBuf, source: ReadError },
    #[error(
        "{} is refused: it says that it is written {seconds} s from now; compare the clocks",
        path.display()
    )]
    Future { path: PathBuf, seconds: u64 },
    #[error(
        "{} is refused: it is {seconds} s older than what was read before", path.display()
    )]
    Older { path: PathBuf, seconds: u64 },
}

/// What was read of one file.
#[derive(Debug)]
pub struct Reading {
    path: PathBuf,
    /// Update intervals after which a reading does not hold any more.
    missed: u64,
    last: Option<Demand>,
    finished_since: u64,
}

impl Reading {
    /// Of `path`, whose readings hold for `missed` of its update intervals.
    pub fn of(path: &Path, missed: u32) -> Self {
        Self {
            path: path.to_owned(),
            missed: missed.into(),
            last: None,
            finished_since: 0,
        }
    }

    /// The last good reading.
    pub fn last(&self) -> Option<&Demand> {
        self.last.as_ref()
    }

    /// Reads the file once more. On an error the last good reading stays.
    pub fn look(&mut self, now: u64) -> Result<(), LookError> {
        let path = || self.path.clone();
        let demand = Demand::read(&content(&self.path)?).map_err(|source| LookError::Refused {
            path: path(),
            source,
        })?;
        if demand.written_at > now.saturating_add(AHEAD) {
            let seconds = demand.written_at - now;
            return Err(LookError::Future {
                path: path(),
                seconds,
            });
        }
        if let Some(last) = &self.last
            && demand.written_at < last.written_at
        {
            let seconds = last.written_at - demand.written_at;
            return Err(LookError::Older {
                path: path(),
                seconds,
            });
        }
        let was = self.last.as_ref().map(|last| last.status);
        if demand.status == Status::Finished && was != Some(Status::Finished) {
            self.finished_since = now;
        }
        self.last = Some(demand);
        Ok(())
    }

    /// What holds now.
    pub fn standing(&self, now: u64) -> Standing<'_> {
        match &self.last {
            None => Standing::Unread,
            Some(last) if last.status == Status::Finished => {
                Standing::Finished(self.finished_since)
            }
            Some(last) if now > last.written_at + self.missed * last.update_interval => {
                Standing::Stale
            }
            Some(last) => Standing::Fresh(last),
        }
    }
}

/// The bytes of a file that nobody else could have written, and no more of them than a reader wants.
fn content(path: &Path) -> Result<Vec<u8>, LookError> {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => LookError::Missing(path.to_owned()),
        _ => LookError::Io {
            path: path.to_owned(),
            source,
        },
    };
    // A pipe without a writer must not keep us.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(io)?;
    let about = file.metadata().map_err(io)?;
    if !about.is_file() {
        return Err(LookError::NotAFile(path.to_owned()));
    }
    let owner = about.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(LookError::Owner {
            path: path.to_owned(),
            owner,
        });
    }
    if about.mode() & 0o022 != 0 {
        return Err(LookError::Writable(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use demand::{Worker, to_lisp};

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn demand(written_at: u64, needed: u32) -> Demand {
        Demand {
            status: Status::InProgress,
            written_at,
            member_id: "m".into(),
            update_interval: 100,
            needed,
            worker: Worker {
                program: "/w".into(),
                libraries: vec![],
                arguments: vec![],
            },
        }
    }

    fn world() -> (tempfile::TempDir, PathBuf, Reading) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demand");
        let reading = Reading::of(&path, 3);
        (dir, path, reading)
    }

    fn fresh(reading: &Reading, now: u64) -> Option<u32> {
        match reading.standing(now) {
            Standing::Fresh(demand) => Some(demand.needed),
            _ => None,
        }
    }

    #[test]
    fn the_last_good_reading_holds_until_it_is_stale() {
        let (_dir, path, mut reading) = world();
        let error = reading.look(NOW).unwrap_err();
        assert!(matches!(error, LookError::Missing(_)), "{error}");
        assert!(matches!(reading.standing(NOW), Standing::Unread));
        fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
        reading.look(NOW).unwrap();
        assert_eq!(fresh(&reading, NOW), Some(5));
        // Half a file, a hostile one, none: the five hold.
        let whole = to_lisp(&demand(NOW + 10, 9));
        for bad in [
            &whole[..whole.len() / 2],
            "#.(quit)",
            "(:slaves-needed -1)",
            "",
        ] {
            fs::write(&path, bad).unwrap();
            let error = reading.look(NOW + 10).unwrap_err().to_string();
            assert!(error.contains("/demand is refused: "), "{error}");
            assert_eq!(fresh(&reading, NOW + 10), Some(5));
        }
        fs::remove_file(&path).unwrap();
        reading.look(NOW + 20).unwrap_err();
        assert_eq!(fresh(&reading, NOW + 300), Some(5));
        assert!(matches!(reading.standing(NOW + 301), Standing::Stale));
        fs::write(&path, to_lisp(&demand(NOW + 310, 2))).unwrap();
        reading.look(NOW + 310).unwrap();
        assert_eq!(fresh(&reading, NOW + 310), Some(2));
    }

    #[test]
    fn what_was_never_fresh_is_stale_at_once() {
        let (_dir, path, mut reading) = world();
        fs::write(&path, to_lisp(&demand(NOW - 400, 5))).unwrap();
        reading.look(NOW).unwrap();
        assert!(matches!(reading.standing(NOW), Standing::Stale));
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        let (_dir, path, mut reading) = world();
        fs::write(&path, to_lisp(&demand(NOW + 61, 5))).unwrap();
        let error = reading.look(NOW).unwrap_err().to_string();
        assert!(
            error.contains("written 61 s from now; compare the clocks"),
            "{error}"
        );
        fs::write(&path, to_lisp(&demand(NOW + 60, 5))).unwrap();
        reading.look(NOW).unwrap();
        fs::write(&path, to_lisp(&demand(NOW + 50, 9))).unwrap();
        let error = reading.look(NOW).unwrap_err().to_string();
        assert!(
            error.contains("10 s older than what was read before"),
            "{error}"
        );
        assert_eq!(fresh(&reading, NOW), Some(5));
    }

    #[test]
    fn finished_holds_for_ever_and_begins_when_it_is_seen() {
        let (_dir, path, mut reading) = world();
        let over = Demand {
            status: Status::Finished,
            ..demand(NOW - 9999, 5)
        };
        fs::write(&path, to_lisp(&over)).unwrap();
        for now in [NOW, NOW + 10] {
            reading.look(now).unwrap();
            assert!(matches!(reading.standing(now), Standing::Finished(NOW)));
        }
        fs::write(&path, to_lisp(&demand(NOW + 20, 1))).unwrap();
        reading.look(NOW + 20).unwrap();
        assert_eq!(fresh(&reading, NOW + 20), Some(1), "a new computation");
    }

    #[test]
    fn only_a_file_that_nobody_else_could_write_is_read() {
        let (dir, path, mut reading) = world();
        fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
        for mode in [0o664, 0o646] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = reading.look(NOW).unwrap_err().to_string();
            assert!(error.contains("chmod go-w"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(reading.look(NOW), Err(LookError::NotAFile(_))));
        fs::remove_dir(&path).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        symlink(&pipe, &path).unwrap();
        assert!(matches!(reading.look(NOW), Err(LookError::NotAFile(_))));
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&path).unwrap();
            fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let error = reading.look(NOW).unwrap_err().to_string();
            assert!(error.contains("uid 12345"), "{error}");
        }
    }
}
