//! Deserializers for attributes of records: both null styles of the server read as absent.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Attributes this library does not know.
pub type Extra = Map<String, Value>;

/// Reads null as the default of the type.
pub(crate) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads null, `""` and a missing value as `None`.
pub(crate) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<String>,
    T::Error: std::fmt::Display,
{
    match Option::<String>::deserialize(deserializer)? {
        None => Ok(None),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) => T::try_from(text)
            .map(Some)
            .map_err(serde::de::Error::custom),
    }
}

/// Reads a time of the API; null and `""` as `None`.
pub(crate) fn time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<jiff::Timestamp>, D::Error> {
    match Option::<String>::deserialize(deserializer)? {
        None => Ok(None),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}
