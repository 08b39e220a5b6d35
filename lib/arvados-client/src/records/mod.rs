//! Records of the API as types. Unknown attributes are kept in `extra`, so that reading and writing
//! back loses nothing. Both null styles of the server (null, or an empty value) are accepted.

pub(crate) mod attributes;
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

use serde::Deserialize;

pub use attributes::Extra;
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
