//! The calls, one file per resource.

mod authorizations;
mod bulk;
mod collections;
mod container_requests;
mod containers;
mod server;

pub use authorizations::NewToken;
pub use bulk::{Bulk, Each, NewLog, WantedLock};
