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

/// What is known of the starts; times in seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// When jobs were started last.
    pub last_start: Option<u64>,
    /// Until when jobs of a start with an unknown outcome may still appear.
    #[serde(rename = "doubtful_until")]
    pub uncertain_until: Option<u64>,
}

impl Starts {
    fn uncertain(now: u64, uncertainty: u64) -> Self {
        Self {
            last_start: Some(now),
            uncertain_until: Some(now + uncertainty),
        }
    }
}

/// The journal and its file.
#[derive(Debug)]
pub struct StartJournal {
    file: PathBuf,
    starts: Starts,
    /// Time after a start with an unknown outcome in which its jobs may still appear, in seconds.
    uncertainty: u64,
}

impl StartJournal {
    /// Reads the journal of an earlier overseer. An unreadable one counts as a start at `now` with
    /// an unknown outcome.
    pub fn open(dir: &Path, now: u64, uncertainty: u64) -> io::Result<Self> {
        let file = dir.join(FILE_NAME);
        let written = file::if_present(fs::read(&file))?;
        let starts = written.map_or(Starts::default(), |bytes| {
            serde_json::from_slice(&bytes).unwrap_or(Starts::uncertain(now, uncertainty))
        });
        Ok(Self {
            file,
            starts,
            uncertainty,
        })
    }

    pub fn starts(&self) -> Starts {
        self.starts
    }

    /// Records a start before it happens, with an unknown outcome.
    pub fn record_start(&mut self, now: u64) -> io::Result<()> {
        self.write(Starts::uncertain(now, self.uncertainty))
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
        let read = |journal: &StartJournal| {
            let starts = journal.starts();
            (starts.last_start, starts.uncertain_until)
        };
        let mut journal = open();
        assert_eq!(read(&journal), (None, None));
        journal.record_start(500).unwrap();
        assert_eq!(read(&open()), (Some(500), Some(620)));
        journal.record_end().unwrap();
        assert_eq!(read(&open()), (Some(500), None));
        fs::write(dir.path().join(FILE_NAME), "{\"last").unwrap();
        assert_eq!(read(&open()), (Some(1000), Some(1120)));
    }
}
