//! Writes crunch-run.txt, the log of crunch-run's own actions. The same lines go to stderr.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use arvados_client::ContainerUuid;
use parking_lot::Mutex;

use super::write_stamp;

/// Maximum number of bytes buffered while the disk is full.
const MAX_PENDING_BYTES: usize = 64 << 10;

/// The log of one run. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct RunLog {
    file: Arc<Mutex<Option<BufferedFile>>>,
    uuid: ContainerUuid,
}

/// A file with lines that could not be written yet.
#[derive(Debug)]
struct BufferedFile {
    file: File,
    pending: Vec<u8>,
}

impl BufferedFile {
    /// Writes lines. Bytes that cannot be written are kept for the next call, in case the disk has
    /// space again.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.pending.len() + lines.len() <= MAX_PENDING_BYTES {
            self.pending.extend_from_slice(lines);
        }
        while !self.pending.is_empty() {
            let count = match self.file.write(&self.pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            self.pending.drain(..count);
        }
        Ok(())
    }
}

impl RunLog {
    pub fn new(file: File, uuid: ContainerUuid) -> Self {
        Self {
            file: Arc::new(Mutex::new(Some(BufferedFile {
                file,
                pending: Vec::new(),
            }))),
            uuid,
        }
    }

    /// Writes each line of the text with a timestamp.
    pub fn write(&self, text: impl AsRef<str>) {
        let text = text.as_ref().trim_end();
        let (mut lines, mut stderr_lines) = (Vec::new(), Vec::new());
        for line in text.split('\n') {
            write_stamp(&mut lines);
            lines.extend_from_slice(line.as_bytes());
            lines.push(b'\n');
            stderr_lines.extend_from_slice(format!("{} {line}\n", self.uuid).as_bytes());
        }
        let mut file = self.file.lock();
        if let Some(buffered) = file.as_mut()
            && let Err(error) = buffered.write(&lines)
        {
            let _ = writeln!(
                io::stderr(),
                "{} crunch-run.txt cannot be written: {error}",
                self.uuid
            );
        }
        drop(file);
        // There is nowhere to report a broken stderr to.
        let _ = io::stderr().write_all(&stderr_lines);
    }

    /// Writes the last line of the file. Later lines go to stderr only, because readers take the
    /// last line of the file for the container's final state.
    pub fn close(&self, last: &str) {
        self.write(last);
        self.file.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_stays_the_last() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let run_log = RunLog::new(file.reopen().unwrap(), ContainerUuid::generate("zzzzz"));
        run_log.write("one\ntwo\n");
        run_log.clone().close("Complete");
        run_log.write("too late");
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| &line[31..]).collect();
        assert_eq!(lines, ["one", "two", "Complete"]);
    }

    #[test]
    fn what_a_full_disk_does_not_take_waits_within_bounds() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut buffered = BufferedFile {
            file: full,
            pending: Vec::new(),
        };
        for line in ["one\n", "two\n"] {
            assert!(buffered.write(line.as_bytes()).is_err());
        }
        assert!(buffered.write(&[b'x'; MAX_PENDING_BYTES]).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        buffered.file = file.reopen().unwrap();
        buffered.write(b"three\n").unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "one\ntwo\nthree\n");
    }
}
