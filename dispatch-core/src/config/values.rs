//! Deserializers for values in the file's syntax: sizes with units, durations, tokens, and values
//! by partition.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use arvados_client::Token;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_norway::Value;
use units::{SingleLetter, parse_size_as};

/// Name of entries that only serve as examples in the file.
pub const SAMPLE: &str = "SAMPLE";
/// Key for every partition that is not named.
pub const ANY: &str = "*";

/// Reads a section that is present but empty as its defaults.
pub fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Reads a token. An error does not repeat the value.
pub fn token<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Token>, D::Error> {
    let text = Option::<String>::deserialize(from)
        .map_err(|_| D::Error::custom("SystemRootToken is not text; write it in quotes"))?;
    Ok(text.map(Token::new).filter(|token| !token.is_empty()))
}

/// Reads bytes by the rules of Arvados: a number, optionally with a unit, like `550MiB`. `M` is a
/// power of 1000.
pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let expected = "a size in bytes, or with a unit like 550MiB";
    scalar(from, expected, |given| match given {
        Unexpected::Unsigned(bytes) => Some(bytes),
        Unexpected::Float(bytes) => {
            (bytes >= 0.0 && bytes <= u64::MAX as f64).then_some(bytes as u64)
        }
        Unexpected::Str(text) => {
            let bytes = text.trim().parse().ok();
            bytes.or_else(|| parse_size_as(SingleLetter::Decimal, text).ok())
        }
        _ => None,
    })
}

/// Reads a duration in Go's syntax: `10s`, `1m30s`, `0`.
pub fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let expected = "a time with its unit, like 10s or 1m30s";
    scalar(from, expected, |given| match given {
        Unexpected::Unsigned(0) => Some(Duration::ZERO),
        Unexpected::Str(text) => units::parse_duration(text).ok(),
        _ => None,
    })
}

/// Reads one value for all partitions, or a map from partition to value.
pub fn per_partition(value: Value) -> Result<BTreeMap<String, String>, serde_norway::Error> {
    match value {
        Value::Null => Ok(BTreeMap::new()),
        Value::String(text) if text.is_empty() => Ok(BTreeMap::new()),
        Value::String(text) => Ok(BTreeMap::from([(ANY.to_owned(), text)])),
        Value::Mapping(_) => serde_norway::from_value(value),
        _ => Err(Error::invalid_type(
            Unexpected::Seq,
            &"text, or a map from partition to text, with * for all others",
        )),
    }
}

/// Reads a number or text by `read`, and null as `None`. An error names what was expected.
fn scalar<'de, D: Deserializer<'de>, T>(
    from: D,
    expected: &'static str,
    read: fn(Unexpected<'_>) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    from.deserialize_any(Scalar { expected, read })
}

struct Scalar<T> {
    expected: &'static str,
    read: fn(Unexpected<'_>) -> Option<T>,
}

impl<T> Scalar<T> {
    fn read<E: Error>(self, given: Unexpected<'_>) -> Result<Option<T>, E> {
        let read = (self.read)(given);
        read.map(Some)
            .ok_or_else(|| E::invalid_value(given, &self.expected))
    }
}

impl<T> Visitor<'_> for Scalar<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        self.read(Unexpected::Unsigned(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        self.read(Unexpected::Float(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        self.read(Unexpected::Str(text))
    }
}
