//! API calls as methods of the client, one file per resource.

mod authorizations;
mod bulk;
mod collections;
mod container_logs;
mod container_requests;
mod containers;
mod gateway;
mod notes;
mod server;
mod users;

pub use authorizations::{NewToken, NewUserToken};
pub use bulk::{Bulk, Each, NewLog, WantedLock};
pub use container_logs::{LogRange, LogStream};
pub use gateway::GatewayTunnel;
pub use notes::Note;
pub use users::NameKind;
