//! The server driven over HTTPS, as its clients drive it.

mod blocks;
mod bulk;
mod collections;
mod container_requests;
mod containers;
mod events;
mod listing;
mod processes;
mod retries;
mod tokens;
mod world;
