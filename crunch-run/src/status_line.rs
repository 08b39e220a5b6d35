//! Writes the status line, by which a dispatcher learns why this process ends.

use std::io::{self, IsTerminal, Write};

use crunch_contract::StatusLine;

/// Writes one line to stderr, unless stderr is a terminal.
pub fn print(status: &StatusLine) {
    let mut stderr = io::stderr().lock();
    if !stderr.is_terminal() {
        // There is nowhere to report a broken stderr to.
        let _ = writeln!(stderr, "{status}");
    }
}
