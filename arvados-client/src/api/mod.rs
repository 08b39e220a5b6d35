//! The calls, one file per resource.

mod authorizations;
mod collections;
mod container_requests;
mod containers;
mod server;

pub use authorizations::NewToken;
