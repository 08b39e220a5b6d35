//! The access log: one JSON line for each response, without tokens and query strings.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use serde_json::{Value, json};
use tracing::warn;

/// Maximum number of lines that wait for a slow disk; further ones are dropped and counted.
const MAX_QUEUED_LINES: usize = 4096;

pub struct AccessLog {
    lines: SyncSender<Value>,
    dropped: AtomicU64,
}

impl AccessLog {
    /// Appends to a file, or writes to standard error for `-`. A thread writes, so that no request
    /// waits for the disk.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (lines, queue) = sync_channel(MAX_QUEUED_LINES);
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let is_file = path.as_os_str() != "-";
        let file = is_file.then(|| options.open(path)).transpose()?;
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_lines(&queue, file))?;
        Ok(AccessLog {
            lines,
            dropped: AtomicU64::new(0),
        })
    }

    pub fn record(&self, mut line: Value) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            line["dropped_before"] = json!(dropped);
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
    }
}

fn write_lines(queue: &Receiver<Value>, mut file: Option<File>) {
    let mut has_failed = false;
    for line in queue {
        let text = format!("{line}\n");
        let written = match &mut file {
            Some(file) => file.write_all(text.as_bytes()),
            None => io::stderr().write_all(text.as_bytes()),
        };
        match written {
            Ok(()) => has_failed = false,
            Err(problem) if !has_failed => {
                has_failed = true;
                warn!(error = %problem, "cannot write to the access log");
            }
            Err(_) => {}
        }
    }
}
