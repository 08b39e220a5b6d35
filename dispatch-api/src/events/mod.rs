//! Live events: their form for websocket clients, and the channel of committed events.

pub mod event;
pub mod feed;
