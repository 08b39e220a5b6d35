//! Lines of a log file, which begin with the time they were written.

use jiff::Timestamp;

/// A line longer than this is given out in pieces.
const LONGEST: usize = 64 << 10;

/// One line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// When it was written, as it stands there.
    pub time: Option<&'a str>,
    /// The rest, without the newline.
    pub text: &'a [u8],
    /// Whether a newline followed; a piece of a longer line has none.
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

/// Cuts pieces of a file into lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// The beginning of the line in `rest` has been given out already.
    is_continued: bool,
}

impl Lines {
    /// Gives every line that ends in `bytes`.
    pub fn feed<E>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            for part in text.chunks(LONGEST) {
                self.rest.extend_from_slice(part);
                if self.rest.len() >= LONGEST {
                    self.give(false, &mut take)?;
                }
            }
            if ended {
                self.give(true, &mut take)?;
            }
        }
        Ok(())
    }

    /// Gives what is left without a newline.
    pub fn finish<E>(&mut self, mut take: impl FnMut(Line<'_>) -> Result<(), E>) -> Result<(), E> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => self.give(true, &mut take),
        }
    }

    fn give<E>(
        &mut self,
        ended: bool,
        take: &mut impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = take(Line::read(&self.rest, ended, self.is_continued));
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
        let mut take = |line: Line<'_>| -> Result<(), ()> {
            let text = String::from_utf8_lossy(line.text).into_owned();
            got.push((line.time.map(str::to_owned), text, line.ended));
            Ok(())
        };
        for piece in pieces {
            lines.feed(piece, &mut take).unwrap();
        }
        lines.finish(&mut take).unwrap();
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
        let long = vec![b'x'; 3 * LONGEST + 5];
        let got = lines(&[&long, b"2026-11-21T07:00:39Z y\n"]);
        assert!(
            got[..3]
                .iter()
                .all(|(_, text, ended)| !ended && text.len() == LONGEST)
        );
        let joined: usize = got.iter().map(|(_, text, _)| text.len()).sum();
        assert_eq!(joined, long.len() + 22);
        assert!(got.iter().all(|(time, _, _)| time.is_none()));
    }
}
