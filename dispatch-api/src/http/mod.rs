//! HTTP: the TLS listener, routes, and handlers that stream (blocks, logs, tunnels, websockets).

pub mod authority;
pub mod block_upload;
pub mod body;
pub mod certificate;
pub mod connections;
pub mod container_log;
pub mod cors;
pub mod gateway_tunnel;
pub mod keep_blocks;
pub mod listener;
pub mod request_context;
pub mod response;
pub mod router;
pub mod tracked_body;
pub mod transfer_rate;
pub mod websocket;
