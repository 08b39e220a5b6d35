//! Truncates a log in the middle: keeps its beginning and its end, and marks the gap.

use std::collections::VecDeque;
use std::io::{self, Write};

/// Number of bytes kept from the end of a log that exceeds its limit.
const TAIL_BYTES: usize = 64 << 10;

/// A writer that accepts everything and passes on the beginning and the end.
#[derive(Debug)]
pub struct TruncatingWriter<W> {
    inner: W,
    remaining: u64,
    limit: u64,
    tail: VecDeque<u8>,
    dropped: u64,
    /// Whether the bytes passed on so far end within a line.
    in_line: bool,
}

impl<W: Write> TruncatingWriter<W> {
    pub fn new(inner: W, limit: u64) -> Self {
        Self {
            inner,
            remaining: limit,
            limit,
            tail: VecDeque::new(),
            dropped: 0,
            in_line: false,
        }
    }

    /// Writes lines. The last one may continue in the next piece.
    pub fn write(&mut self, lines: &[u8], stamp: impl Fn(&mut Vec<u8>)) -> io::Result<()> {
        let is_over = !self.tail.is_empty() || self.dropped > 0;
        if !is_over && lines.len() as u64 <= self.remaining {
            self.remaining -= lines.len() as u64;
            self.in_line = lines.last().map_or(self.in_line, |last| *last != b'\n');
            return self.inner.write_all(lines);
        }
        if !is_over {
            if self.in_line {
                // The rest of an interrupted line becomes a line of its own after the mark.
                self.inner.write_all(b"\n")?;
                let mut rest = Vec::new();
                stamp(&mut rest);
                self.tail.extend(rest);
            }
            self.mark(
                &stamp,
                &format!(
                    "[crunch-run] This log has reached its limit of {} bytes. Of what follows only the end is kept.",
                    self.limit
                ),
            )?;
        }
        self.tail.extend(lines);
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        self.dropped += excess as u64;
        Ok(())
    }

    /// Flushes if no more data is waiting.
    pub fn flush_if_waiting(&mut self, nothing_more: bool) -> io::Result<()> {
        if nothing_more {
            self.inner.flush()?;
        }
        Ok(())
    }

    /// Writes the kept end. Returns the number of bytes left out.
    pub fn finish(mut self, stamp: impl FnOnce(&mut Vec<u8>)) -> io::Result<u64> {
        if self.dropped > 0 {
            // The first kept line lacks its beginning.
            let start = self.tail.iter().position(|b| *b == b'\n');
            let start = start.map_or(0, |at| at + 1);
            self.tail.drain(..start);
            self.dropped += start as u64;
            let dropped = self.dropped;
            self.mark(
                stamp,
                &format!("[crunch-run] {dropped} bytes are left out here."),
            )?;
        }
        let (front, back) = self.tail.as_slices();
        self.inner.write_all(front)?;
        self.inner.write_all(back)?;
        self.inner.flush()?;
        Ok(self.dropped)
    }

    fn mark(&mut self, stamp: impl FnOnce(&mut Vec<u8>), text: &str) -> io::Result<()> {
        let mut line = Vec::new();
        stamp(&mut line);
        line.extend_from_slice(text.as_bytes());
        line.push(b'\n');
        self.inner.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(out: &mut Vec<u8>) {
        out.extend_from_slice(b"T ");
    }

    fn kept(limit: u64, lines: &[String]) -> (String, u64) {
        let mut out = Vec::new();
        let mut capped = TruncatingWriter::new(&mut out, limit);
        for line in lines {
            capped.write(line.as_bytes(), stamp).unwrap();
        }
        let dropped = capped.finish(stamp).unwrap();
        (String::from_utf8(out).unwrap(), dropped)
    }

    #[test]
    fn a_limit_within_a_line_breaks_that() {
        let pieces = ["T one\nT tw", "o and what follows\n", "T three\n"].map(str::to_owned);
        let (text, dropped) = kept(12, &pieces);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[..2].to_vec(), dropped), (vec!["T one", "T tw"], 0));
        assert!(lines[2].starts_with("T [crunch-run] This log has reached"));
        assert_eq!(lines[3..], ["T o and what follows", "T three"]);
        // A log below the limit is unchanged.
        let (text, _) = kept(6, &pieces[1..]);
        assert!(text.starts_with("T [crunch-run]"), "{text}");
    }

    #[test]
    fn what_fits_is_left_alone() {
        let lines = ["T a\n".to_owned(), "T b\n".to_owned()];
        assert_eq!(kept(8, &lines), ("T a\nT b\n".to_owned(), 0));
    }

    #[test]
    fn beginning_and_end_are_kept_and_the_gap_is_marked() {
        let lines: Vec<String> = (0..100_000).map(|n| format!("T {n}\n")).collect();
        let (text, dropped) = kept(100, &lines);
        assert!(text.starts_with("T 0\nT 1\n"), "{}", &text[..200]);
        assert!(text.ends_with("T 99999\n"));
        assert!(text.contains("T [crunch-run] This log has reached its limit of 100 bytes."));
        assert!(text.contains(&format!(
            "T [crunch-run] {dropped} bytes are left out here.\n"
        )));
        assert!(text.len() < 100 + TAIL_BYTES + 500);
        assert!(text.lines().all(|line| line.starts_with("T ")));
        let all: usize = lines.iter().map(String::len).sum();
        let shown: usize = text
            .split_inclusive('\n')
            .filter(|l| !l.contains("crunch-run"))
            .map(str::len)
            .sum();
        assert_eq!(all as u64, shown as u64 + dropped);
    }

    #[test]
    fn a_little_too_much_loses_nothing() {
        let lines = ["T a\n".to_owned(), "T b\n".to_owned()];
        let (text, dropped) = kept(5, &lines);
        assert_eq!(dropped, 0);
        assert!(text.starts_with("T a\n") && text.ends_with("T b\n"));
    }
}
