//! Times as the API writes them: UTC text with nine digits, so that text order is time order.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The current time, `YYYY-MM-DDTHH:MM:SS.nnnnnnnnnZ`.
pub fn now() -> String {
    stamp(Timestamp::now())
}

/// Now plus a span.
pub fn after(span: Duration) -> String {
    stamp(Timestamp::now().checked_add(span).unwrap_or(Timestamp::MAX))
}

/// Now minus a span.
pub fn before(span: Duration) -> String {
    stamp(Timestamp::now().checked_sub(span).unwrap_or(Timestamp::MIN))
}

pub fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
}

/// Converts any time format that clients send to the stored format; `None` for text that is no
/// time.
pub fn normalise(text: &str) -> Option<String> {
    parse(text).map(stamp)
}

pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    // A time without an offset is UTC.
    let civil: DateTime = text.parse().ok()?;
    civil
        .to_zoned(TimeZone::UTC)
        .ok()
        .map(|zoned| zoned.timestamp())
}

/// A stored time in the format of HTTP headers; the epoch for unreadable text.
pub fn http_date(text: &str) -> String {
    let at = parse(text).unwrap_or(Timestamp::UNIX_EPOCH);
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Milliseconds since the epoch of a stored time; 0 for unreadable text.
pub fn millis(text: &str) -> i64 {
    parse(text).map_or(0, |at| at.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_becomes_nine_digits_of_utc() {
        for (given, expected) in [
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000000Z"),
            ("2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05.500000000Z"),
            (
                "2026-01-02T04:04:05+01:00",
                "2026-01-02T03:04:05.000000000Z",
            ),
            ("2026-01-02 03:04:05", "2026-01-02T03:04:05.000000000Z"),
        ] {
            assert_eq!(normalise(given).as_deref(), Some(expected), "{given}");
        }
        assert_eq!(normalise("tomorrow"), None);
    }

    #[test]
    fn http_has_dates_of_its_own() {
        let date = http_date("2026-01-02T03:04:05.000000000Z");
        assert_eq!(date, "Fri, 02 Jan 2026 03:04:05 GMT");
    }

    #[test]
    fn text_order_is_time_order() {
        let early = before(Duration::from_secs(1));
        let late = after(Duration::from_secs(1));
        assert!(early < now() && now() < late);
    }
}
