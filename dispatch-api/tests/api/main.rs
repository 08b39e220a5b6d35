//! The server driven over HTTPS, as its clients drive it.

mod attempt_tokens;
mod blocks;
mod bulk;
mod collections;
mod container_requests;
mod containers;
mod emulation;
mod events;
mod gateway;
mod listing;
mod processes;
mod retries;
mod tokens;
mod world;
