//! Text for sentences: numbers with their nouns, and the output of jobs for a terminal.

use std::time::Duration;

use arvados_client::visible::visible;
use jiff::Timestamp;
use units::format_duration;

/// Maximum length of a name in the table.
const MAX_NAME_WIDTH: usize = 30;

/// `1 CPU`, `2 CPUs`.
pub fn plural(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// The time that passes between two moments: none if the second is the earlier one, as with clocks
/// that differ.
pub fn time_between(from: Timestamp, to: Timestamp) -> String {
    let passed = Duration::try_from(to.duration_since(from));
    format_duration(passed.unwrap_or_default())
}

/// A name as one line that fits the table.
pub fn shortened(name: &str) -> String {
    let name = name.replace(['\n', '\t'], " ");
    match name.chars().count() > MAX_NAME_WIDTH {
        true => name.chars().take(MAX_NAME_WIDTH - 1).chain(['…']).collect(),
        false => name,
    }
}

/// Leaves out the numbers that the standard library adds to errors of the system, like
/// " (os error 13)".
pub fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                result.push_str(rest);
            }
            _ => result.push_str(&format!(" (os error {part}")),
        }
    }
    result
}

/// The output of a job for a terminal: without the control characters that could drive it. Carriage
/// returns of progress bars stay, too.
pub fn for_terminal(output: &[u8]) -> String {
    let output = String::from_utf8_lossy(output);
    let lines: Vec<String> = output.split('\r').map(visible).collect();
    lines.join("\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_system_errors_are_left_out() {
        for (text, shown) in [
            ("no", "no"),
            ("x: Permission denied (os error 13)", "x: Permission denied"),
            ("a (os error 2), b (os error 28)", "a, b"),
            ("a (os error x) b", "a (os error x) b"),
            ("a (os error ", "a (os error "),
        ] {
            assert_eq!(without_error_numbers(text), shown);
        }
    }

    #[test]
    fn escape_sequences_lose_their_escape() {
        assert_eq!(visible("a\x1b[31mb\n"), "a\u{fffd}[31mb\n");
        let title = b"50 %\r60 %\t\x1b]0;title\x07 \xc2\x9b2J \x9b2J\n";
        let shown = for_terminal(title);
        assert_eq!(
            shown,
            "50 %\r60 %\t\u{fffd}]0;title\u{fffd} \u{fffd}2J \u{fffd}2J\n"
        );
    }
}
