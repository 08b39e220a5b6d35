//! Deserializers for values in the file's syntax: sizes with units, durations, tokens, and values
//! by partition.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use arvados_client::Token;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
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
    struct Size;
    impl Visitor<'_> for Size {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size in bytes, or with a unit like 550MiB")
        }
        fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }
        fn visit_f64<E: Error>(self, bytes: f64) -> Result<u64, E> {
            match bytes >= 0.0 && bytes <= u64::MAX as f64 {
                true => Ok(bytes as u64),
                false => Err(E::invalid_value(serde::de::Unexpected::Float(bytes), &self)),
            }
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            let invalid = |_| E::invalid_value(serde::de::Unexpected::Str(text), &self);
            match text.trim().parse() {
                Ok(bytes) => Ok(bytes),
                Err(_) => parse_size_as(SingleLetter::Decimal, text).map_err(invalid),
            }
        }
    }
    optional(from, Size)
}

/// Reads a duration in Go's syntax: `10s`, `1m30s`, `0`.
pub fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    struct Time;
    impl Visitor<'_> for Time {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time with its unit, like 10s or 1m30s")
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<Duration, E> {
            match number {
                0 => Ok(Duration::ZERO),
                _ => Err(E::invalid_value(
                    serde::de::Unexpected::Unsigned(number),
                    &self,
                )),
            }
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            units::parse_duration(text)
                .map_err(|_| E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
    }
    optional(from, Time)
}

/// Reads one value for all partitions, or a map from partition to value.
pub fn per_partition<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct PerPartition;
    impl<'de> Visitor<'de> for PerPartition {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text, or a map from partition to text, with * for all others")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(match text {
                "" => BTreeMap::new(),
                _ => BTreeMap::from([(ANY.to_owned(), text.to_owned())]),
            })
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((partition, value)) = map.next_entry()? {
                all.insert(partition, value);
            }
            Ok(all)
        }
    }
    Ok(optional(from, PerPartition)?.unwrap_or_default())
}

/// Reads null as `None`.
fn optional<'de, D, V>(from: D, visitor: V) -> Result<Option<V::Value>, D::Error>
where
    D: Deserializer<'de>,
    V: Visitor<'de>,
{
    struct Optional<V>(V);
    impl<'de, V: Visitor<'de>> Visitor<'de> for Optional<V> {
        type Value = Option<V::Value>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.expecting(f)
        }
        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_any(self.0).map(Some)
        }
    }
    from.deserialize_option(Optional(visitor))
}
