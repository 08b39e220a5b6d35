//! Splits log files into lines with their timestamps. In: pieces of a file. Out: the lines that the
//! container printed, byte for byte; a long one in pieces.

use crunch_contract::STAMPED_LINE_BYTES;
use jiff::Timestamp;

/// Maximum length of what is passed on at once.
const MAX_PIECE_BYTES: usize = 64 << 10;

/// A line of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Timestamp as written in the file.
    pub time: Option<&'a str>,
    /// The text after the timestamp, without the newline.
    pub text: &'a [u8],
    /// Whether a newline followed; false for a piece of a longer line, and for a last line without
    /// one.
    pub ended: bool,
}

impl<'a> Line<'a> {
    fn read(bytes: &'a [u8], ended: bool) -> Self {
        let whole = Line {
            time: None,
            text: bytes,
            ended,
        };
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
    /// What was passed on of a line with a timestamp, in bytes; `None` for one without.
    stamped: Option<usize>,
    /// Whether the line in `rest` continues a full one: its timestamp is not passed on.
    follows_full_line: bool,
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
            for part in text.chunks(MAX_PIECE_BYTES) {
                self.rest.extend_from_slice(part);
                if self.rest.len() >= MAX_PIECE_BYTES {
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
            false => self.emit(false, &mut sink),
        }
    }

    fn emit<E>(
        &mut self,
        ended: bool,
        sink: &mut impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut line = if self.is_continued {
            Line {
                time: None,
                text: &self.rest,
                ended,
            }
        } else {
            let mut line = Line::read(&self.rest, ended);
            self.stamped = line.time.map(|_| 0);
            if self.follows_full_line {
                line.time = None;
            }
            line
        };
        if let Some(bytes) = &mut self.stamped {
            *bytes += line.text.len();
        }
        if ended {
            self.follows_full_line = self.stamped == Some(STAMPED_LINE_BYTES);
            line.ended = !self.follows_full_line;
        }
        let result = sink(line);
        self.is_continued = !ended;
        self.rest.clear();
        result
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
                (None, "last".to_owned(), false),
            ]
        );
    }

    #[test]
    fn an_endless_line_comes_in_pieces_and_whole() {
        let long = vec![b'x'; 3 * MAX_PIECE_BYTES + 5];
        let got = lines(&[&long, b"2026-11-21T07:00:39Z y\n"]);
        assert!(
            got[..3]
                .iter()
                .all(|(_, text, ended)| !ended && text.len() == MAX_PIECE_BYTES)
        );
        let joined: usize = got.iter().map(|(_, text, _)| text.len()).sum();
        assert_eq!(joined, long.len() + 22);
        assert!(got.iter().all(|(time, _, _)| time.is_none()));
    }

    proptest! {
        /// What crunch-run writes of a stream is read as that stream.
        #[test]
        fn every_byte_that_was_printed_is_passed_on(
            parts in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..20), 0usize..4, any::<bool>()),
                0..8,
            ),
            cut in 0usize..400_000,
        ) {
            let mut stream = Vec::new();
            for (bytes, fill, is_line) in parts {
                stream.extend(bytes);
                // Around the length at which lines are broken.
                stream.resize(stream.len() + fill * (STAMPED_LINE_BYTES / 2 - 1), b'x');
                if is_line {
                    stream.push(b'\n');
                }
            }
            let file = stamped(&stream);
            let (first, second) = file.split_at(cut.min(file.len()));
            let (mut reader, mut read) = (Lines::default(), Vec::new());
            let mut sink = |line: Line<'_>| -> Result<(), ()> {
                read.extend_from_slice(line.text);
                if line.ended {
                    read.push(b'\n');
                }
                Ok(())
            };
            reader.feed(first, &mut sink).unwrap();
            reader.feed(second, &mut sink).unwrap();
            reader.finish(&mut sink).unwrap();
            prop_assert!(read == stream);
        }
    }

    /// The file that crunch-run writes of a stream.
    fn stamped(stream: &[u8]) -> Vec<u8> {
        const STAMP: &[u8] = b"2026-11-21T07:00:38.123456789Z ";
        let mut file = Vec::new();
        for line in stream.split_inclusive(|byte| *byte == b'\n') {
            let (content, ends) = match line.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (line, false),
            };
            let mut pieces = content.chunks(STAMPED_LINE_BYTES).peekable();
            let is_full = content.len() % STAMPED_LINE_BYTES == 0;
            while let Some(piece) = pieces.next() {
                file.extend_from_slice(STAMP);
                file.extend_from_slice(piece);
                if pieces.peek().is_some() || piece.len() == STAMPED_LINE_BYTES || ends {
                    file.push(b'\n');
                }
            }
            if ends && is_full {
                file.extend_from_slice(STAMP);
                file.push(b'\n');
            }
        }
        file
    }
}
