//! The table of open connections, and which one is closed when the table is full.
//!
//! Input: the address of each connection, and whether a request with a valid token is in progress
//! on it. All other connections are idle, even those that are still sending a request: nothing is
//! lost with them. A full table closes an idle connection for each new one, so a new client never
//! waits.
//!
//! Addresses have no fixed limit: one address may be a proxy with all users behind it, or a node
//! with 1,000 running containers. Instead, the address with the most connections loses one of its
//! own. An address that floods the server therefore displaces only its own connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// Number of leading bits of an IPv6 address that name one network; a client chooses the others.
const IPV6_NETWORK_BITS: u32 = 64;

pub struct ConnectionTable {
    capacity: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next_id: u64,
    entries: HashMap<u64, Entry>,
}

struct Entry {
    network: IpAddr,
    is_busy: bool,
    /// Whether a request on this connection had a valid token.
    is_authenticated: bool,
    /// Start of the connection, of its last request, or of the time since that request.
    since: Instant,
    evicted: CancellationToken,
}

/// One connection in the table; dropping the value removes it.
pub struct Connection {
    table: Arc<ConnectionTable>,
    id: u64,
    network: IpAddr,
    evicted: CancellationToken,
}

/// A request in progress; its connection is not evicted until the value is dropped.
pub struct BusyGuard(Arc<Connection>);

impl ConnectionTable {
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(ConnectionTable {
            capacity,
            open: Mutex::default(),
        })
    }

    /// Adds a connection, if necessary in the place of an idle one. Returns `None` if the table is
    /// full of busy connections.
    pub fn insert(self: &Arc<Self>, peer: IpAddr) -> Option<Arc<Connection>> {
        let network = network_of(peer);
        let evicted = CancellationToken::new();
        let mut open = self.open.lock();
        if open.entries.len() >= self.capacity {
            let victim = open.choose_victim()?;
            if let Some(entry) = open.entries.remove(&victim) {
                entry.evicted.cancel();
            }
        }
        open.next_id += 1;
        let id = open.next_id;
        open.entries.insert(
            id,
            Entry {
                network,
                is_busy: false,
                is_authenticated: false,
                since: Instant::now(),
                evicted: evicted.clone(),
            },
        );
        Some(Arc::new(Connection {
            table: self.clone(),
            id,
            network,
            evicted,
        }))
    }
}

impl Open {
    /// The idle connection to close: of the address with the most connections, first one that never
    /// authenticated, then the one that has been idle longest.
    fn choose_victim(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for entry in self.entries.values() {
            *counts.entry(entry.network).or_default() += 1;
        }
        let rank = |entry: &Entry| {
            let share = counts.get(&entry.network).copied().unwrap_or_default();
            (
                std::cmp::Reverse(share),
                entry.is_authenticated,
                entry.since,
            )
        };
        self.entries
            .iter()
            .filter(|(_, entry)| !entry.is_busy)
            .min_by_key(|(_, entry)| rank(entry))
            .map(|(id, _)| *id)
    }
}

impl Connection {
    /// The address of the client; for IPv6 its network.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Completes when the connection must be closed for another one.
    pub fn evicted(&self) -> WaitForCancellationFuture<'_> {
        self.evicted.cancelled()
    }

    /// Records that a request has begun.
    pub fn touch(&self) {
        self.update(|entry| entry.since = Instant::now());
    }

    /// Marks the connection as busy with a request that has a valid token.
    pub fn begin_request(self: &Arc<Self>) -> BusyGuard {
        self.update(|entry| {
            entry.is_busy = true;
            entry.is_authenticated = true;
        });
        BusyGuard(self.clone())
    }

    /// Takes an upgraded connection out of the table. Websockets and tunnels have limits of their
    /// own.
    pub fn release(&self) {
        self.table.open.lock().entries.remove(&self.id);
    }

    fn update(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.table.open.lock().entries.get_mut(&self.id) {
            change(entry);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.release();
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.update(|entry| {
            entry.is_busy = false;
            entry.since = Instant::now();
        });
    }
}

fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << (128 - IPV6_NETWORK_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_evicted(connection: &Connection) -> bool {
        connection.evicted.is_cancelled()
    }

    #[test]
    fn a_full_table_closes_the_oldest_idle_connection_of_the_largest_address() {
        let table = ConnectionTable::new(4);
        let single = table.insert(address(1)).unwrap();
        let many: Vec<_> = (0..3).map(|_| table.insert(address(2)).unwrap()).collect();
        let newcomer = table.insert(address(3)).unwrap();
        assert!(is_evicted(&many[0]));
        for kept in [&single, &many[1], &many[2], &newcomer] {
            assert!(!is_evicted(kept));
        }
        let _another = table.insert(address(4)).unwrap();
        assert!(is_evicted(&many[1]) && !is_evicted(&single));
    }

    #[test]
    fn busy_connections_stay_and_authenticated_ones_go_last() {
        let table = ConnectionTable::new(3);
        let busy = table.insert(address(1)).unwrap();
        let guard = busy.begin_request();
        let known = table.insert(address(1)).unwrap();
        drop(known.begin_request());
        let stranger = table.insert(address(1)).unwrap();
        let _first = table.insert(address(2)).unwrap();
        assert!(is_evicted(&stranger) && !is_evicted(&known));
        let _second = table.insert(address(3)).unwrap();
        assert!(is_evicted(&known) && !is_evicted(&busy));
        drop(guard);
    }

    #[test]
    fn a_table_full_of_requests_takes_no_more_until_one_ends() {
        let table = ConnectionTable::new(1);
        let only = table.insert(address(1)).unwrap();
        let guard = only.begin_request();
        assert!(table.insert(address(2)).is_none());
        drop(guard);
        assert!(table.insert(address(2)).is_some());
    }

    #[test]
    fn an_upgraded_connection_leaves_its_place() {
        let table = ConnectionTable::new(1);
        let upgraded = table.insert(address(1)).unwrap();
        upgraded.release();
        let _next = table.insert(address(1)).unwrap();
        assert!(!is_evicted(&upgraded));
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), address(1));
    }
}
