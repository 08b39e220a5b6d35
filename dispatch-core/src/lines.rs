//! Texts of others in a line of ours.

/// Its words: what is between blanks, line breaks and whatever drives a terminal.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| !word.is_empty())
}

/// All of it in one line: messages of other programs may have several.
pub fn one_line(text: &str) -> String {
    words(text).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one() {
        assert_eq!(one_line(" a\n b\r\n\tc\u{1b}[31m "), "a b c [31m");
        assert_eq!(one_line("\n"), "");
    }
}
