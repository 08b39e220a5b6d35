//! The points of a build for tests. Files, because the programs that share a count are several processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, getpid, kill_process};

/// How often a process that is held looks whether it may go on.
const LOOK: Duration = Duration::from_millis(5);

pub fn pass(name: &str) {
    let Some(dir) = std::env::var_os(super::VARIABLE).map(PathBuf::from) else {
        return;
    };
    note(&dir.join("passed"), name);
    let hold = dir.join(format!("{name}.hold"));
    while hold.exists() {
        std::thread::sleep(LOOK);
    }
    if is_the_last(&dir, name).unwrap_or(false) {
        // It has a pid and may signal itself: nothing can fail, and nothing comes after it.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

/// One write, so that lines of several processes do not mix.
fn note(file: &Path, name: &str) {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let line = format!("{name} {} {}\n", std::process::id(), arguments.join(" "));
    let file = OpenOptions::new().append(true).create(true).open(file);
    // A test that reads the notes misses this one, and says so.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Counts down. The file is gone before the process is, so that whoever is started next passes; and the death is
/// noted before that, so that a test that finds the file gone also finds the note.
fn is_the_last(dir: &Path, name: &str) -> io::Result<bool> {
    let counter = dir.join(name);
    let mut file = match File::options().read(true).write(true).open(&counter) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    flock(&file, FlockOperation::LockExclusive)?;
    if file.metadata()?.nlink() == 0 {
        return Ok(false);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    match text.trim().parse::<u32>() {
        Ok(left @ 2..) => {
            file.seek(SeekFrom::Start(0))?;
            file.set_len(0)?;
            write!(file, "{}", left - 1)?;
            Ok(false)
        }
        _ => {
            note(&dir.join("killed"), name);
            fs::remove_file(counter).map(|()| true)
        }
    }
}
