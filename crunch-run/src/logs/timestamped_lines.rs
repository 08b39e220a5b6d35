//! Turns a stream of bytes into log lines with timestamps and a maximum length. Pure.
//!
//! Whoever removes the timestamps has the stream again, byte for byte: a line of exactly
//! [`STAMPED_LINE_BYTES`] goes on in the next one, and the last line has a line feed only if the
//! stream has one.

use crunch_contract::STAMPED_LINE_BYTES;

/// State between two pieces of a stream: an unfinished line.
#[derive(Debug, Default)]
pub struct Timestamper {
    /// Length of the current line in bytes.
    length: usize,
    /// Whether the current line has begun.
    in_line: bool,
}

impl Timestamper {
    /// Appends the lines of the next piece to `out`. `stamp` writes the timestamp.
    pub fn feed(&mut self, piece: &[u8], mut stamp: impl FnMut(&mut Vec<u8>), out: &mut Vec<u8>) {
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            let (mut content, ends) = match line.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (line, false),
            };
            while !content.is_empty() {
                self.begin_line(&mut stamp, out);
                let room = STAMPED_LINE_BYTES - self.length;
                let (now, later) = content.split_at(room.min(content.len()));
                out.extend_from_slice(now);
                self.length += now.len();
                if self.length == STAMPED_LINE_BYTES {
                    self.end_line(out);
                }
                content = later;
            }
            if ends {
                self.begin_line(&mut stamp, out);
                self.end_line(out);
            }
        }
    }

    fn begin_line(&mut self, stamp: &mut impl FnMut(&mut Vec<u8>), out: &mut Vec<u8>) {
        if !self.in_line {
            stamp(out);
            self.in_line = true;
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        out.push(b'\n');
        self.in_line = false;
        self.length = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut stamper, mut out) = (Timestamper::default(), Vec::new());
        for piece in pieces {
            stamper.feed(piece, |out| out.extend_from_slice(b"T "), &mut out);
        }
        out
    }

    #[test]
    fn every_line_gets_one_stamp_however_it_arrives() {
        let cases: [(&[&[u8]], &[u8]); 8] = [
            (&[], b""),
            (&[b"a\nb\n"], b"T a\nT b\n"),
            (&[b"a", b"b\n", b"c"], b"T ab\nT c"),
            (&[b"\n\n"], b"T \nT \n"),
            (&[b"\xc3", b"\xa4\n"], b"T \xc3\xa4\n"),
            (&[b"x\xffy\n"], b"T x\xffy\n"),
            (&[b"x\xc3"], b"T x\xc3"),
            (&[b"x\0\r\n"], b"T x\0\r\n"),
        ];
        for (pieces, expected) in cases {
            assert_eq!(lines(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn an_endless_line_is_broken_and_its_end_is_told() {
        let long = "x".repeat(STAMPED_LINE_BYTES);
        for (given, expected) in [
            (format!("{long}y\n"), format!("T {long}\nT y\n")),
            (format!("{long}\n"), format!("T {long}\nT \n")),
            (long.clone(), format!("T {long}\n")),
            (long[1..].to_owned() + "\n", format!("T {}\n", &long[1..])),
        ] {
            assert_eq!(lines(&[given.as_bytes()]), expected.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(lines(&[&bytes]), lines(&[&bytes[..cut], &bytes[cut..]]));
        }
    }
}
