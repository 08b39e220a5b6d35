//! Live events: their form for websocket clients, and the channel of committed events.

pub mod event;

/// Maximum number of events that a listener may lag behind before it is disconnected.
pub const MAX_LISTENER_LAG: usize = 8192;
