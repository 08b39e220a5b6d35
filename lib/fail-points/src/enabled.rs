//! Fail points of a test build. State is in files, because several processes share a count.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// Interval at which a waiting process checks the `.hold` file.
const HOLD_POLL_INTERVAL: Duration = Duration::from_millis(5);

pub fn reach(name: &str, variable: &str) {
    let Some(dir) = std::env::var_os(variable).map(PathBuf::from) else {
        return;
    };
    append_line(&dir.join("passed"), name);
    let hold = dir.join(format!("{name}.hold"));
    while hold.exists() {
        std::thread::sleep(HOLD_POLL_INTERVAL);
    }
    if count_down(&dir, name).unwrap_or(false) {
        // A process can always signal itself, so this does not return.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

/// Appends a line in one write, so that lines of several processes do not mix.
fn append_line(file: &Path, name: &str) {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let line = format!("{name} {} {}\n", std::process::id(), arguments.join(" "));
    let file = OpenOptions::new().append(true).create(true).open(file);
    // An error is ignored: a test that needs the line fails without it.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Counts down. Returns whether the count has reached zero and the process must be killed.
///
/// The file is removed before the kill, so that the next process continues. The line in `killed` is
/// written before that, so that a test that does not find the file finds the line.
fn count_down(dir: &Path, name: &str) -> io::Result<bool> {
    let counter = dir.join(name);
    let mut file = match File::options().read(true).write(true).open(&counter) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    file.lock()?;
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
            append_line(&dir.join("killed"), name);
            fs::remove_file(counter).map(|()| true)
        }
    }
}
