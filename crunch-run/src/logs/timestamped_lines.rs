//! Turns a stream of bytes into log lines with timestamps: UTF-8, with a maximum length. Pure.

/// Maximum length of a line; longer lines are broken.
const MAX_LINE_BYTES: usize = 64 << 10;

/// State between two pieces of a stream: an unfinished line and an incomplete character.
#[derive(Debug, Default)]
pub struct Timestamper {
    /// Length of the current line in bytes.
    length: usize,
    /// Whether the current line has begun.
    in_line: bool,
    /// First bytes of an incomplete character.
    partial: Vec<u8>,
}

impl Timestamper {
    /// Appends the lines of the next piece to `out`. `stamp` writes the timestamp.
    pub fn feed(&mut self, piece: &[u8], mut stamp: impl FnMut(&mut Vec<u8>), out: &mut Vec<u8>) {
        let joined;
        let mut rest = if self.partial.is_empty() {
            piece
        } else {
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.extend_from_slice(piece);
            joined = bytes;
            &joined[..]
        };
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text(text, &mut stamp, out);
                    break;
                }
                Err(error) => {
                    let (valid, wrong) = rest.split_at(error.valid_up_to());
                    // Valid according to the check above.
                    self.text(&String::from_utf8_lossy(valid), &mut stamp, out);
                    let Some(length) = error.error_len() else {
                        self.partial = wrong.to_vec();
                        break;
                    };
                    self.text("\u{fffd}", &mut stamp, out);
                    rest = &wrong[length..];
                }
            }
        }
    }

    /// Ends the last line if it has no line feed.
    pub fn finish(&mut self, mut stamp: impl FnMut(&mut Vec<u8>), out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.partial).is_empty() {
            self.text("\u{fffd}", &mut stamp, out);
        }
        if self.in_line {
            self.end_line(out);
        }
    }

    fn text(&mut self, text: &str, stamp: &mut impl FnMut(&mut Vec<u8>), out: &mut Vec<u8>) {
        for line in text.split_inclusive('\n') {
            let (mut content, ends) = match line.strip_suffix('\n') {
                Some(content) => (content, true),
                None => (line, false),
            };
            loop {
                if !self.in_line {
                    stamp(out);
                    self.in_line = true;
                }
                let cut = floor_char_boundary(content, MAX_LINE_BYTES - self.length);
                let (now, later) = content.split_at(cut);
                out.extend_from_slice(now.as_bytes());
                self.length += now.len();
                if later.is_empty() {
                    break;
                }
                self.end_line(out);
                content = later;
            }
            if ends {
                self.end_line(out);
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        out.push(b'\n');
        self.in_line = false;
        self.length = 0;
    }
}

/// The largest character boundary that is not above `most`.
fn floor_char_boundary(text: &str, most: usize) -> usize {
    let mut at = most.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(pieces: &[&[u8]]) -> String {
        let (mut stamper, mut out) = (Timestamper::default(), Vec::new());
        let stamp = |out: &mut Vec<u8>| out.extend_from_slice(b"T ");
        for piece in pieces {
            stamper.feed(piece, stamp, &mut out);
        }
        stamper.finish(stamp, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_line_gets_one_stamp_however_it_arrives() {
        let cases: [(&[&[u8]], &str); 8] = [
            (&[], ""),
            (&[b"a\nb\n"], "T a\nT b\n"),
            (&[b"a", b"b\n", b"c"], "T ab\nT c\n"),
            (&[b"\n\n"], "T \nT \n"),
            (&["ä".as_bytes(), b"\n"], "T ä\n"),
            (&[b"\xc3", b"\xa4\n"], "T ä\n"),
            (&[b"x\xffy\n"], "T x\u{fffd}y\n"),
            (&[b"x\xc3"], "T x\u{fffd}\n"),
        ];
        for (pieces, expected) in cases {
            assert_eq!(lines(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn an_endless_line_is_broken() {
        let long = "é".repeat(MAX_LINE_BYTES);
        let text = lines(&[long.as_bytes()]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|l| l.len() <= MAX_LINE_BYTES + 2));
        assert_eq!(text.replace("T ", "").replace('\n', ""), long);
        // A line of just the longest length is left alone.
        let fits = "x".repeat(MAX_LINE_BYTES) + "\n";
        assert_eq!(lines(&[fits.as_bytes()]), format!("T {fits}"));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(lines(&[&bytes]), lines(&[&bytes[..cut], &bytes[cut..]]));
        }
    }
}
