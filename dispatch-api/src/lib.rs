//! The embedded Arvados API server: the part of the v1 API that dispatchers, executors and the
//! Python SDK use.
//!
//! It stores records in SQLite and blocks in a content-addressed directory that speaks the Keep
//! protocol. One process, no other service.
//!
//! Layers, each using only those before it: `record`, `schema`, `db` (rows and listings); `auth`
//! (callers and scopes); `events`; `store` (transactions, audit log, revocation); `collection` and
//! `container` (rules); `gateway`; `api` and `http` (requests).

pub mod api;
pub mod app;
pub mod auth;
pub mod backup;
pub mod blocks;
mod bootstrap;
mod clock;
pub mod collection;
pub mod container;
pub mod db;
mod disk_reserve;
pub mod emulation;
pub mod error;
pub mod events;
pub mod expiry;
pub mod garbage;
mod gateway;
pub mod http;
mod json_text;
mod limits;
pub mod metrics;
mod open_files;
pub mod options;
mod periodic_tasks;
mod project;
pub mod record;
mod request_log;
pub mod schema;
pub mod server;
mod server_tls;
pub mod state_dir;
pub mod store;

pub use emulation::Emulate;
pub use options::{LogFormat, Options};
pub use server::{Server, StartError};

/// Exit status for errors that a person must correct (sysexits `EX_CONFIG`).
pub const EX_CONFIG: u8 = 78;
