//! Text for sentences: numbers with their nouns, and text from elsewhere without control
//! characters.

use std::time::Duration;

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

/// Whether a character can drive a terminal, or show text in another order than it has: the
/// controls, and those with the property Bidi_Control of Unicode.
fn is_hidden(c: char) -> bool {
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    is_bidi || (c.is_control() && c != '\n' && c != '\t')
}

/// Text for people, which may be from elsewhere (names, messages): hidden characters are replaced.
/// Newlines and tabs stay. All that `printer` prints passes through here.
pub fn visible(text: &str) -> String {
    let shown = |c| if is_hidden(c) { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// JSON text in which hidden characters are escaped.
pub fn visible_json(text: &str) -> String {
    let escaped = |c| match is_hidden(c) {
        // All of them have four digits.
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    match text.contains(is_hidden) {
        true => text.chars().map(escaped).collect(),
        false => text.to_owned(),
    }
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

    proptest::proptest! {
        #[test]
        fn json_keeps_its_meaning_and_shows_all_of_it(text: String, hidden in "[\u{0}-\u{9f}\u{200e}-\u{206f}]{0,4}") {
            let value = serde_json::json!({"name": text + &hidden});
            let shown = visible_json(&value.to_string());
            proptest::prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&shown).unwrap(), &value);
            proptest::prop_assert_eq!(&visible(&shown), &shown);
        }
    }

    #[test]
    fn what_would_reorder_text_is_shown() {
        assert_eq!(visible("a\u{202e}b\u{2067}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(
            visible("caf\u{e9} \u{5d0} \u{200d}"),
            "caf\u{e9} \u{5d0} \u{200d}"
        );
        assert_eq!(
            visible_json("\"\u{9b}\u{202e}\u{7f}\""),
            r#""\u009b\u202e\u007f""#
        );
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
