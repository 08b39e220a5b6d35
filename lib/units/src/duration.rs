//! Durations: `90s`, `1h30m` or `2d` as a [`Duration`], and a [`Duration`] as `3m05s`.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

use crate::UnitError;

const SECONDS_PER_DAY: f64 = 86_400.0;
/// Maximum of [`parse_whole_seconds`], in seconds: more than 30 years.
const MAX_WHOLE_SECONDS: u64 = 1_000_000_000;

/// A duration from `90s`, `500ms`, `1h30m`, `2d` or `0`. A day has 24 hours.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let text = text.trim();
    let not_a_time = || UnitError::NotATime(text.to_owned());
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.parse::<u64>().is_ok() {
        return Err(UnitError::TimeWithoutUnit(text.to_owned()));
    }
    if let Some(duration) = fractional_days(text) {
        return Ok(duration);
    }
    let Ok(span) = text.parse::<Span>() else {
        return Err(match has_form_of_a_time(text) {
            true => UnitError::TooLarge(text.to_owned()),
            false => not_a_time(),
        });
    };
    // Months and years have no fixed length, and fail here.
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours());
    duration
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(not_a_time)
}

/// The durations that a setting may have.
#[derive(Debug, Clone, Copy)]
pub struct DurationRange {
    min: Duration,
    max: Duration,
    /// Whether 0 is permitted too.
    zero: bool,
}

impl DurationRange {
    /// The durations from `min` to `max`.
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            zero: false,
        }
    }

    /// These durations and 0, which the setting gives a meaning of its own.
    pub const fn or_zero(self) -> Self {
        Self { zero: true, ..self }
    }

    /// [`parse_duration`] for a flag; a duration out of the range is an error.
    pub fn parser(self) -> impl Fn(&str) -> Result<Duration, UnitError> + Clone {
        move |text| {
            let duration = parse_duration(text)?;
            let is_permitted = (self.min..=self.max).contains(&duration);
            match is_permitted || (self.zero && duration.is_zero()) {
                true => Ok(duration),
                false => Err(UnitError::OutOfRange {
                    text: text.trim().to_owned(),
                    min: format!("{:?}", self.min),
                    max: format_duration(self.max),
                }),
            }
        }
    }
}

/// [`parse_duration`] in whole seconds, at least one: for a limit that is left out instead of being
/// zero.
pub fn parse_whole_seconds(text: &str) -> Result<Duration, UnitError> {
    let duration = parse_duration(text)?;
    let seconds = duration.as_secs_f64();
    if duration.is_zero() {
        return Err(UnitError::Zero(text.trim().to_owned()));
    }
    if seconds < 1.0 {
        return Err(UnitError::LessThanASecond(text.trim().to_owned()));
    }
    if seconds > MAX_WHOLE_SECONDS as f64 {
        return Err(UnitError::TooLarge(text.trim().to_owned()));
    }
    Ok(Duration::from_secs(seconds.round() as u64))
}

/// `1.5d` or `0.5w`: jiff accepts fractions of hours and smaller units only.
fn fractional_days(text: &str) -> Option<Duration> {
    let (number, days) = match text.strip_suffix('d') {
        Some(number) => (number, 1.0),
        None => (text.strip_suffix('w')?, 7.0),
    };
    let is_fraction = number.contains('.') && !number.starts_with(['+', '-']);
    let number: f64 = number.parse().ok().filter(|_| is_fraction)?;
    Duration::try_from_secs_f64(number * days * SECONDS_PER_DAY).ok()
}

/// Whether `text` has the form of a time, with numbers of any size.
fn has_form_of_a_time(text: &str) -> bool {
    let mut form = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if form.ends_with('1') => {}
            true => form.push('1'),
            false => form.push(c),
        }
    }
    form.parse::<Span>().is_ok()
}

/// `0.4 s`, `12 s`, `3m05s`, `2h07m`, `4d03h`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let rows = [
            ("90s", 90_000),
            ("10s", 10_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("30m", 1_800_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("90 sec", 90_000),
            ("5min", 300_000),
            ("2d", 172_800_000),
            ("1d12h", 129_600_000),
            ("1.5d", 129_600_000),
            ("1w", 604_800_000),
            ("0", 0),
            ("0s", 0),
        ];
        for (text, milliseconds) in rows {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
        }
    }

    #[test]
    fn times_that_are_none_are_refused_by_their_reason() {
        for bad in [
            "",
            "h",
            "1h30",
            "ten",
            "1y",
            "-1h",
            "-1s",
            "1 week and a bit",
        ] {
            let error = UnitError::NotATime(bad.into());
            assert_eq!(parse_duration(bad), Err(error), "{bad}");
        }
        let owned = |t: &str| t.to_owned();
        let rows = [
            ("4", UnitError::TimeWithoutUnit(owned("4"))),
            ("10", UnitError::TimeWithoutUnit(owned("10"))),
            ("0", UnitError::Zero(owned("0"))),
            ("0s", UnitError::Zero(owned("0s"))),
            ("500ms", UnitError::LessThanASecond(owned("500ms"))),
            ("99999d", UnitError::TooLarge(owned("99999d"))),
            ("99999999d", UnitError::TooLarge(owned("99999999d"))),
        ];
        for (text, error) in rows {
            assert_eq!(parse_whole_seconds(text), Err(error), "{text}");
        }
        assert_eq!(parse_whole_seconds("1.4s"), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn a_time_out_of_its_range_is_refused_with_the_range() {
        let range = DurationRange::new(Duration::from_millis(100), Duration::from_secs(3600));
        for (text, or_zero, is_permitted) in [
            ("100ms", false, true),
            ("1h", false, true),
            ("99ms", false, false),
            ("61m", false, false),
            ("0", false, false),
            ("0", true, true),
            ("1ms", true, false),
        ] {
            let range = if or_zero { range.or_zero() } else { range };
            let parsed = range.parser()(text);
            assert_eq!(parsed.is_ok(), is_permitted, "{text} {or_zero}");
        }
        let error = range.parser()("0").unwrap_err().to_string();
        let expected = r#""0" is out of range: write a time from 100ms to 1h00m"#;
        assert_eq!(error, expected);
    }

    #[test]
    fn times_are_shown_short() {
        let rows = [
            (400, "0.4 s"),
            (12_000, "12 s"),
            (185_000, "3m05s"),
            (7_620_000, "2h07m"),
            (356_400_000, "4d03h"),
        ];
        for (milliseconds, text) in rows {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), text);
        }
    }
}
