//! The log files of one attempt: written to the job directory, and uploaded into a collection.

mod checkpoint;
mod container_json;
mod node_info;
mod pump;
mod run_log;
mod scanner;
mod timestamp;
mod timestamped_lines;
mod truncate;
mod uploader;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use host_state::file::{append_private, create_private_dir, remove_tree};

pub use checkpoint::{Checkpoints, SavePolicy};
pub use container_json::container_json;
pub use node_info::{gpu_info, node_info};
pub use pump::{Pump, PumpResult};
pub use run_log::RunLog;
pub use scanner::Scanner;
pub use timestamp::{now, write_stamp};
pub use timestamped_lines::Timestamper;
pub use truncate::TruncatingWriter;
pub use uploader::{LogUploader, SaveError};

/// Log of crunch-run's own actions.
pub const RUN_LOG: &str = "crunch-run.txt";
pub const STDOUT: &str = "stdout.txt";
pub const STDERR: &str = "stderr.txt";
pub const STATISTICS: &str = "crunchstat.txt";
/// Resource use of crunch-run itself.
pub const HOST_STATISTICS: &str = "hoststat.txt";
/// Output of arv-mount.
pub const ARV_MOUNT: &str = "arv-mount.txt";
pub const NODE: &str = "node-info.txt";
/// Instance type of the node, if the dispatcher reports it.
pub const INSTANCE: &str = "node.json";
pub const CONTAINER: &str = "container.json";
/// Result of the run, for programs.
pub const RESULT: &str = "result.json";

/// All files of the log collection. Missing files are skipped.
pub const FILES: [&str; 10] = [
    CONTAINER,
    NODE,
    INSTANCE,
    RUN_LOG,
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
    /// Creates an empty directory. Logs of an earlier attempt are removed.
    pub fn create(path: &Path) -> io::Result<Self> {
        remove_tree(path)?;
        Self::existing(path)
    }

    /// Opens the directory that another process left.
    pub fn existing(path: &Path) -> io::Result<Self> {
        create_private_dir(path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file for appending.
    pub fn open(&self, name: &str) -> io::Result<File> {
        append_private(&self.file(name))
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.open(name)?, content)
    }

    /// Total size of all files in bytes.
    pub fn size(&self) -> u64 {
        FILES
            .iter()
            .filter_map(|name| fs::metadata(self.file(name)).ok())
            .map(|facts| facts.len())
            .sum()
    }
}
