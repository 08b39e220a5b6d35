//! The timestamp at the start of every log line. Readers merge files by it, so its format never
//! varies.

use jiff::Timestamp;

/// UTC with exactly nine digits after the point.
pub fn now() -> String {
    format!("{:.9}", Timestamp::now())
}

/// Appends the timestamp and a space.
pub fn write_stamp(out: &mut Vec<u8>) {
    out.extend_from_slice(now().as_bytes());
    out.push(b' ');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_has_thirty_characters_whatever_the_time() {
        for seconds in [0, 1_700_000_000] {
            let text = format!("{:.9}", Timestamp::from_second(seconds).unwrap());
            assert!(text.ends_with(".000000000Z"), "{text}");
        }
        let text = now();
        assert_eq!(text.len(), "2026-01-02T03:04:05.123456789Z".len());
        assert!(text.ends_with('Z') && text.as_bytes()[10] == b'T');
    }
}
