//! Logs, once each, what scheduler commands write to stderr although they succeed.
//!
//! Whether a command succeeded is judged by its exit status and by whether its answer is complete,
//! never by words on stderr: a submit host with a harmless mistake in its configuration prints
//! "error:" with every listing.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Maximum number of different lines that are logged, and their length in bytes.
const MAX_LINES: usize = 100;
const MAX_LINE_BYTES: usize = 500;

static LOGGED: Mutex<Lines> = Mutex::new(Lines(BTreeSet::new()));

/// The lines that were logged, with a mark in place of each number.
#[derive(Debug)]
struct Lines(BTreeSet<String>);

/// Logs the lines of stderr that `program` has not written before in this process.
pub fn log_once<'a>(program: &str, stderr: impl Iterator<Item = &'a str>) {
    let mut logged = LOGGED.lock();
    for line in logged.take_new(program, stderr) {
        tracing::warn!(
            program,
            stderr = line,
            event = "scheduler_command_stderr",
            "a scheduler command succeeded and wrote to stderr; this is logged once and ignored"
        );
    }
}

impl Lines {
    fn take_new<'a>(
        &mut self,
        program: &str,
        stderr: impl Iterator<Item = &'a str>,
    ) -> Vec<&'a str> {
        let lines = stderr.map(|line| {
            let line = line.trim();
            &line[..line.floor_char_boundary(MAX_LINE_BYTES)]
        });
        let is_new = |line: &&str| {
            !line.is_empty()
                && self.0.len() < MAX_LINES
                && self
                    .0
                    .insert(format!("{program} {}", without_numbers(line)))
        };
        lines.filter(is_new).collect()
    }
}

fn without_numbers(line: &str) -> String {
    let parts = line.split(|c: char| c.is_ascii_digit());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join("#")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_logged_once_whatever_its_numbers() {
        let mut lines = Lines(BTreeSet::new());
        let first = "squeue: error: NodeNames=n1 CPUs=7\n\n warning: x\n";
        assert_eq!(
            lines.take_new("squeue", first.lines()),
            ["squeue: error: NodeNames=n1 CPUs=7", "warning: x"]
        );
        let again = "squeue: error: NodeNames=n12 CPUs=16\nwarning: x\nwarning: y";
        assert_eq!(lines.take_new("squeue", again.lines()), ["warning: y"]);
        assert_eq!(
            lines.take_new("sinfo", "warning: x".lines()),
            ["warning: x"]
        );
        for letter in 0..2 * MAX_LINES {
            lines.take_new("sinfo", "z".repeat(letter).lines());
        }
        assert_eq!(lines.0.len(), MAX_LINES);
    }
}
