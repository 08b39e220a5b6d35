//! The log of `dispatch up`: one file per program, and one with the lines of all programs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host_state::file::append_private;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::UpError;

/// Maximum size of a log file before it is rotated to `.1`, which replaces an earlier one.
const MAX_LOG_BYTES: u64 = 32 << 20;

/// The log of all programs. Clones write to the same files.
#[derive(Debug, Clone)]
pub struct Log {
    all: Arc<Mutex<LogFile>>,
    dir: PathBuf,
}

/// The log of one program.
#[derive(Debug, Clone)]
pub struct ProgramLog {
    name: String,
    own: Arc<Mutex<LogFile>>,
    all: Arc<Mutex<LogFile>>,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Log {
    /// Opens `all`, the file with all lines. The files of the programs are in `dir`.
    pub fn open(all: &Path, dir: &Path) -> Result<Self, UpError> {
        Ok(Self {
            all: Arc::new(Mutex::new(LogFile::open(all)?)),
            dir: dir.to_owned(),
        })
    }

    /// The log of the program `name`.
    pub fn program(&self, name: &str) -> Result<ProgramLog, UpError> {
        let path = self.dir.join(format!("{name}.log"));
        Ok(ProgramLog {
            name: name.to_owned(),
            own: Arc::new(Mutex::new(LogFile::open(&path)?)),
            all: self.all.clone(),
        })
    }
}

impl ProgramLog {
    /// Appends a line that the program wrote.
    pub fn append_line(&self, line: &[u8]) {
        let whole = [format!("{:<14} ", self.name).as_bytes(), line].concat();
        for (file, line) in [(&self.own, line), (&self.all, &whole)] {
            // Each write is a whole line, so the file is consistent after a panic. A full disk must
            // not stop the programs, so errors are ignored and the lines are lost.
            let _ = file.lock().append(line);
        }
    }

    /// Appends a line of `dispatch up` about the program.
    pub fn append_note(&self, text: &str) {
        let line = format!("{:.6} dispatch up: {text}", Timestamp::now());
        self.append_line(line.as_bytes());
    }
}

impl LogFile {
    fn open(path: &Path) -> Result<Self, UpError> {
        let open = || -> io::Result<Self> {
            let file = append_private(path)?;
            Ok(Self {
                path: path.to_owned(),
                size: file.metadata()?.len(),
                file,
            })
        };
        open().map_err(|source| UpError::Log {
            path: path.to_owned(),
            source,
        })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size > MAX_LOG_BYTES {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            fs::rename(&self.path, aside)?;
            self.file = append_private(&self.path)?;
            self.size = 0;
        }
        let whole = [line, b"\n"].concat();
        self.file.write_all(&whole)?;
        self.size += whole.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_to_the_programs_file_and_to_the_one_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let all = dir.path().join("log");
        let log = Log::open(&all, dir.path()).unwrap();
        let (a, b) = (log.program("a").unwrap(), log.program("b").unwrap());
        a.append_line(b"one");
        b.append_line(b"two");
        assert_eq!(
            fs::read_to_string(dir.path().join("a.log")).unwrap(),
            "one\n"
        );
        let both = fs::read_to_string(&all).unwrap();
        assert_eq!(both, "a              one\nb              two\n");
    }

    #[test]
    fn a_file_that_grew_large_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::create(&path).unwrap();
        file.set_len(MAX_LOG_BYTES + 1).unwrap();
        let mut log = LogFile::open(&path).unwrap();
        log.append(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        assert!(dir.path().join("log.1").exists());
    }
}
