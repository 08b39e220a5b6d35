//! The embedded Arvados API server: the v1 API for what a dispatcher, an executor and the Python SDK touch,
//! over SQLite, with a content-addressed block store speaking the Keep protocol. One process, nothing else to install.

pub mod api;
pub mod app;
pub mod auth;
pub mod blocks;
mod body;
mod bootstrap;
mod certificate;
mod clock;
pub mod collection;
mod connections;
pub mod container;
pub mod db;
pub mod edge;
pub mod emulation;
pub mod error;
pub mod events;
mod gateway;
pub mod metrics;
pub mod options;
mod random;
pub mod record;
pub mod request;
pub mod schema;
pub mod server;
pub mod state_dir;
mod ticket;
mod trail;
pub mod tx;

pub use emulation::Emulate;
pub use options::{LogFormat, Options};
pub use server::{Server, StartError, WRONG};
