//! The log files of one attempt: written to the job directory, and saved from there into a collection.

mod cap;
mod checkpoint;
mod container_json;
mod journal;
mod lines;
mod node_info;
mod pump;
mod saver;
mod scanner;
mod stamp;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use cap::Capped;
pub use checkpoint::{Checkpoints, Pace};
pub use container_json::container_json;
pub use journal::Journal;
pub use lines::Stamper;
pub use node_info::{gpu_info, node_info};
pub use pump::{Pump, Pumped};
pub use saver::{SaveError, Saver};
pub use scanner::Scanner;
pub use stamp::{now, write_stamp};

/// What crunch-run did and found.
pub const JOURNAL: &str = "crunch-run.txt";
pub const STDOUT: &str = "stdout.txt";
pub const STDERR: &str = "stderr.txt";
pub const STATISTICS: &str = "crunchstat.txt";
/// The same figures of crunch-run itself.
pub const HOST_STATISTICS: &str = "hoststat.txt";
/// What arv-mount said, where it serves collections.
pub const ARV_MOUNT: &str = "arv-mount.txt";
pub const NODE: &str = "node-info.txt";
/// What kind of machine it was, where the dispatcher says so.
pub const INSTANCE: &str = "node.json";
pub const CONTAINER: &str = "container.json";
/// The facts of the run, for programs.
pub const RESULT: &str = "result.json";

/// Everything that goes into the log collection, as far as it exists.
pub const FILES: [&str; 10] = [
    CONTAINER,
    NODE,
    INSTANCE,
    JOURNAL,
    STDOUT,
    STDERR,
    STATISTICS,
    HOST_STATISTICS,
    ARV_MOUNT,
    RESULT,
];

/// The directory of the log files.
#[derive(Debug, Clone)]
pub struct LogDir {
    path: PathBuf,
}

impl LogDir {
    /// An empty one: what an earlier attempt left there is not this attempt's log.
    pub fn create(path: &Path) -> io::Result<Self> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        crate::job_dir::make_private(path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// As it was left by another process, to go on with.
    pub fn existing(path: &Path) -> io::Result<Self> {
        crate::job_dir::make_private(path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file to append to.
    pub fn open(&self, name: &str) -> io::Result<File> {
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.file(name))
    }

    /// A file written once.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.open(name)?, content)
    }

    /// Bytes in all files.
    pub fn size(&self) -> u64 {
        FILES
            .iter()
            .filter_map(|name| fs::metadata(self.file(name)).ok())
            .map(|facts| facts.len())
            .sum()
    }
}
