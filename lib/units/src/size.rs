//! Sizes in bytes: `512MiB`, `1.5GB` or `4G` as a number, and a number as `1.5 GiB`.

use bytesize::ByteSize;

use crate::UnitError;

/// Maximum size that is accepted, in bytes. Up to here fractions are exact.
const MAX_SIZE: u64 = 1 << 53;

/// Meaning of the units K, M, G, T and P without a B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SingleLetter {
    /// Powers of 1024, as in Slurm and HTCondor.
    Binary,
    /// Powers of 1000, as in the configuration file of Arvados.
    Decimal,
}

/// Bytes from `512MiB`, `4G` (4 GiB), `1.5GB` or `0`.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    parse_size_as(SingleLetter::Binary, text)
}

/// [`parse_size`] where zero is refused, for a limit that is left out instead.
pub fn parse_positive_size(text: &str) -> Result<u64, UnitError> {
    match parse_size(text)? {
        0 => Err(UnitError::Zero(text.trim().to_owned())),
        bytes => Ok(bytes),
    }
}

/// [`parse_size`] with a choice of what a single letter means.
pub fn parse_size_as(letters: SingleLetter, text: &str) -> Result<u64, UnitError> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let is_letter = unit.len() == 1 && !unit.eq_ignore_ascii_case("b");
    let size = match unit {
        "" if text == "0" => return Ok(0),
        "" if number.parse::<f64>().is_ok() => {
            return Err(UnitError::SizeWithoutUnit(text.to_owned()));
        }
        letter if is_letter && letters == SingleLetter::Binary => format!("{number}{letter}iB"),
        unit => format!("{number}{unit}"),
    };
    let size: ByteSize = size
        .parse()
        .map_err(|_| UnitError::NotASize(text.to_owned()))?;
    match size.as_u64() {
        ..=MAX_SIZE => Ok(size.as_u64()),
        _ => Err(UnitError::TooLarge(text.to_owned())),
    }
}

/// `512 MiB`, with one decimal below 10.
pub fn format_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let is_whole = (value - value.round()).abs() < 0.05 || value >= 100.0;
    match is_whole {
        true => format!("{} {unit}", value.round()),
        false => format!("{value:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let rows = [
            ("1K", 1 << 10),
            ("1M", 1 << 20),
            ("1G", 1 << 30),
            ("1T", 1 << 40),
            ("1P", 1 << 50),
            ("1KiB", 1 << 10),
            ("1MiB", 1 << 20),
            ("1GiB", 1 << 30),
            ("1TiB", 1 << 40),
            ("1PiB", 1 << 50),
            ("1KB", 1000),
            ("1MB", 1_000_000),
            ("1GB", 1_000_000_000),
            ("1TB", 1_000_000_000_000),
            ("1PB", 1_000_000_000_000_000),
            ("512MiB", 512 << 20),
            ("4G", 4 << 30),
            ("4g", 4 << 30),
            ("4 GiB", 4 << 30),
            ("4gib", 4 << 30),
            (" 1.5GB ", 1_500_000_000),
            ("64k", 64 << 10),
            ("100B", 100),
            ("100b", 100),
            ("2T", 2 << 40),
            ("1.5kib", 1536),
            ("0", 0),
            ("0G", 0),
        ];
        for (text, bytes) in rows {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_single_letter_is_what_the_caller_says() {
        for (text, binary, decimal) in [
            ("4G", 4 << 30, 4_000_000_000),
            ("4GB", 4_000_000_000, 4_000_000_000),
            ("4GiB", 4 << 30, 4 << 30),
            ("4B", 4, 4),
        ] {
            assert_eq!(parse_size_as(SingleLetter::Binary, text), Ok(binary));
            assert_eq!(parse_size_as(SingleLetter::Decimal, text), Ok(decimal));
        }
    }

    #[test]
    fn sizes_that_are_none_are_refused_by_their_reason() {
        let owned = |t: &str| t.to_owned();
        let rows = [
            ("4", UnitError::SizeWithoutUnit(owned("4"))),
            ("4096", UnitError::SizeWithoutUnit(owned("4096"))),
            ("1.5", UnitError::SizeWithoutUnit(owned("1.5"))),
            ("", UnitError::NotASize(owned(""))),
            (".", UnitError::NotASize(owned("."))),
            ("GiB", UnitError::NotASize(owned("GiB"))),
            ("4X", UnitError::NotASize(owned("4X"))),
            ("-4G", UnitError::NotASize(owned("-4G"))),
            ("1.2.3G", UnitError::NotASize(owned("1.2.3G"))),
            ("4G4M", UnitError::NotASize(owned("4G4M"))),
            ("0G", UnitError::Zero(owned("0G"))),
            ("0", UnitError::Zero(owned("0"))),
            ("9999999T", UnitError::TooLarge(owned("9999999T"))),
            ("99999999999T", UnitError::TooLarge(owned("99999999999T"))),
        ];
        for (text, error) in rows {
            assert_eq!(parse_positive_size(text), Err(error), "{text}");
        }
        let sentence = parse_size("4").unwrap_err().to_string();
        assert!(sentence.contains("write 4GiB"), "{sentence}");
    }

    #[test]
    fn sizes_are_shown_short() {
        let rows = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (512 << 20, "512 MiB"),
            (4 << 30, "4 GiB"),
            (24_064 << 20, "23.5 GiB"),
            ((24 << 30) - (10 << 20), "24 GiB"),
            (250 << 30, "250 GiB"),
        ];
        for (bytes, text) in rows {
            assert_eq!(format_size(bytes), text);
        }
    }
}
