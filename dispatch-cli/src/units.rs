//! Sizes and times as people write and read them. A bare number is refused: nobody can know whether 4 means
//! gibibytes or megabytes.

use std::time::Duration;

/// Why a size or time cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error(
        "{0:?} needs a unit: write {0}GiB, {0}MiB or {0}KiB (powers of 1024; G, M and K are the same), or {0}GB, {0}MB or {0}KB (powers of 1000)"
    )]
    SizeWithoutUnit(String),
    #[error("{0:?} needs a unit: write {0}s, {0}m, {0}h or {0}d (seconds, minutes, hours, days)")]
    TimeWithoutUnit(String),
    #[error("{0:?} is not a size: write a number and a unit, like 512MiB, 4GiB or 1.5GB")]
    NotASize(String),
    #[error("{0:?} is not a time: write numbers and units, like 90s, 30m, 1h30m or 2d")]
    NotATime(String),
    #[error("{0:?} is zero; leave the option out instead")]
    Zero(String),
    #[error("{0:?} is larger than any machine; check the unit")]
    TooLarge(String),
}

/// Bytes from `512MiB`, `4G`, `1.5GB`.
pub fn size(text: &str) -> Result<u64, UnitError> {
    let text = text.trim();
    let not_a_size = || UnitError::NotASize(text.to_owned());
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim());
    let number: f64 = number.parse().map_err(|_| not_a_size())?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" => return Err(UnitError::SizeWithoutUnit(text.to_owned())),
        "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(not_a_size()),
    };
    let bytes = number * factor as f64;
    if bytes < 1.0 {
        return Err(UnitError::Zero(text.to_owned()));
    }
    // Beyond 2^53 the product is no longer exact, and far beyond any machine.
    if bytes > (1u64 << 53) as f64 {
        return Err(UnitError::TooLarge(text.to_owned()));
    }
    Ok(bytes.round() as u64)
}

/// A time from `90s`, `1h30m`, `2d`.
pub fn time(text: &str) -> Result<Duration, UnitError> {
    let text = text.trim();
    let not_a_time = || UnitError::NotATime(text.to_owned());
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(UnitError::TimeWithoutUnit(text.to_owned()));
    }
    let mut rest = text;
    let mut seconds = 0.0f64;
    if rest.is_empty() {
        return Err(not_a_time());
    }
    while !rest.is_empty() {
        let unit_at = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(not_a_time)?;
        let number: f64 = rest[..unit_at].parse().map_err(|_| not_a_time())?;
        rest = &rest[unit_at..];
        let next = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let factor = match rest[..next].trim() {
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return Err(not_a_time()),
        };
        seconds += number * factor;
        rest = &rest[next..];
    }
    if seconds < 1.0 {
        return Err(UnitError::Zero(text.to_owned()));
    }
    if seconds > 1e9 {
        return Err(UnitError::TooLarge(text.to_owned()));
    }
    Ok(Duration::from_secs(seconds.round() as u64))
}

/// `512 MiB`, with one decimal below 10.
pub fn show_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let whole = value.fract() < 0.05 || value >= 10.0;
    match whole {
        true => format!("{} {unit}", value.round()),
        false => format!("{value:.1} {unit}"),
    }
}

/// `0.4 s`, `12 s`, `3m05s`, `2h07m`, `4d03h`.
pub fn show_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// `1 CPU`, `2 CPUs`.
pub fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let rows = [
            ("512MiB", 512 << 20),
            ("4G", 4 << 30),
            ("4g", 4 << 30),
            ("4 GiB", 4 << 30),
            ("1.5GB", 1_500_000_000),
            ("64k", 64 << 10),
            ("100B", 100),
            ("2T", 2 << 40),
        ];
        for (text, bytes) in rows {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_that_are_none_are_refused_by_their_reason() {
        let owned = |t: &str| t.to_owned();
        let rows = [
            ("4", UnitError::SizeWithoutUnit(owned("4"))),
            ("4096", UnitError::SizeWithoutUnit(owned("4096"))),
            ("", UnitError::NotASize(owned(""))),
            ("GiB", UnitError::NotASize(owned("GiB"))),
            ("4X", UnitError::NotASize(owned("4X"))),
            ("-4G", UnitError::NotASize(owned("-4G"))),
            ("1.2.3G", UnitError::NotASize(owned("1.2.3G"))),
            ("4G4M", UnitError::NotASize(owned("4G4M"))),
            ("0G", UnitError::Zero(owned("0G"))),
            ("9999999T", UnitError::TooLarge(owned("9999999T"))),
        ];
        for (text, error) in rows {
            assert_eq!(size(text), Err(error), "{text}");
        }
        let sentence = size("4").unwrap_err().to_string();
        assert!(sentence.contains("write 4GiB"), "{sentence}");
    }

    #[test]
    fn times_have_units() {
        let rows = [
            ("90s", 90),
            ("30m", 1_800),
            ("1h30m", 5_400),
            ("1h 30m", 5_400),
            ("1.5h", 5_400),
            ("2d", 172_800),
            ("1w", 604_800),
        ];
        for (text, seconds) in rows {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "1h30", "ten", "1y", "-1h"] {
            assert_eq!(time(bad), Err(UnitError::NotATime(bad.into())), "{bad}");
        }
        assert_eq!(time("4"), Err(UnitError::TimeWithoutUnit("4".into())));
        assert_eq!(time("0s"), Err(UnitError::Zero("0s".into())));
        assert_eq!(
            time("99999999d"),
            Err(UnitError::TooLarge("99999999d".into()))
        );
    }

    #[test]
    fn what_is_shown_is_short() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (512 << 20, "512 MiB"),
            (4 << 30, "4 GiB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(show_size(bytes), text);
        }
        let times = [
            (400, "0.4 s"),
            (12_000, "12 s"),
            (185_000, "3m05s"),
            (7_620_000, "2h07m"),
            (356_400_000, "4d03h"),
        ];
        for (millis, text) in times {
            assert_eq!(show_time(Duration::from_millis(millis)), text);
        }
    }
}
