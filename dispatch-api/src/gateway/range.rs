//! Which bytes of a file a `Range` header asks for. In: the header and the size. Out: what to send.

use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// May be empty: `bytes=-0` is how clients ask for the size.
    Bytes(Range<u64>),
    Unsatisfiable,
}

impl Part {
    /// What is not one range of bytes is no range, as RFC 9110 lets a server decide.
    pub fn of(header: Option<&str>, size: u64) -> Part {
        let range = header
            .and_then(|text| text.trim().strip_prefix("bytes="))
            .and_then(|range| range.split_once('-'));
        let Some((first, last)) = range else {
            return Part::Whole;
        };
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match (number(first), number(last)) {
            (None, Some(count)) if first.trim().is_empty() => {
                Part::Bytes(size.saturating_sub(count)..size)
            }
            (Some(_), _) if size == 0 => Part::Whole,
            (Some(first), _) if first >= size => Part::Unsatisfiable,
            (Some(first), Some(last)) if first <= last => {
                Part::Bytes(first..last.saturating_add(1).min(size))
            }
            (Some(first), None) if last.trim().is_empty() => Part::Bytes(first..size),
            _ => Part::Whole,
        }
    }

    /// The header `Content-Range`.
    pub fn content_range(&self, size: u64) -> Option<String> {
        match self {
            Part::Whole => None,
            // That an empty part ends before it begins is how it is written here; clients read the size behind it.
            Part::Bytes(part) => {
                let last = i128::from(part.end) - 1;
                Some(format!("bytes {}-{last}/{size}", part.start))
            }
            Part::Unsatisfiable => Some(format!("bytes */{size}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_bytes_counts_and_nothing_else() {
        let part = |range: Range<u64>| Part::Bytes(range);
        for (header, size, expected) in [
            (None, 12, Part::Whole),
            (Some("bytes=0-"), 12, part(0..12)),
            (Some("bytes=6-11"), 12, part(6..12)),
            (Some("bytes=6-99"), 12, part(6..12)),
            (Some("bytes=-6"), 12, part(6..12)),
            (Some("bytes=-99"), 12, part(0..12)),
            (Some("bytes=-0"), 12, part(12..12)),
            (Some("bytes=-0"), 0, part(0..0)),
            (Some("bytes=0-"), 0, Part::Whole),
            (Some("bytes=12-"), 12, Part::Unsatisfiable),
            (Some("bytes=7-6"), 12, Part::Whole),
            (Some("bytes=0-1,4-5"), 12, Part::Whole),
            (Some("lines=0-1"), 12, Part::Whole),
            (Some("bytes=-"), 12, Part::Whole),
            (Some("bytes=x-3"), 12, Part::Whole),
        ] {
            assert_eq!(Part::of(header, size), expected, "{header:?} of {size}");
        }
        assert_eq!(part(6..12).content_range(12).unwrap(), "bytes 6-11/12");
        assert_eq!(part(12..12).content_range(12).unwrap(), "bytes 12-11/12");
        assert_eq!(part(0..0).content_range(0).unwrap(), "bytes 0--1/0");
        assert_eq!(Part::Unsatisfiable.content_range(1).unwrap(), "bytes */1");
    }
}
