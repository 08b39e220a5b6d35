//! What an overseer must still know after it was killed: when it started jobs last, and whether that came to a clear
//! end. Which jobs there are the scheduler knows.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// In the overseer's directory.
const FILE: &str = "starts.json";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Notes {
    last_start: Option<u64>,
    doubtful_until: Option<u64>,
}

/// The notes, and where they are kept.
#[derive(Debug)]
pub struct Memory {
    file: PathBuf,
    notes: Notes,
}

impl Memory {
    /// As an earlier overseer left it. What cannot be read is as after a start that may have happened just now.
    pub fn open(dir: &Path, now: u64, doubt: u64) -> io::Result<Self> {
        let file = dir.join(FILE);
        let notes = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or(Notes {
                last_start: Some(now),
                doubtful_until: Some(now + doubt),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Notes::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { file, notes })
    }

    /// When jobs were started last, in seconds since 1970.
    pub fn last_start(&self) -> Option<u64> {
        self.notes.last_start
    }

    /// Until when jobs of a start without a clear answer may still come.
    pub fn doubtful_until(&self) -> Option<u64> {
        self.notes.doubtful_until
    }

    /// To be noted before a start: if it is the last thing this overseer does, nobody knows how it ended.
    pub fn begin(&mut self, now: u64, doubt: u64) -> io::Result<()> {
        self.keep(Notes {
            last_start: Some(now),
            doubtful_until: Some(now + doubt),
        })
    }

    /// The start came to a clear end.
    pub fn end(&mut self) -> io::Result<()> {
        self.keep(Notes {
            doubtful_until: None,
            ..self.notes
        })
    }

    fn keep(&mut self, notes: Notes) -> io::Result<()> {
        self.notes = notes;
        let fresh = self.file.with_extension("new");
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut new = options.open(&fresh)?;
        new.write_all(&serde_json::to_vec(&self.notes)?)?;
        new.sync_all()?;
        fs::rename(&fresh, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_doubtful_until_its_end_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Memory::open(dir.path(), 1000, 120).unwrap();
        let said = |memory: &Memory| (memory.last_start(), memory.doubtful_until());
        let mut memory = open();
        assert_eq!(said(&memory), (None, None));
        memory.begin(500, 120).unwrap();
        assert_eq!(said(&open()), (Some(500), Some(620)));
        memory.end().unwrap();
        assert_eq!(said(&open()), (Some(500), None));
        fs::write(dir.path().join(FILE), "{\"last").unwrap();
        assert_eq!(said(&open()), (Some(1000), Some(1120)));
    }
}
