//! The calls, one file per resource.

mod authorizations;
mod bulk;
mod collections;
mod container_logs;
mod container_requests;
mod containers;
mod gateway;
mod server;

pub use authorizations::NewToken;
pub use bulk::{Bulk, Each, NewLog, WantedLock};
pub use container_logs::{LogFile, LogRange, LogStream};
pub use gateway::GatewayTunnel;
