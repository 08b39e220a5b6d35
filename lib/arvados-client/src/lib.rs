//! A client library for Arvados: records, errors, retries, paging, live events, Keep blocks,
//! manifests and collections.
//!
//! It is independent of dispatchers, so any client of an Arvados API server can use it.

pub mod api;
pub mod byte_range;
pub mod client;
pub mod endpoint;
pub mod error;
pub mod events;
pub mod filter;
pub mod ids;
pub mod keep;
pub mod locator;
pub mod manifest;
pub mod paging;
mod proxy;
pub mod records;
pub mod resources;
pub mod retry;
pub mod scopes;
pub mod tls;
pub mod token;
pub mod visible;

pub use client::Client;
pub use endpoint::Endpoint;
pub use error::{ApiError, Error};
pub use ids::{
    CollectionUuid, ContainerRequestUuid, ContainerUuid, GroupUuid, KeepServiceUuid, LinkUuid, Pdh,
    TokenUuid, UserUuid, Uuid,
};
pub use token::Token;
