//! The event log of all jobs of this dispatcher, as a bell: HTCondor writes there, as the jobs' user, when one of them
//! has ended. What it says is not believed, only condor_q is; so that nothing is lost when the log is cut, removed or
//! cannot be read. Format: HTCondor manual, "Job Event Log Codes".

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(100);
/// A longer one is emptied: nobody reads it again.
const LARGEST: u64 = 16 << 20;
/// So much is read at once.
const CHUNK: u64 = 1 << 20;
/// Numbers of the events after which a job does not run any more: evicted, ended, could not be run, removed, held, lost
/// with its machine.
const ENDS: [&[u8]; 6] = [b"004", b"005", b"007", b"009", b"012", b"024"];

/// The log, and how far it was read.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    read: Mutex<Place>,
}

/// A place in a file. Another file of the same name has another number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    file: u64,
    offset: u64,
}

impl EventLog {
    /// In this directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join("events.log"),
            read: Mutex::default(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, for nobody else to read. What is in it already is of no interest.
    pub fn open(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600);
        let facts = file.open(&self.path)?.metadata()?;
        let place = Place {
            file: facts.ino(),
            offset: facts.len(),
        };
        *self.read.lock().unwrap_or_else(|held| held.into_inner()) = place;
        Ok(())
    }

    /// Resolves once a job has ended since this was last asked. Given up half-way, it misses nothing.
    pub async fn rung(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            let before = *self.read.lock().unwrap_or_else(|held| held.into_inner());
            let path = self.path.clone();
            let looked = tokio::task::spawn_blocking(move || look(&path, before)).await;
            if let Ok(Ok((place, rings))) = looked {
                *self.read.lock().unwrap_or_else(|held| held.into_inner()) = place;
                if rings {
                    return;
                }
            }
        }
    }
}

/// Reads on from a place: where that ends, and whether there is an end of a job in between. Of a log that is new, or was
/// cut, nobody knows what was in it.
fn look(path: &Path, before: Place) -> io::Result<(Place, bool)> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let facts = file.metadata()?;
    let (number, length) = (facts.ino(), facts.len());
    if number != before.file || length < before.offset {
        let place = Place {
            file: number,
            offset: length,
        };
        return Ok((place, true));
    }
    if length == before.offset {
        return Ok((before, false));
    }
    file.seek(SeekFrom::Start(before.offset))?;
    let mut new = Vec::new();
    Read::by_ref(&mut file).take(CHUNK).read_to_end(&mut new)?;
    // Half an event is read again.
    let whole = new
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |n| n + 1);
    let mut place = Place {
        file: number,
        offset: before.offset + whole as u64,
    };
    let rings = new[..whole].split(|byte| *byte == b'\n').any(is_end);
    if place.offset >= LARGEST {
        // HTCondor appends.
        file.set_len(0)?;
        place.offset = 0;
        return Ok((place, true));
    }
    Ok((place, rings))
}

/// `005 (123.000.000) 2026-11-21 20:23:36 Job terminated.`
fn is_end(line: &[u8]) -> bool {
    ENDS.iter().any(|number| line.starts_with(number)) && line[3..].starts_with(b" (")
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
        let log = EventLog::in_directory(dir.path());
        say(log.path(), "005 (001.000.000) of an earlier life\n");
        log.open().unwrap();
        let mut place = *log.read.lock().unwrap();
        let mut rings = |text: &str| {
            say(log.path(), text);
            let (now, rings) = look(log.path(), place).unwrap();
            place = now;
            rings
        };
        assert!(!rings(""));
        assert!(!rings(
            "001 (007.000.000) 2026-11-21 20:23:34 Job executing\n...\n"
        ));
        assert!(!rings("\t005  -  Run Bytes\n004 no event\n00"));
        assert!(rings(
            "5 (007.000.000) 2026-11-21 20:23:34 Job terminated.\n"
        ));
        assert!(!rings("\t(1) Normal termination\n...\n"));
        assert!(rings(
            "012 (007.001.000) 2026-11-21 20:23:34 Job was held.\n...\n"
        ));
    }

    #[test]
    fn a_log_that_was_cut_removed_or_is_too_long_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::in_directory(dir.path());
        log.open().unwrap();
        let place = *log.read.lock().unwrap();
        say(log.path(), "001 (1.0.0)\n");
        let (place, rings) = look(log.path(), place).unwrap();
        assert!(!rings);
        File::options()
            .write(true)
            .open(log.path())
            .unwrap()
            .set_len(0)
            .unwrap();
        let (place, rings) = look(log.path(), place).unwrap();
        assert!(rings && place.offset == 0);
        fs::rename(log.path(), dir.path().join("events.log.1")).unwrap();
        assert!(look(log.path(), place).is_err());
        say(log.path(), "005 (1.0.0)\n");
        let (place, rings) = look(log.path(), place).unwrap();
        assert!(rings && !look(log.path(), place).unwrap().1);
        let long = "x".repeat(CHUNK as usize - 1) + "\n";
        let mut place = place;
        let emptied = (0..18).any(|_| {
            say(log.path(), &long);
            place = look(log.path(), place).unwrap().0;
            place.offset == 0
        });
        assert!(emptied && fs::metadata(log.path()).unwrap().len() == 0);
    }

    #[tokio::test]
    async fn it_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::in_directory(dir.path());
        log.open().unwrap();
        let patience = Duration::from_millis(300);
        assert!(tokio::time::timeout(patience, log.rung()).await.is_err());
        say(log.path(), "009 (1.0.0) aborted\n");
        log.rung().await;
    }
}
