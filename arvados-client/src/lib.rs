//! The Arvados wire protocol as a library: typed records, typed errors, retry by class, paging, live events,
//! Keep blocks, manifests and collections.
//!
//! Nothing here knows what a dispatcher is; every program of the suite, and any other client of an Arvados API
//! server, can use it on its own.

pub mod api;
pub mod byte_range;
pub mod client;
pub mod endpoint;
pub mod error;
pub mod events;
pub mod filter;
pub mod ids;
pub mod keep;
pub mod manifest;
pub mod paging;
pub mod records;
pub mod resources;
pub mod retry;
pub mod scopes;
pub mod tls;
pub mod token;

pub use client::Client;
pub use endpoint::Endpoint;
pub use error::{ApiError, Error};
pub use ids::{
    CollectionUuid, ContainerRequestUuid, ContainerUuid, GroupUuid, KeepServiceUuid, LinkUuid,
    LogUuid, Pdh, TokenUuid, UserUuid, Uuid,
};
pub use token::Token;
