//! What a command prints: text or JSON on standard output, remarks on standard error.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

/// How to print.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Only JSON goes to standard output.
    pub json: bool,
}

impl Output {
    /// One line for people or scripts.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// Anything, as it is.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(Failure::Output)
    }

    /// One JSON document, indented on a terminal.
    pub fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = match io::stdout().is_terminal() {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        self.line(&text.map_err(|e| Failure::Output(e.into()))?)
    }

    /// Rows in columns. Only on a terminal are they fitted to its width.
    pub fn table(&self, header: &[&str], rows: Vec<Vec<String>>) -> Result<(), Failure> {
        let terminal = io::stdout().is_terminal();
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(match terminal {
            true => ContentArrangement::Dynamic,
            false => ContentArrangement::Disabled,
        });
        table.set_header(header.iter().map(|title| {
            let cell = Cell::new(title);
            match terminal {
                true => cell.add_attribute(Attribute::Bold),
                false => cell,
            }
        }));
        for row in rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        self.line(table.trim_fmt().trim_end())
    }
}

/// A remark that is no result: to standard error, so that scripts are not disturbed.
pub fn note(text: &str) {
    // Nobody to tell if this fails.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A bar for bytes, on a terminal only.
pub fn progress(total: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(
        Some(total),
        match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        },
    );
    let style = ProgressStyle::with_template(
        "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

/// Text from elsewhere (names, messages) with nothing in it that could drive a terminal.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c.is_control() && c != '\n' && c != '\t' {
            true => '\u{fffd}',
            false => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_lose_their_escape() {
        assert_eq!(plain("a\x1b[31mb\n"), "a\u{fffd}[31mb\n");
    }
}
