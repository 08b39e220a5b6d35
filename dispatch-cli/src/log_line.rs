//! Splits log files into lines with their timestamps. In: pieces of a file. Out: lines.

use jiff::Timestamp;

/// Maximum length of a line; a longer one is passed on in pieces.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A line of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Timestamp as written in the file.
    pub time: Option<&'a str>,
    /// The text after the timestamp, without the newline.
    pub text: &'a [u8],
    /// Whether a newline followed; false for a piece of a longer line.
    pub ended: bool,
}

impl<'a> Line<'a> {
    fn read(bytes: &'a [u8], ended: bool, is_continued: bool) -> Self {
        let whole = Line {
            time: None,
            text: bytes,
            ended,
        };
        if is_continued {
            return whole;
        }
        // "2026-11-21T07:00:38.123456789Z text"
        let Some(space) = bytes.iter().take(40).position(|b| *b == b' ') else {
            return whole;
        };
        match std::str::from_utf8(&bytes[..space]) {
            Ok(time) if time.ends_with('Z') && time.parse::<Timestamp>().is_ok() => Line {
                time: Some(time),
                text: &bytes[space + 1..],
                ended,
            },
            _ => whole,
        }
    }
}

/// Splits pieces of a file into lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// Whether the beginning of the line in `rest` was passed on already.
    is_continued: bool,
}

impl Lines {
    /// Passes on every line that ends in `bytes`.
    pub fn feed<E>(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            for part in text.chunks(MAX_LINE_BYTES) {
                self.rest.extend_from_slice(part);
                if self.rest.len() >= MAX_LINE_BYTES {
                    self.emit(false, &mut sink)?;
                }
            }
            if ended {
                self.emit(true, &mut sink)?;
            }
        }
        Ok(())
    }

    /// Passes on the rest without a newline.
    pub fn finish<E>(&mut self, mut sink: impl FnMut(Line<'_>) -> Result<(), E>) -> Result<(), E> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => self.emit(true, &mut sink),
        }
    }

    fn emit<E>(
        &mut self,
        ended: bool,
        sink: &mut impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = sink(Line::read(&self.rest, ended, self.is_continued));
        self.is_continued = !ended;
        self.rest.clear();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<(Option<String>, String, bool)> {
        let mut lines = Lines::default();
        let mut got = Vec::new();
        let mut sink = |line: Line<'_>| -> Result<(), ()> {
            let text = String::from_utf8_lossy(line.text).into_owned();
            got.push((line.time.map(str::to_owned), text, line.ended));
            Ok(())
        };
        for piece in pieces {
            lines.feed(piece, &mut sink).unwrap();
        }
        lines.finish(&mut sink).unwrap();
        got
    }

    #[test]
    fn times_are_told_from_text() {
        let got = lines(&[
            b"2026-11-21T07:00:38.123456789Z hello wo",
            b"rld\nno time here\n2026-11-21 x\n\n2026-11-21T07:00:39Z \nlast",
        ]);
        let line =
            |time: Option<&str>, text: &str| (time.map(str::to_owned), text.to_owned(), true);
        assert_eq!(
            got,
            [
                line(Some("2026-11-21T07:00:38.123456789Z"), "hello world"),
                line(None, "no time here"),
                line(None, "2026-11-21 x"),
                line(None, ""),
                line(Some("2026-11-21T07:00:39Z"), ""),
                line(None, "last"),
            ]
        );
    }

    #[test]
    fn an_endless_line_comes_in_pieces_and_whole() {
        let long = vec![b'x'; 3 * MAX_LINE_BYTES + 5];
        let got = lines(&[&long, b"2026-11-21T07:00:39Z y\n"]);
        assert!(
            got[..3]
                .iter()
                .all(|(_, text, ended)| !ended && text.len() == MAX_LINE_BYTES)
        );
        let joined: usize = got.iter().map(|(_, text, _)| text.len()).sum();
        assert_eq!(joined, long.len() + 22);
        assert!(got.iter().all(|(time, _, _)| time.is_none()));
    }
}
