//! Polls the demand file. In: its path. Out: the status of the last valid demand, which stays valid
//! until it is stale.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use worker_demand::{Demand, MAX_FILE_BYTES, ReadError, Status};

use crate::decide::DemandStatus;

/// Maximum time of a demand in the future, in seconds: clocks differ.
const MAX_CLOCK_AHEAD: u64 = 60;

/// Why a poll gave no valid demand.
#[derive(Debug, thiserror::Error)]
pub enum DemandFileError {
    #[error("there is no {} yet", .0.display())]
    Missing(PathBuf),
    #[error("{} cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not a plain file", .0.display())]
    NotAFile(PathBuf),
    #[error(
        "{} belongs to the user with uid {owner}: the program that it names runs as you, so the file must belong to you or root",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error(
        "others may write {}, and the program that it names runs as you: remove their permission with chmod go-w",
        .0.display()
    )]
    Writable(PathBuf),
    #[error("{} is refused: {source}", path.display())]
    Refused { path: PathBuf, source: ReadError },
    #[error(
        "{} is refused: its timestamp is {seconds} s in the future; compare the clocks",
        path.display()
    )]
    Future { path: PathBuf, seconds: u64 },
    #[error(
        "{} is refused: it is {seconds} s older than the demand read before", path.display()
    )]
    Older { path: PathBuf, seconds: u64 },
}

/// The demand file and the last valid demand read from it.
#[derive(Debug)]
pub struct DemandFile {
    path: PathBuf,
    /// Number of update intervals after which a demand is stale.
    stale_after: u64,
    last: Option<Demand>,
    finished_since: u64,
}

impl DemandFile {
    /// Polls `path`, whose demands are stale after `stale_after` of their update intervals.
    pub fn of(path: &Path, stale_after: u32) -> Self {
        Self {
            path: path.to_owned(),
            stale_after: stale_after.into(),
            last: None,
            finished_since: 0,
        }
    }

    /// The last valid demand.
    pub fn last(&self) -> Option<&Demand> {
        self.last.as_ref()
    }

    /// Reads the file. On an error the last valid demand stays.
    pub fn poll(&mut self, now: u64) -> Result<(), DemandFileError> {
        let path = || self.path.clone();
        let demand = Demand::read(&read_private(&self.path)?).map_err(|source| {
            DemandFileError::Refused {
                path: path(),
                source,
            }
        })?;
        if demand.written_at > now.saturating_add(MAX_CLOCK_AHEAD) {
            let seconds = demand.written_at - now;
            return Err(DemandFileError::Future {
                path: path(),
                seconds,
            });
        }
        if let Some(last) = &self.last
            && demand.written_at < last.written_at
        {
            let seconds = last.written_at - demand.written_at;
            return Err(DemandFileError::Older {
                path: path(),
                seconds,
            });
        }
        let previous = self.last.as_ref().map(|last| last.status);
        if demand.status == Status::Finished && previous != Some(Status::Finished) {
            self.finished_since = now;
        }
        self.last = Some(demand);
        Ok(())
    }

    /// The status at `now`.
    pub fn status(&self, now: u64) -> DemandStatus<'_> {
        match &self.last {
            None => DemandStatus::Unread,
            Some(last) if last.status == Status::Finished => {
                DemandStatus::Finished(self.finished_since)
            }
            Some(last) if now > last.written_at + self.stale_after * last.update_interval => {
                DemandStatus::Stale
            }
            Some(last) => DemandStatus::Fresh(last),
        }
    }
}

