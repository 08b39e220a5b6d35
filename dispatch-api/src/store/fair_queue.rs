//! A queue from which clients get the same time, whatever each of them puts in.
//!
//! Input: items with their client, and how long each item took. Output: the next item, of the
//! client that has used the least time. A client that was idle does not save time up: it starts
//! level with the one that is served (start-time fair queueing, Goyal et al. 1996).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Why an item was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Its client has too many waiting, or all have.
    Full,
    Closed,
}

/// Maximum numbers of waiting items.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    pub all: usize,
    pub of_one: usize,
}

pub struct FairQueue<K, T> {
    limits: QueueLimits,
    state: Mutex<State<K, T>>,
    changed: Condvar,
}

struct State<K, T> {
    clients: HashMap<K, Waiting<T>>,
    /// Number of items.
    count: usize,
    /// Time that the client had used whose item was taken last.
    level: Duration,
    is_closed: bool,
}

struct Waiting<T> {
    items: VecDeque<T>,
    used: Duration,
}

impl<K: Hash + Eq + Clone, T> FairQueue<K, T> {
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            state: Mutex::new(State {
                clients: HashMap::new(),
                count: 0,
                level: Duration::ZERO,
                is_closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds an item of a client.
    pub fn push(&self, client: K, item: T) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Refused::Closed);
        }
        let level = state.level;
        let own = state.clients.get(&client).map_or(0, |own| own.items.len());
        if state.count >= self.limits.all || own >= self.limits.of_one {
            return Err(Refused::Full);
        }
        let waiting = state.clients.entry(client).or_insert_with(|| Waiting {
            items: VecDeque::new(),
            used: level,
        });
        waiting.items.push_back(item);
        state.count += 1;
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the next item; waits for one. None if the queue is closed and empty.
    pub fn pop(&self) -> Option<(K, T)> {
        let mut state = self.state.lock();
        while state.count == 0 && !state.is_closed {
            self.changed.wait(&mut state);
        }
        state.take()
    }

    /// Takes the next item if there is one.
    pub fn try_pop(&self) -> Option<(K, T)> {
        self.state.lock().take()
    }

    /// Records how long an item of the client took.
    pub fn charge(&self, client: &K, took: Duration) {
        let mut state = self.state.lock();
        if let Some(waiting) = state.clients.get_mut(client) {
            waiting.used += took;
        }
        // Idle clients that are ahead of the others stay until those have caught up.
        let level = state.level;
        state
            .clients
            .retain(|_, one| !one.items.is_empty() || one.used > level);
    }

    /// Takes no more items. Those that wait can still be taken.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl<K: Hash + Eq + Clone, T> State<K, T> {
    fn take(&mut self) -> Option<(K, T)> {
        let waiting = self
            .clients
            .iter_mut()
            .filter(|(_, one)| !one.items.is_empty());
        let (client, next) = waiting.min_by_key(|(_, one)| one.used)?;
        // It was idle, and starts level with the others.
        next.used = next.used.max(self.level);
        self.level = next.used;
        let item = next.items.pop_front()?;
        self.count -= 1;
        Some((client.clone(), item))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: QueueLimits = QueueLimits {
        all: 1000,
        of_one: 500,
    };

    /// Takes `count` items, each of which takes its client's time. How many each client got.
    fn serve(queue: &FairQueue<usize, ()>, count: usize, costs: &[u64]) -> Vec<usize> {
        let mut served = vec![0; costs.len()];
        for _ in 0..count {
            let Some((client, ())) = queue.try_pop() else {
                break;
            };
            served[client] += 1;
            queue.charge(&client, Duration::from_millis(costs[client]));
        }
        served
    }

    #[test]
    fn a_client_with_slow_items_slows_no_other() {
        let queue = FairQueue::new(LIMITS);
        for _ in 0..400 {
            queue.push(0, ()).unwrap();
        }
        for _ in 0..20 {
            queue.push(1, ()).unwrap();
        }
        // The first waits for one slow item at most.
        let served = serve(&queue, 22, &[400, 2]);
        assert!(served[1] == 20 && served[0] <= 2, "{served:?}");
    }

    #[test]
    fn an_idle_client_saves_nothing_up() {
        let queue = FairQueue::new(LIMITS);
        for _ in 0..100 {
            queue.push(0, ()).unwrap();
        }
        serve(&queue, 50, &[10, 10]);
        for _ in 0..100 {
            queue.push(1, ()).unwrap();
        }
        let served = serve(&queue, 20, &[10, 10]);
        assert!(served[0] >= 9, "{served:?}");
    }

    #[test]
    fn a_client_with_many_items_leaves_room() {
        let queue = FairQueue::new(QueueLimits { all: 5, of_one: 3 });
        for _ in 0..3 {
            queue.push(0, ()).unwrap();
        }
        assert_eq!(queue.push(0, ()), Err(Refused::Full));
        assert_eq!([queue.push(1, ()), queue.push(2, ())], [Ok(()); 2]);
        assert_eq!(queue.push(3, ()), Err(Refused::Full));
        queue.close();
        assert_eq!(queue.push(1, ()), Err(Refused::Closed));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 5);
    }

    proptest! {
        /// While all clients have items waiting, no two differ by more than one item's time.
        #[test]
        fn clients_get_the_same_time(costs in prop::collection::vec(1_u64..500, 2..6)) {
            let queue = FairQueue::new(QueueLimits { all: 10_000, of_one: 2000 });
            for client in 0..costs.len() {
                for _ in 0..1000 {
                    queue.push(client, ()).unwrap();
                }
            }
            let served = serve(&queue, 500, &costs);
            let used: Vec<u64> = served.iter().zip(&costs).map(|(n, cost)| *n as u64 * cost).collect();
            let (most, least) = (used.iter().max().unwrap(), used.iter().min().unwrap());
            prop_assert!(most - least <= *costs.iter().max().unwrap(), "{used:?}");
        }
    }
}
