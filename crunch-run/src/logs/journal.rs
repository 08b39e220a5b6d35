//! crunch-run.txt: what this program did and found, line by line. The same lines go to stderr.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arvados_client::ContainerUuid;

use super::write_stamp;

/// What is kept in memory while the disk is full.
const MOST_WAITING: usize = 64 << 10;

/// Clones write to the same file.
#[derive(Debug, Clone)]
pub struct Journal {
    file: Arc<Mutex<Option<Page>>>,
    uuid: ContainerUuid,
}

/// The file, and what it could not take yet.
#[derive(Debug)]
struct Page {
    file: File,
    waiting: Vec<u8>,
}

impl Page {
    /// Whatever cannot be written waits for the next time: a full disk may have room again by then.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.waiting.len() + lines.len() <= MOST_WAITING {
            self.waiting.extend_from_slice(lines);
        }
        while !self.waiting.is_empty() {
            let count = match self.file.write(&self.waiting) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            self.waiting.drain(..count);
        }
        Ok(())
    }
}

impl Journal {
    pub fn new(file: File, uuid: ContainerUuid) -> Self {
        Self {
            file: Arc::new(Mutex::new(Some(Page {
                file,
                waiting: Vec::new(),
            }))),
            uuid,
        }
    }

    /// Each line of the text becomes a line with its time.
    pub fn say(&self, text: impl AsRef<str>) {
        let text = text.as_ref().trim_end();
        let (mut lines, mut spoken) = (Vec::new(), Vec::new());
        for line in text.split('\n') {
            write_stamp(&mut lines);
            lines.extend_from_slice(line.as_bytes());
            lines.push(b'\n');
            spoken.extend_from_slice(format!("{} {line}\n", self.uuid).as_bytes());
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = file.as_mut()
            && let Err(error) = page.write(&lines)
        {
            let _ = writeln!(
                io::stderr(),
                "{} crunch-run.txt cannot be written: {error}",
                self.uuid
            );
        }
        drop(file);
        // There is nowhere to report a broken stderr to.
        let _ = io::stderr().write_all(&spoken);
    }

    /// The last line; what is said later goes to stderr only, because readers take the last line of the
    /// file for the container's final state.
    pub fn close(&self, last: &str) {
        self.say(last);
        self.file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_stays_the_last() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let journal = Journal::new(file.reopen().unwrap(), ContainerUuid::generate("zzzzz"));
        journal.say("one\ntwo\n");
        journal.clone().close("Complete");
        journal.say("too late");
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| &line[31..]).collect();
        assert_eq!(lines, ["one", "two", "Complete"]);
    }

    #[test]
    fn what_a_full_disk_does_not_take_waits_within_bounds() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut page = Page {
            file: full,
            waiting: Vec::new(),
        };
        for line in ["one\n", "two\n"] {
            assert!(page.write(line.as_bytes()).is_err());
        }
        assert!(page.write(&[b'x'; MOST_WAITING]).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        page.file = file.reopen().unwrap();
        page.write(b"three\n").unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "one\ntwo\nthree\n");
    }
}
