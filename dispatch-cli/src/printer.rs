//! Prints the result of a command (text or JSON on standard output) and notes and progress bars (on
//! standard error).

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::columns;
use crate::error::CliError;
use arvados_client::visible::{visible, visible_json};

/// Output format of a command.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Whether only JSON goes to standard output.
    pub json: bool,
}

impl Output {
    /// Prints a line, whose hidden characters are replaced.
    pub fn line(&self, text: &str) -> Result<(), CliError> {
        self.bytes(format!("{}\n", visible(text)).as_bytes())
    }

    /// Prints bytes unchanged.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(CliError::Output)
    }

    /// Prints a JSON document, indented on a terminal.
    pub fn json(&self, value: &impl Serialize) -> Result<(), CliError> {
        let text = match io::stdout().is_terminal() {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        self.line(&visible_json(
            &text.map_err(|e| CliError::Output(e.into()))?,
        ))
    }

    /// Prints the JSON document, or, if text is wanted, the note on standard error.
    pub fn json_or_note(&self, value: &impl Serialize, note: &str) -> Result<(), CliError> {
        match self.json {
            true => self.json(value),
            false => {
                eprint_note(note);
                Ok(())
            }
        }
    }

    /// Prints rows in columns. On a terminal, those of `drop_order` give way until the rest fits.
    pub fn narrow_table(
        &self,
        mut header: Vec<&str>,
        mut rows: Vec<Vec<String>>,
        drop_order: &[&str],
    ) -> Result<(), CliError> {
        columns::fit(&mut header, &mut rows, drop_order, terminal_width());
        self.wide_table(&header, rows)
    }

    /// Prints rows in columns, however wide they are.
    pub fn wide_table(&self, header: &[&str], rows: Vec<Vec<String>>) -> Result<(), CliError> {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let bold = io::stdout().is_terminal() && !is_plain;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.iter().map(|title| {
            let cell = Cell::new(title);
            match bold {
                true => cell.add_attribute(Attribute::Bold),
                false => cell,
            }
        }));
        for row in rows {
            table.add_row(row.iter().map(|cell| visible(cell)));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, columns::GAP as u16));
        }
        self.bytes(format!("{}\n", table.trim_fmt().trim_end()).as_bytes())
    }
}

/// Columns of the terminal that standard output is; 0 if it is none, or does not tell.
fn terminal_width() -> usize {
    match io::stdout().is_terminal() {
        true => Table::new().width().unwrap_or(0).into(),
        false => 0,
    }
}

/// Prints a note on standard error, separate from the result for scripts.
pub fn eprint_note(text: &str) {
    write_note("", text);
}

fn write_note(prefix: &str, text: &str) {
    // An error cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "{prefix}{}", visible(text));
}

/// Prints a note in the place of a progress bar, if there is one, which is drawn anew below it.
pub fn eprint_note_over_line(text: &str) {
    match io::stderr().is_terminal() {
        true => write_note("\r\u{1b}[2K", text),
        false => eprint_note(text),
    }
}

/// A progress bar for bytes, shown on a terminal only.
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