/// Reads a file that only its owner or root can have written, up to one byte above the maximum
/// size.
fn read_private(path: &Path) -> Result<Vec<u8>, DemandFileError> {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => DemandFileError::Missing(path.to_owned()),
        _ => DemandFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    // Opening a pipe without a writer must not block.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(DemandFileError::NotAFile(path.to_owned()));
    }
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(DemandFileError::Owner {
            path: path.to_owned(),
            owner,
        });
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(DemandFileError::Writable(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use worker_demand::{Worker, to_lisp};

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

    fn world() -> (tempfile::TempDir, PathBuf, DemandFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demand");
        let demand_file = DemandFile::of(&path, 3);
        (dir, path, demand_file)
    }

    fn fresh(demand_file: &DemandFile, now: u64) -> Option<u32> {
        match demand_file.status(now) {
            DemandStatus::Fresh(demand) => Some(demand.needed),
            _ => None,
        }
    }

    #[test]
    fn the_last_good_reading_holds_until_it_is_stale() {
        let (_dir, path, mut demand_file) = world();
        let error = demand_file.poll(NOW).unwrap_err();
        assert!(matches!(error, DemandFileError::Missing(_)), "{error}");
        assert!(matches!(demand_file.status(NOW), DemandStatus::Unread));
        fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
        demand_file.poll(NOW).unwrap();
        assert_eq!(fresh(&demand_file, NOW), Some(5));
        // Half a file, a hostile one, none: the last valid demand stays.
        let whole = to_lisp(&demand(NOW + 10, 9));
        for bad in [
            &whole[..whole.len() / 2],
            "#.(quit)",
            "(:slaves-needed -1)",
            "",
        ] {
            fs::write(&path, bad).unwrap();
            let error = demand_file.poll(NOW + 10).unwrap_err().to_string();
            assert!(error.contains("/demand is refused: "), "{error}");
            assert_eq!(fresh(&demand_file, NOW + 10), Some(5));
        }
        fs::remove_file(&path).unwrap();
        demand_file.poll(NOW + 20).unwrap_err();
        assert_eq!(fresh(&demand_file, NOW + 300), Some(5));
        assert!(matches!(demand_file.status(NOW + 301), DemandStatus::Stale));
        fs::write(&path, to_lisp(&demand(NOW + 310, 2))).unwrap();
        demand_file.poll(NOW + 310).unwrap();
        assert_eq!(fresh(&demand_file, NOW + 310), Some(2));
    }

    #[test]
    fn what_was_never_fresh_is_stale_at_once() {
        let (_dir, path, mut demand_file) = world();
        fs::write(&path, to_lisp(&demand(NOW - 400, 5))).unwrap();
        demand_file.poll(NOW).unwrap();
        assert!(matches!(demand_file.status(NOW), DemandStatus::Stale));
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        let (_dir, path, mut demand_file) = world();
        fs::write(&path, to_lisp(&demand(NOW + 61, 5))).unwrap();
        let error = demand_file.poll(NOW).unwrap_err().to_string();
        assert!(
            error.contains("61 s in the future; compare the clocks"),
            "{error}"
        );
        fs::write(&path, to_lisp(&demand(NOW + 60, 5))).unwrap();
        demand_file.poll(NOW).unwrap();
        fs::write(&path, to_lisp(&demand(NOW + 50, 9))).unwrap();
        let error = demand_file.poll(NOW).unwrap_err().to_string();
        assert!(
            error.contains("10 s older than the demand read before"),
            "{error}"
        );
        assert_eq!(fresh(&demand_file, NOW), Some(5));
    }

    #[test]
    fn finished_holds_for_ever_and_begins_when_it_is_seen() {
        let (_dir, path, mut demand_file) = world();
        let over = Demand {
            status: Status::Finished,
            ..demand(NOW - 9999, 5)
        };
        fs::write(&path, to_lisp(&over)).unwrap();
        for now in [NOW, NOW + 10] {
            demand_file.poll(now).unwrap();
            assert!(matches!(
                demand_file.status(now),
                DemandStatus::Finished(NOW)
            ));
        }
        fs::write(&path, to_lisp(&demand(NOW + 20, 1))).unwrap();
        demand_file.poll(NOW + 20).unwrap();
        assert_eq!(fresh(&demand_file, NOW + 20), Some(1), "a new computation");
    }

    #[test]
    fn only_a_file_that_nobody_else_could_write_is_read() {
        let (dir, path, mut demand_file) = world();
        fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
        for mode in [0o664, 0o646] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = demand_file.poll(NOW).unwrap_err().to_string();
            assert!(error.contains("chmod go-w"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(
            demand_file.poll(NOW),
            Err(DemandFileError::NotAFile(_))
        ));
        fs::remove_dir(&path).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        symlink(&pipe, &path).unwrap();
        assert!(matches!(
            demand_file.poll(NOW),
            Err(DemandFileError::NotAFile(_))
        ));
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&path).unwrap();
            fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let error = demand_file.poll(NOW).unwrap_err().to_string();
            assert!(error.contains("uid 12345"), "{error}");
        }
    }
}
