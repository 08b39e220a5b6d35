//! Prints lines of a log: those of stderr.txt on standard error, all others on standard output.
//! What is not a terminal gets every byte of the log unchanged.

use std::io::{IsTerminal, Write};

use serde_json::json;

use crate::error::CliError;
use crate::log_line::Line;
use crate::printer::{Output, eprint_note};
use crate::text::for_terminal;

pub struct LinePrinter {
    /// Whether each line begins with its time.
    timestamps: bool,
    out: Output,
    /// Whether the last line on standard output has not ended.
    is_out_in_line: bool,
    /// The same on standard error.
    is_error_in_line: bool,
}

impl LinePrinter {
    pub fn new(timestamps: bool, out: Output) -> Self {
        Self {
            timestamps,
            out,
            is_out_in_line: false,
            is_error_in_line: false,
        }
    }

    /// Ends the last line on a terminal, and on standard error if a note of this program follows.
    pub fn finish(self, is_followed_by_note: bool) -> Result<(), CliError> {
        if self.is_out_in_line && std::io::stdout().is_terminal() {
            return self.out.bytes(b"\n");
        }
        if self.is_error_in_line && (is_followed_by_note || std::io::stderr().is_terminal()) {
            eprint_note("");
        }
        Ok(())
    }

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
        let (is_terminal, is_in_line) = match file {
            "stderr.txt" => (std::io::stderr().is_terminal(), &mut self.is_error_in_line),
            _ => (std::io::stdout().is_terminal(), &mut self.is_out_in_line),
        };
        *is_in_line = !line.ended;
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
