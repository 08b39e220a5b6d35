//! Tests of the server over HTTPS, with the requests that its clients make.

/// How long a test waits for one step before it fails: no promise, and more than an overloaded
/// machine needs.
const STEP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(240);

mod attempt_tokens;
mod authorization_matrix;
mod block_signatures;
mod blocks;
mod bulk;
mod collections;
mod container_requests;
mod container_tokens;
mod containers;
mod emulation;
mod events;
mod fixture;
mod floods;
mod gateway;
mod listing;
mod processes;
mod retries;
mod takeovers;
mod tokens;
