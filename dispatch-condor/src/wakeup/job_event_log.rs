//! Watches the event log of this dispatcher's jobs, to learn at once when a job ends.
//!
//! HTCondor writes the log as the jobs' user. It is only a hint: `condor_q` says which job ended,
//! so nothing is lost if the log is truncated, removed or unreadable. Format: HTCondor manual, "Job
//! Event Log Codes".

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

const LOG_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Size above which the log is truncated; what was read is not needed again.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// Maximum number of bytes read in one poll.
const MAX_READ_BYTES: u64 = 1 << 20;
/// Codes of events after which a job does not run any more: evicted, terminated, executable error,
/// aborted, held, reconnect failed.
const TERMINAL_EVENTS: [&[u8]; 6] = [b"004", b"005", b"007", b"009", b"012", b"024"];

/// The log and the position up to which it was read.
#[derive(Debug)]
pub struct JobEventLog {
    path: PathBuf,
    position: Mutex<ReadPosition>,
}

/// A position in a file. Another file of the same name has another inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ReadPosition {
    inode: u64,
    offset: u64,
}

impl JobEventLog {
    /// The log in this directory; the file need not exist.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join("events.log"),
            position: Mutex::default(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the file with mode 0600, and skips what an existing file holds.
    pub fn open(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600);
        let metadata = file.open(&self.path)?.metadata()?;
        let position = ReadPosition {
            inode: metadata.ino(),
            offset: metadata.len(),
        };
        *self.position.lock() = position;
        Ok(())
    }

    /// Resolves once a job has ended since the last call. A dropped future misses no event.
    pub async fn job_ended(&self) {
        loop {
            tokio::time::sleep(LOG_POLL_INTERVAL).await;
            let before = *self.position.lock();
            let path = self.path.clone();
            let read = tokio::task::spawn_blocking(move || read_events(&path, before)).await;
            if let Ok(Ok((position, ended))) = read {
                *self.position.lock() = position;
                if ended {
                    return;
                }
            }
        }
    }
}

/// Reads from a position: the new position, and whether a terminal event lies in between. A new or
/// truncated log counts as one, because its events are unknown.
fn read_events(path: &Path, before: ReadPosition) -> io::Result<(ReadPosition, bool)> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let metadata = file.metadata()?;
    let (number, length) = (metadata.ino(), metadata.len());
    if number != before.inode || length < before.offset {
        let position = ReadPosition {
            inode: number,
            offset: length,
        };
        return Ok((position, true));
    }
    if length == before.offset {
        return Ok((before, false));
    }
    file.seek(SeekFrom::Start(before.offset))?;
    let mut new = Vec::new();
    Read::by_ref(&mut file)
        .take(MAX_READ_BYTES)
        .read_to_end(&mut new)?;
    // An incomplete line is read again.
    let whole = new
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |n| n + 1);
    let mut position = ReadPosition {
        inode: number,
        offset: before.offset + whole as u64,
    };
    let ended = new[..whole]
        .split(|byte| *byte == b'\n')
        .any(is_terminal_event);
    if position.offset >= MAX_LOG_BYTES {
        // HTCondor opens the log for appending, so it may be truncated.
        file.set_len(0)?;
        position.offset = 0;
        return Ok((position, true));
    }
    Ok((position, ended))
}

/// `005 (123.000.000) 2026-11-21 20:23:36 Job terminated.`
fn is_terminal_event(line: &[u8]) -> bool {
    TERMINAL_EVENTS
        .iter()
        .any(|number| line.starts_with(number))
        && line[3..].starts_with(b" (")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;

    fn say(path: &Path, text: &str) {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn only_the_end_of_a_job_rings() {
        let dir = tempfile::tempdir().unwrap();
        let log = JobEventLog::in_directory(dir.path());
        say(log.path(), "005 (001.000.000) of an earlier life\n");
        log.open().unwrap();
        let mut position = *log.position.lock();
        let mut ended = |text: &str| {
            say(log.path(), text);
            let (now, ended) = read_events(log.path(), position).unwrap();
            position = now;
            ended
        };
        assert!(!ended(""));
        assert!(!ended(
            "001 (007.000.000) 2026-11-21 20:23:34 Job executing\n...\n"
        ));
        assert!(!ended("\t005  -  Run Bytes\n004 no event\n00"));
        assert!(ended(
            "5 (007.000.000) 2026-11-21 20:23:34 Job terminated.\n"
        ));
        assert!(!ended("\t(1) Normal termination\n...\n"));
        assert!(ended(
            "012 (007.001.000) 2026-11-21 20:23:34 Job was held.\n...\n"
        ));
    }

    #[test]
    fn a_log_that_was_cut_removed_or_is_too_long_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let log = JobEventLog::in_directory(dir.path());
        log.open().unwrap();
        let position = *log.position.lock();
        say(log.path(), "001 (1.0.0)\n");
        let (position, ended) = read_events(log.path(), position).unwrap();
        assert!(!ended);
        File::options()
            .write(true)
            .open(log.path())
            .unwrap()
            .set_len(0)
            .unwrap();
        let (position, ended) = read_events(log.path(), position).unwrap();
        assert!(ended && position.offset == 0);
        fs::rename(log.path(), dir.path().join("events.log.1")).unwrap();
        assert!(read_events(log.path(), position).is_err());
        say(log.path(), "005 (1.0.0)\n");
        let (position, ended) = read_events(log.path(), position).unwrap();
        assert!(ended && !read_events(log.path(), position).unwrap().1);
        let long = "x".repeat(MAX_READ_BYTES as usize - 1) + "\n";
        let mut position = position;
        let emptied = (0..18).any(|_| {
            say(log.path(), &long);
            position = read_events(log.path(), position).unwrap().0;
            position.offset == 0
        });
        assert!(emptied && fs::metadata(log.path()).unwrap().len() == 0);
    }

    #[tokio::test]
    async fn ended_job_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = JobEventLog::in_directory(dir.path());
        log.open().unwrap();
        let timeout = Duration::from_millis(300);
        assert!(
            tokio::time::timeout(timeout, log.job_ended())
                .await
                .is_err()
        );
        say(log.path(), "009 (1.0.0) aborted\n");
        log.job_ended().await;
    }
}
