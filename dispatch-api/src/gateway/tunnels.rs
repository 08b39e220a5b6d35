//! The tunnels that are open: at most one of a container, and so many in all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::tunnel::Tunnel;
use crate::error::{ApiError, Result};

pub struct Tunnels {
    open: Mutex<HashMap<String, Arc<Tunnel>>>,
    room: Arc<Semaphore>,
}

impl Tunnels {
    pub fn new(most: usize) -> Tunnels {
        Tunnels {
            open: Mutex::default(),
            room: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Tunnel>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more, to be held for as long as it lasts. Where there is none, the container's earlier tunnel
    /// gives up its own, so that the next attempt finds one.
    pub fn reserve(&self, container: &str) -> Result<OwnedSemaphorePermit> {
        let place = self.room.clone().try_acquire_owned();
        place.map_err(|_| {
            if let Some(earlier) = self.of(container) {
                earlier.end.cancel();
            }
            ApiError::Gateway("there are too many gateway tunnels".into())
        })
    }

    /// The latest tunnel counts: the one before may hang on a connection that is no more.
    pub fn insert(&self, container: &str, tunnel: Arc<Tunnel>) {
        let before = self.lock().insert(container.to_owned(), tunnel);
        if let Some(before) = before {
            before.end.cancel();
        }
    }

    pub fn remove(&self, container: &str, tunnel: &Arc<Tunnel>) {
        let mut open = self.lock();
        if open
            .get(container)
            .is_some_and(|known| Arc::ptr_eq(known, tunnel))
        {
            open.remove(container);
        }
    }

    pub fn of(&self, container: &str) -> Option<Arc<Tunnel>> {
        self.lock().get(container).cloned()
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }
}
