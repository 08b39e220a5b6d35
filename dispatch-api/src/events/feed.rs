//! Publishes committed events to the websockets.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::event::Event;

/// Maximum number of events that a listener may lag behind before it is disconnected.
const MAX_LISTENER_LAG: usize = 8192;

/// The channel of committed events.
pub struct EventFeed {
    sender: broadcast::Sender<Arc<Event>>,
}

impl Default for EventFeed {
    fn default() -> Self {
        EventFeed {
            sender: broadcast::channel(MAX_LISTENER_LAG).0,
        }
    }
}

impl EventFeed {
    pub fn publish(&self, events: Vec<Event>) {
        for event in events {
            // An event without listeners is dropped.
            let _ = self.sender.send(Arc::new(event));
        }
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }
}
