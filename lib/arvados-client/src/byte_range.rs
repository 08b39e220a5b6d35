//! Interprets the `Range` header. In: the header and the size of the file. Out: the part to send,
//! by the rules of the Go file server: clients request `bytes=-0` to learn the size, and expect
//! 206.

use std::ops::Range;

/// Part of a file to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// These bytes; none if a client only needs the size.
    Bytes(Range<u64>),
    /// The range begins after the end of the file.
    Unsatisfiable,
}

impl Part {
    /// The part for a header. Any header but one range of bytes means the whole file, as RFC 9110
    /// allows.
    pub fn of(header: Option<&str>, size: u64) -> Self {
        let spec = header.and_then(|text| text.trim().strip_prefix("bytes="));
        let Some((first, last)) = spec.and_then(|spec| spec.trim().split_once('-')) else {
            return Self::Whole;
        };
        match (number(first), number(last)) {
            (Ok(None), Ok(Some(count))) => Self::Bytes(size.saturating_sub(count)..size),
            (Ok(Some(start)), _) if start >= size => match size {
                0 => Self::Whole,
                _ => Self::Unsatisfiable,
            },
            (Ok(Some(start)), Ok(None)) => Self::Bytes(start..size),
            (Ok(Some(start)), Ok(Some(end))) if start <= end => {
                Self::Bytes(start..end.saturating_add(1).min(size))
            }
            _ => Self::Whole,
        }
    }

    /// The `Content-Range` header, unless the whole file is sent.
    pub fn content_range(&self, size: u64) -> Option<String> {
        match self {
            Self::Whole => None,
            // An empty part ends before it begins. Go writes that, and its clients expect it.
            Self::Bytes(part) => Some(format!(
                "bytes {}-{}/{size}",
                part.start,
                i128::from(part.end) - 1
            )),
            Self::Unsatisfiable => Some(format!("bytes */{size}")),
        }
    }
}

/// A number of the header, which may leave it out. A sign is no part of one.
fn number(text: &str) -> Result<Option<u64>, ()> {
    let text = text.trim();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Ok(number) if is_number => Ok(Some(number)),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_that_go_s_file_server_gives() {
        #[rustfmt::skip]
        let rows = [
            (None, 12, Part::Whole, None),
            (Some("bytes=-0"), 12, Part::Bytes(12..12), Some("bytes 12-11/12")),
            (Some("bytes=-0"), 0, Part::Bytes(0..0), Some("bytes 0--1/0")),
            (Some("bytes=-6"), 12, Part::Bytes(6..12), Some("bytes 6-11/12")),
            (Some("bytes=-99"), 12, Part::Bytes(0..12), Some("bytes 0-11/12")),
            (Some("bytes=4-"), 12, Part::Bytes(4..12), Some("bytes 4-11/12")),
            (Some("bytes=0-0"), 12, Part::Bytes(0..1), Some("bytes 0-0/12")),
            (Some("bytes=4-999"), 12, Part::Bytes(4..12), Some("bytes 4-11/12")),
            (Some("bytes=0-18446744073709551615"), 12, Part::Bytes(0..12), Some("bytes 0-11/12")),
            (Some("bytes=12-"), 12, Part::Unsatisfiable, Some("bytes */12")),
            (Some("bytes=0-"), 0, Part::Whole, None),
            (Some("bytes=5-4"), 12, Part::Whole, None),
            (Some("bytes=1-2,5-6"), 12, Part::Whole, None),
            (Some("bytes=-"), 12, Part::Whole, None),
            (Some("bytes=+1-2"), 12, Part::Whole, None),
            (Some("lines=1-2"), 12, Part::Whole, None),
        ];
        for (header, size, part, content_range) in rows {
            let got = Part::of(header, size);
            assert_eq!(got, part, "{header:?} of {size}");
            let header = got.content_range(size);
            assert_eq!(header.as_deref(), content_range, "{header:?} of {size}");
        }
    }
}
