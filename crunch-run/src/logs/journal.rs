//! crunch-run.txt: what this program did and found, line by line. The same lines go to stderr.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arvados_client::ContainerUuid;

use super::write_stamp;

/// Clones write to the same file.
#[derive(Debug, Clone)]
pub struct Journal {
    file: Arc<Mutex<Option<File>>>,
    uuid: ContainerUuid,
}

impl Journal {
    pub fn new(file: File, uuid: ContainerUuid) -> Self {
        Self {
            file: Arc::new(Mutex::new(Some(file))),
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
        if let Some(file) = file.as_mut()
            && let Err(error) = file.write_all(&lines)
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
}
