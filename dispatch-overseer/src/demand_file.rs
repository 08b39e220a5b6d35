//! Polls the demand file. In: its path. Out: the status of the last valid demand, which stays valid
//! until it is stale.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use worker_demand::{Demand, MAX_FILE_BYTES, Status};

use crate::decide::DemandStatus;

/// Maximum time of a demand in the future, in seconds: clocks differ.
const MAX_CLOCK_AHEAD: u64 = 60;

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

    /// Reads the file. On an error, which is one sentence, the last valid demand stays.
    pub fn poll(&mut self, now: u64) -> Result<(), String> {
        let refused = |why: String| format!("{} is refused: {why}", self.path.display());
        let demand = Demand::read(&read_private(&self.path)?);
        let demand = demand.map_err(|error| refused(error.to_string()))?;
        if demand.written_at > now.saturating_add(MAX_CLOCK_AHEAD) {
            let seconds = demand.written_at - now;
            return Err(refused(format!(
                "its timestamp is {seconds} s in the future; compare the clocks"
            )));
        }
        let last = self.last.as_ref();
        if let Some(last) = last.filter(|last| demand.written_at < last.written_at) {
            let seconds = last.written_at - demand.written_at;
            return Err(refused(format!(
                "it is {seconds} s older than the demand read before"
            )));
        }
        if demand.status == Status::Finished
            && last.is_none_or(|last| last.status != Status::Finished)
        {
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
fn read_private(path: &Path) -> Result<Vec<u8>, String> {
    let name = path.display();
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no {name} yet"),
        _ => format!("{name} cannot be read: {error}"),
    };
    // Opening a pipe without a writer must not block.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(format!("{name} is not a plain file"));
    }
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(format!(
            "{name} belongs to the user with uid {owner}: the program that it names runs as you, so the file must belong to you or root"
        ));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(format!(
            "others may write {name}, and the program that it names runs as you: remove their permission with chmod go-w"
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
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
        assert!(error.starts_with("there is no "), "{error}");
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
            let error = demand_file.poll(NOW + 10).unwrap_err();
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
        let error = demand_file.poll(NOW).unwrap_err();
        assert!(
            error.contains("61 s in the future; compare the clocks"),
            "{error}"
        );
        fs::write(&path, to_lisp(&demand(NOW + 60, 5))).unwrap();
        demand_file.poll(NOW).unwrap();
        fs::write(&path, to_lisp(&demand(NOW + 50, 9))).unwrap();
        let error = demand_file.poll(NOW).unwrap_err();
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
            let error = demand_file.poll(NOW).unwrap_err();
            assert!(error.contains("chmod go-w"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = demand_file.poll(NOW).unwrap_err();
        assert!(error.ends_with("is not a plain file"), "{error}");
        fs::remove_dir(&path).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        symlink(&pipe, &path).unwrap();
        let error = demand_file.poll(NOW).unwrap_err();
        assert!(error.ends_with("is not a plain file"), "{error}");
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&path).unwrap();
            fs::write(&path, to_lisp(&demand(NOW, 5))).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let error = demand_file.poll(NOW).unwrap_err();
            assert!(error.contains("uid 12345"), "{error}");
        }
    }
}
