//! Prints lines of a log: those of stderr.txt on standard error, all others on standard output.

use std::io::{IsTerminal, Write};

use serde_json::json;

use crate::error::CliError;
use crate::log_line::Line;
use crate::printer::Output;
use crate::text::for_terminal;

pub struct LinePrinter {
    /// Whether each line begins with its time.
    pub timestamps: bool,
    pub out: Output,
}

impl LinePrinter {
    pub fn print(&mut self, file: &str, line: Line<'_>) -> Result<(), CliError> {
        if self.out.json {
            let text = String::from_utf8_lossy(line.text);
            return self.out.json(
                &json!({"file": file, "time": line.time, "text": text, "ended": line.ended}),
            );
        }
        let mut bytes = Vec::with_capacity(line.text.len() + 40);
        if let (true, Some(time)) = (self.timestamps, line.time) {
            bytes.extend_from_slice(time.as_bytes());
            bytes.push(b' ');
        }
        bytes.extend_from_slice(line.text);
        if line.ended {
            bytes.push(b'\n');
        }
        let is_terminal = match file {
            "stderr.txt" => std::io::stderr().is_terminal(),
            _ => std::io::stdout().is_terminal(),
        };
        if is_terminal {
            bytes = for_terminal(&bytes).into_bytes();
        }
        if file == "stderr.txt" {
            return std::io::stderr()
                .lock()
                .write_all(&bytes)
                .map_err(CliError::Output);
        }
        self.out.bytes(&bytes)
    }
}
