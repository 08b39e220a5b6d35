//! Journal of starts, in a file of the state directory: when jobs were last started, and whether
//! the outcome is known.
//!
//! An entry is written before each start, so that the next overseer knows of a start that a kill
//! interrupted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use host_state::file::{self, Durability};
use serde::{Deserialize, Serialize};

const FILE_NAME: &str = "starts.json";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Starts {
    last_start: Option<u64>,
    #[serde(rename = "doubtful_until")]
    uncertain_until: Option<u64>,
}

/// The journal and its file.
#[derive(Debug)]
pub struct StartJournal {
    file: PathBuf,
    starts: Starts,
}

impl StartJournal {
    /// Reads the journal of an earlier overseer. An unreadable one counts as a start at `now` with
    /// an unknown outcome.
    pub fn open(dir: &Path, now: u64, uncertainty: u64) -> io::Result<Self> {
        let file = dir.join(FILE_NAME);
        let starts = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or(Starts {
                last_start: Some(now),
                uncertain_until: Some(now + uncertainty),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Starts::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { file, starts })
    }

    /// When jobs were started last, in seconds since 1970.
    pub fn last_start(&self) -> Option<u64> {
        self.starts.last_start
    }

    /// Until when jobs of a start with an unknown outcome may still appear, in seconds since 1970.
    pub fn uncertain_until(&self) -> Option<u64> {
        self.starts.uncertain_until
    }

    /// Records a start before it happens, with an unknown outcome.
    pub fn record_start(&mut self, now: u64, uncertainty: u64) -> io::Result<()> {
        self.write(Starts {
            last_start: Some(now),
            uncertain_until: Some(now + uncertainty),
        })
    }

    /// Records that the outcome of the start is known.
    pub fn record_end(&mut self) -> io::Result<()> {
        self.write(Starts {
            uncertain_until: None,
            ..self.starts
        })
    }

    fn write(&mut self, starts: Starts) -> io::Result<()> {
        self.starts = starts;
        let text = serde_json::to_vec(&self.starts)?;
        file::replace(&self.file, &text, Durability::Power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_doubtful_until_its_end_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let open = || StartJournal::open(dir.path(), 1000, 120).unwrap();
        let read = |journal: &StartJournal| (journal.last_start(), journal.uncertain_until());
        let mut journal = open();
        assert_eq!(read(&journal), (None, None));
        journal.record_start(500, 120).unwrap();
        assert_eq!(read(&open()), (Some(500), Some(620)));
        journal.record_end().unwrap();
        assert_eq!(read(&open()), (Some(500), None));
        fs::write(dir.path().join(FILE_NAME), "{\"last").unwrap();
        assert_eq!(read(&open()), (Some(1000), Some(1120)));
    }
}
