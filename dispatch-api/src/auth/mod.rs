//! Callers and permissions. Values and queries only; writes are in `store`.

pub mod attempt_token;
mod authenticate;
mod graph;
mod identity;
pub mod permission;
mod reach;
mod readable;
mod routes;
pub mod scope;
pub mod secrets;

pub use authenticate::authenticate;
pub use identity::{Caller, Identity};
pub use permission::Access;
