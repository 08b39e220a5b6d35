//! Searches the output of a program for given words. Reports the first matching line once.

/// Maximum number of bytes of a line that are searched.
const MAX_LINE_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub struct Scanner {
    words: &'static [&'static str],
    /// The current, incomplete line.
    line: Vec<u8>,
    has_found: bool,
}

impl Scanner {
    pub fn new(words: &'static [&'static str]) -> Self {
        Self {
            words,
            line: Vec::new(),
            has_found: false,
        }
    }

    /// Returns the line when these bytes complete one that has the words.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<String> {
        if self.has_found {
            return None;
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_complete) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if !is_complete {
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            self.line.clear();
            if self.words.iter().any(|words| line.contains(words)) {
                self.has_found = true;
                return Some(line);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_once_however_it_is_cut() {
        for parts in [
            &["one\ntwo barbaz three\nfoobar\n"][..],
            &["one\ntwo bar", "baz", " three\nfoob", "ar\n"],
            &["one\ntwo barbaz three", "\n", "foobar\n"],
        ] {
            let mut scanner = Scanner::new(&["foobar", "barbaz"]);
            let found: Vec<String> = parts
                .iter()
                .filter_map(|part| scanner.feed(part.as_bytes()))
                .collect();
            assert_eq!(found, ["two barbaz three"], "{parts:?}");
        }
        let mut scanner = Scanner::new(&["foobar"]);
        assert_eq!(scanner.feed(b"foo\nbar\n"), None);
        assert_eq!(scanner.feed(&vec![b'x'; 1 << 20]), None);
        assert!(scanner.line.len() <= MAX_LINE_BYTES);
        // The end of a line that is too long is not its own line.
        assert_eq!(scanner.feed(b"foobar\nfoobar\n").as_deref(), Some("foobar"));
    }
}
