//! Logs of running containers through their gateways, and saved logs, as the Arvados controller
//! serves them.
//!
//! crunch-run connects to the server, which then opens streams on that connection (`tunnel`,
//! `tunnel_registry`). A request for a log goes through such a stream to crunch-run's gateway
//! (`proxy`), or is served from the saved collection (`saved_log`, `propfind`). Both ends prove
//! that they know the gateway's secret (`secret`). The routes are `http::gateway_tunnel` and
//! `http::container_log`.

pub mod propfind;
pub mod proxy;
pub mod saved_log;
pub mod secret;
pub mod tunnel;
pub mod tunnel_registry;
