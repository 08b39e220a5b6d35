//! Open tunnels: at most one per container, and a limited total.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Result};
use crate::gateway::tunnel::Tunnel;

pub struct TunnelRegistry {
    open: Mutex<HashMap<String, Arc<Tunnel>>>,
    slots: Arc<Semaphore>,
}

impl TunnelRegistry {
    pub fn new(max_tunnels: usize) -> TunnelRegistry {
        TunnelRegistry {
            open: Mutex::default(),
            slots: Arc::new(Semaphore::new(max_tunnels.min(Semaphore::MAX_PERMITS))),
        }
    }

    /// Reserves a slot to hold while the tunnel is open. Without a free slot, the container's
    /// earlier tunnel is closed, so that the next attempt finds one.
    pub fn reserve(&self, container: &str) -> Result<OwnedSemaphorePermit> {
        let slot = self.slots.clone().try_acquire_owned();
        slot.map_err(|_| {
            if let Some(earlier) = self.get(container) {
                earlier.cancel.cancel();
            }
            ApiError::Gateway("too many gateway tunnels are open".into())
        })
    }

    /// Registers the latest tunnel and closes an earlier one, whose connection may be dead.
    pub fn insert(&self, container: &str, tunnel: Arc<Tunnel>) {
        let before = self.open.lock().insert(container.to_owned(), tunnel);
        if let Some(before) = before {
            before.cancel.cancel();
        }
    }

    pub fn remove(&self, container: &str, tunnel: &Arc<Tunnel>) {
        let mut open = self.open.lock();
        if open
            .get(container)
            .is_some_and(|known| Arc::ptr_eq(known, tunnel))
        {
            open.remove(container);
        }
    }

    pub fn get(&self, container: &str) -> Option<Arc<Tunnel>> {
        self.open.lock().get(container).cloned()
    }

    pub fn count(&self) -> usize {
        self.open.lock().len()
    }
}
