//! The escaping of names in manifests: white space, control characters, `:` and `\` are written as
//! `\ooo`.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::error::Problem;

fn needs_escape(byte: u8) -> bool {
    byte <= b' ' || byte == b':' || byte == b'\\'
}

/// Displays a name as escaped in a manifest.
pub(super) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == "." {
            // As a file name, `.` marks an empty directory; readers expect it escaped.
            return f.write_str("\\056");
        }
        let mut rest = self.0;
        // Escaped bytes are ASCII, so a split there is at a character boundary.
        while let Some(at) = rest.bytes().position(needs_escape) {
            f.write_str(&rest[..at])?;
            write!(f, "\\{:03o}", rest.as_bytes()[at])?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

/// Displays a stream name as escaped in a manifest.
pub(super) struct EscapedStream<'a>(pub &'a str);

impl fmt::Display for EscapedStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.strip_prefix('.') {
            Some(rest) => {
                f.write_char('.')?;
                Escaped(rest).fmt(f)
            }
            None => Escaped(self.0).fmt(f),
        }
    }
}

/// Unescapes a name.
pub(super) fn unescape(text: &str) -> Result<Cow<'_, str>, Problem> {
    if text.bytes().any(|b| b <= b' ') {
        return Err(Problem::RawControl);
    }
    if !text.contains('\\') {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'\\' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] = tail else {
            return Err(Problem::Escape);
        };
        bytes.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
        rest = tail;
    }
    let text = String::from_utf8(bytes).map_err(|_| Problem::NotUtf8)?;
    Ok(Cow::Owned(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_escaped_as_the_sdks_do() {
        let cases = [
            ("plain.txt", "plain.txt"),
            ("two words", "two\\040words"),
            ("a:b\\c", "a\\072b\\134c"),
            ("tab\there\n", "tab\\011here\\012"),
            ("žluť", "žluť"),
            (".", "\\056"),
            (".hidden", ".hidden"),
        ];
        for (name, text) in cases {
            assert_eq!(Escaped(name).to_string(), text);
            assert_eq!(unescape(text).unwrap(), name);
        }
        assert_eq!(EscapedStream(".").to_string(), ".");
        assert_eq!(EscapedStream("./a b").to_string(), "./a\\040b");
    }

    #[test]
    fn bytes_may_be_escaped_one_by_one() {
        assert_eq!(unescape("\\303\\251\\141").unwrap(), "éa");
    }

    #[test]
    fn bad_escapes_are_refused() {
        for text in ["\\", "\\0", "\\40x", "\\400", "\\\\", "a\\9"] {
            assert_eq!(unescape(text), Err(Problem::Escape), "{text}");
        }
        assert_eq!(unescape("\\377"), Err(Problem::NotUtf8));
        assert_eq!(unescape("a\tb"), Err(Problem::RawControl));
    }

    proptest! {
        #[test]
        fn every_name_survives_escaping(name in any::<String>()) {
            let text = Escaped(&name).to_string();
            prop_assert!(!text.bytes().any(|b| b <= b' ' || b == b':'));
            prop_assert_eq!(unescape(&text).unwrap(), name);
        }

        #[test]
        fn no_text_makes_unescaping_panic(text in any::<String>()) {
            let _ = unescape(&text);
        }
    }
}
