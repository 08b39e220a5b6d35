//! Text from elsewhere for people: names, messages and log entries of other users.
//!
//! Input: any text. Output: the same without characters that drive a terminal or reorder text. All
//! that the CLI and the subcommands of dispatchers print passes through here.

/// Whether a character can drive a terminal, or show text in another order than it has: the
/// controls, and those with the property Bidi_Control of Unicode.
fn is_hidden(c: char) -> bool {
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    is_bidi || (c.is_control() && c != '\n' && c != '\t')
}

/// Text for people, which may be from elsewhere (names, messages): hidden characters are replaced.
/// Newlines and tabs stay.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
