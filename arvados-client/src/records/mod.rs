//! The API's records as types. Every record keeps the attributes it does not know in `extra`, so reading and
//! writing back loses nothing, and tolerates both null styles of the server (null, or an empty value).

mod authorization;
mod collection;
mod container;
mod container_request;
mod discovery;
mod keep_service;
mod link;
mod log;
mod mount;
mod user;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

pub use authorization::Authorization;
pub use collection::Collection;
pub use container::{Container, ContainerState, LockReply, RuntimeStatus};
pub use container_request::{ContainerRequest, RequestState};
pub use discovery::Discovery;
pub use keep_service::KeepService;
pub use link::Link;
pub use log::Log;
pub use mount::{Mount, MountKind};
pub use user::User;

pub use crate::resources::{Gpu, RuntimeConstraints, SchedulingParameters};

/// Attributes this library does not know.
pub type Extra = Map<String, Value>;

/// A page of a listing.
#[derive(Debug, Clone, Deserialize)]
pub struct Page<T> {
    /// The records.
    #[serde(default = "Vec::new")]
    pub items: Vec<T>,
    /// How many match in all; absent with `count=none`.
    #[serde(default)]
    pub items_available: Option<u64>,
}

/// null reads as the type's default.
pub(crate) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// null, `""` and a missing value all read as none.
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

/// A time as the API writes it; null and `""` read as none.
pub(crate) fn time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<jiff::Timestamp>, D::Error> {
    match Option::<String>::deserialize(deserializer)? {
        None => Ok(None),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}
