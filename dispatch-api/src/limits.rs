//! Limits of requests, memory and websockets: in all, and for each client.
//!
//! A client is the user of a valid token, the container of an attempt token, or an address. Each
//! has a share, which is a half or less, so no client can take everything from the others. Shares
//! are upper limits: nothing is reserved for clients that send no requests. That of an ordinary
//! user is so small that the user's requests wait for each other, and not those of others for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Identity;
use crate::db::readers;
use crate::error::{ApiError, Result};

/// Maximum size in bytes of the body of an API request, and of a block.
pub const MAX_BODY_BYTES: u64 = 64 << 20;
/// Maximum number of requests that use the database or files at the same time. Others wait for
/// [`QUEUE_TIMEOUT`].
pub const MAX_CONCURRENT_REQUESTS: usize = 96;
/// Maximum number of these requests for one administrator or attempt: dispatchers are among them.
const MAX_CONCURRENT_TRUSTED_REQUESTS: usize = 64;
/// Maximum number of these requests for another user, if there are so many processors and one more:
/// slow listings of one user leave connections to the database, and a processor, to the others.
const MAX_CONCURRENT_REQUESTS_OF_USER: usize = readers::CONNECTIONS / 2;
/// Maximum number of these requests for one address without a valid token.
const MAX_CONCURRENT_ANONYMOUS_REQUESTS: usize = 16;
/// Maximum number of tokens that are checked at the same time. A check takes less than 1 ms.
const MAX_CONCURRENT_TOKEN_CHECKS: usize = 16;
/// Maximum number of websockets with a valid token, in all and for one client.
pub const MAX_WEBSOCKETS: usize = 1024;
const MAX_WEBSOCKETS_PER_CLIENT: usize = 256;
/// Maximum number of websockets without a valid token, which only an emulated Arvados accepts.
pub const MAX_ANONYMOUS_WEBSOCKETS: usize = 64;
const MAX_ANONYMOUS_WEBSOCKETS_PER_CLIENT: usize = 16;
/// Timeout of the wait for the client's own earlier requests.
const OWN_QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the wait for a request slot.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the wait for memory; longer, because a large body takes seconds.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of shares from which unused ones are removed.
const SHARES_BEFORE_CLEANUP: usize = 256;

/// Whose share a request uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientKey {
    User(String),
    Admin(String),
    /// The container of an attempt token; all attempts of a dispatcher have the same user.
    Attempt(String),
    Address(IpAddr),
}

impl ClientKey {
    pub fn of(caller: &Identity) -> Self {
        match &caller.attempt_of {
            // Only a dispatcher has many attempts. Other users could name any container.
            Some(container) if caller.is_admin => ClientKey::Attempt(container.clone()),
            None if caller.is_admin => ClientKey::Admin(caller.user_uuid.clone()),
            _ => ClientKey::User(caller.user_uuid.clone()),
        }
    }
}

impl std::fmt::Display for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientKey::User(uuid) | ClientKey::Admin(uuid) | ClientKey::Attempt(uuid) => {
                f.write_str(uuid)
            }
            ClientKey::Address(address) => address.fmt(f),
        }
    }
}

/// What one client uses.
pub struct ClientShare {
    requests: Arc<Semaphore>,
    work: Arc<Semaphore>,
    memory_kib: Arc<Semaphore>,
    parsed_kib: Arc<Semaphore>,
    /// Memory of what bodies of clients of this kind say, and the part of it for one client.
    parsed_lane: Arc<Semaphore>,
    max_parsed: u64,
    websockets: Arc<Semaphore>,
    /// Events are sent to one websocket of a client at a time.
    pub event_turns: Arc<Semaphore>,
}

pub struct Limits {
    max_connections: usize,
    max_request_memory: u64,
    work: Arc<Semaphore>,
    token_checks: Arc<Semaphore>,
    /// Memory of bodies and responses.
    memory_kib: Arc<Semaphore>,
    /// Memory of what bodies of users say, once parsed. It is counted apart: requests that have a
    /// body, and wait for more, would wait for each other.
    parsed_kib: Arc<Semaphore>,
    /// The same of administrators and attempts, so that dispatchers wait for no user.
    trusted_parsed_kib: Arc<Semaphore>,
    websockets: Arc<Semaphore>,
    anonymous_websockets: Arc<Semaphore>,
    shares: Mutex<HashMap<ClientKey, Arc<ClientShare>>>,
}

/// Permits of one use; dropping the value returns them.
pub type Permits = [OwnedSemaphorePermit; 2];

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits))
}

impl Limits {
    pub fn new(max_connections: usize, max_request_memory: u64) -> Self {
        Limits {
            max_connections,
            max_request_memory,
            work: semaphore(MAX_CONCURRENT_REQUESTS),
            token_checks: semaphore(MAX_CONCURRENT_TOKEN_CHECKS),
            memory_kib: semaphore(kib(max_request_memory) as usize),
            parsed_kib: semaphore(kib(max_request_memory / 8 * 3) as usize),
            trusted_parsed_kib: semaphore(kib(max_request_memory / 8) as usize),
            websockets: semaphore(MAX_WEBSOCKETS),
            anonymous_websockets: semaphore(MAX_ANONYMOUS_WEBSOCKETS),
            shares: Mutex::default(),
        }
    }

    /// The share of a client. Clients without a request in progress have none.
    pub fn share(&self, key: &ClientKey) -> Arc<ClientShare> {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(key) {
            return share.clone();
        }
        if shares.len() >= SHARES_BEFORE_CLEANUP {
            shares.retain(|_, share| share.is_used());
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (work, websockets) = match key {
            ClientKey::Address(_) => (
                MAX_CONCURRENT_ANONYMOUS_REQUESTS,
                MAX_ANONYMOUS_WEBSOCKETS_PER_CLIENT,
            ),
            ClientKey::User(_) => (
                (processors - 1).clamp(1, MAX_CONCURRENT_REQUESTS_OF_USER),
                MAX_WEBSOCKETS_PER_CLIENT,
            ),
            ClientKey::Admin(_) | ClientKey::Attempt(_) => {
                (MAX_CONCURRENT_TRUSTED_REQUESTS, MAX_WEBSOCKETS_PER_CLIENT)
            }
        };
        let is_trusted = matches!(key, ClientKey::Admin(_) | ClientKey::Attempt(_));
        let (lane, eighths) = match is_trusted {
            true => (&self.trusted_parsed_kib, 1),
            false => (&self.parsed_kib, 3),
        };
        let max_parsed = self.max_request_memory / 16 * eighths;
        let share = Arc::new(ClientShare {
            requests: semaphore((self.max_connections / 2).max(1)),
            work: semaphore(work),
            memory_kib: semaphore(kib(self.max_memory_per_client()) as usize),
            parsed_kib: semaphore(kib(max_parsed) as usize),
            parsed_lane: lane.clone(),
            max_parsed,
            websockets: semaphore(websockets),
            event_turns: semaphore(1),
        });
        shares.insert(key.clone(), share.clone());
        share
    }

    fn max_memory_per_client(&self) -> u64 {
        self.max_request_memory / 2
    }

    /// Admits one more request of a client, from its token to the end of its response.
    pub fn admit_request(&self, share: &ClientShare) -> Result<OwnedSemaphorePermit> {
        share.requests.clone().try_acquire_owned().map_err(|_| {
            ApiError::TooManyRequests(format!(
                "you have {} requests in progress, which is the limit; try again in a second",
                self.max_connections / 2
            ))
        })
    }

    /// Waits for the turn of a token check.
    pub async fn acquire_token_check(&self) -> Result<OwnedSemaphorePermit> {
        let turn = acquire(&self.token_checks, 1, QUEUE_TIMEOUT).await;
        turn.ok_or(ApiError::Busy)
    }

    /// Waits for the turn of a request that uses the database or files.
    pub async fn acquire_work(&self, share: &ClientShare) -> Result<Permits> {
        let refusal =
            "as many of your requests are running as one client may have; try again in a second";
        let timeouts = [OWN_QUEUE_TIMEOUT, QUEUE_TIMEOUT];
        acquire_both(&share.work, &self.work, 1, timeouts, refusal).await
    }

    /// Waits for memory for a request body of this size.
    pub async fn acquire_memory(&self, share: &ClientShare, bytes: u64) -> Result<Permits> {
        let bytes = bytes.min(self.max_memory_per_client());
        acquire_bytes(&share.memory_kib, &self.memory_kib, bytes, MEMORY_TIMEOUT).await
    }

    /// Waits for memory for a parsed body. One that takes more than the share of the client waits
    /// until it is the only one.
    pub async fn acquire_parsed(share: &ClientShare, bytes: u64) -> Result<Permits> {
        let bytes = bytes.min(share.max_parsed);
        acquire_bytes(&share.parsed_kib, &share.parsed_lane, bytes, MEMORY_TIMEOUT).await
    }

    /// Counts the memory of a response, or rejects it: it would fill memory while it waits.
    pub async fn count_response(&self, share: &ClientShare, bytes: u64) -> Result<Permits> {
        let bytes = bytes.min(self.max_memory_per_client());
        acquire_bytes(&share.memory_kib, &self.memory_kib, bytes, Duration::ZERO).await
    }

    /// Admits a websocket of a client.
    pub fn admit_websocket(&self, key: &ClientKey) -> Result<Permits> {
        let all = match key {
            ClientKey::Address(_) => &self.anonymous_websockets,
            _ => &self.websockets,
        };
        let share = self.share(key);
        let own = share.websockets.clone().try_acquire_owned().map_err(|_| {
            ApiError::TooManyRequests(
                "you have too many open websockets; close one, or poll instead".into(),
            )
        })?;
        let all = all.clone().try_acquire_owned();
        Ok([own, all.map_err(|_| ApiError::Busy)?])
    }
}

impl ClientShare {
    fn is_used(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
            || [
                &self.requests,
                &self.work,
                &self.memory_kib,
                &self.parsed_kib,
                &self.websockets,
                &self.event_turns,
            ]
            .into_iter()
            .any(|semaphore| Arc::strong_count(semaphore) > 1)
    }
}

async fn acquire_bytes(
    own: &Arc<Semaphore>,
    all: &Arc<Semaphore>,
    bytes: u64,
    timeout: Duration,
) -> Result<Permits> {
    let refusal = "your other requests and responses use all memory that one user may have; \
                   try again in a second";
    acquire_both(own, all, kib(bytes), [timeout; 2], refusal).await
}

/// Waits for permits of the client's own share, and then for as many of all clients.
async fn acquire_both(
    own: &Arc<Semaphore>,
    all: &Arc<Semaphore>,
    permits: u32,
    [own_timeout, timeout]: [Duration; 2],
    refusal: &str,
) -> Result<Permits> {
    let own = acquire(own, permits, own_timeout).await;
    let own = own.ok_or_else(|| ApiError::TooManyRequests(refusal.into()))?;
    let all = acquire(all, permits, timeout).await;
    Ok([own, all.ok_or(ApiError::Busy)?])
}

async fn acquire(
    semaphore: &Arc<Semaphore>,
    permits: u32,
    timeout: Duration,
) -> Option<OwnedSemaphorePermit> {
    let permit = semaphore.clone().acquire_many_owned(permits);
    // The semaphores are never closed.
    tokio::time::timeout(timeout, permit).await.ok()?.ok()
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits::new(4, 256 << 10)
    }

    fn user(name: &str) -> ClientKey {
        ClientKey::User(name.to_owned())
    }

    #[test]
    fn one_client_cannot_take_everything() {
        let limits = limits();
        let greedy = limits.share(&user("greedy"));
        let _two = [
            limits.admit_request(&greedy).unwrap(),
            limits.admit_request(&greedy).unwrap(),
        ];
        let refused = limits.admit_request(&greedy).unwrap_err();
        assert_eq!(refused.status().as_u16(), 429);
        assert!(limits.admit_request(&limits.share(&user("other"))).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_of_one_client_leaves_half_to_the_others() {
        let limits = limits();
        let greedy = limits.share(&user("greedy"));
        let held = limits.acquire_memory(&greedy, 128 << 10).await.unwrap();
        let refused = limits.acquire_memory(&greedy, 1024).await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 429);
        let other = limits.share(&user("other"));
        assert!(limits.acquire_memory(&other, 128 << 10).await.is_ok());
        drop(held);
        assert!(limits.acquire_memory(&greedy, 128 << 10).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn parsed_json_waits_for_parsed_json_alone() {
        let limits = limits();
        let greedy = limits.share(&user("greedy"));
        let _bodies = limits.acquire_memory(&greedy, 128 << 10).await.unwrap();
        // More than the share of one client.
        let held = Limits::acquire_parsed(&greedy, 1 << 30).await.unwrap();
        let refused = Limits::acquire_parsed(&greedy, 1024).await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 429);
        let other = limits.share(&user("other"));
        let _beside = Limits::acquire_parsed(&other, 1 << 30).await.unwrap();
        // Two users have all that users may have, and a dispatcher waits for neither.
        let third = limits.share(&user("third"));
        assert!(Limits::acquire_parsed(&third, 1024).await.is_err());
        for key in [
            ClientKey::Admin("dispatcher".into()),
            ClientKey::Attempt("one".into()),
        ] {
            let share = limits.share(&key);
            assert!(Limits::acquire_parsed(&share, 1 << 30).await.is_ok());
        }
        drop(held);
        assert!(Limits::acquire_parsed(&greedy, 1024).await.is_ok());
    }

    #[test]
    fn websockets_are_counted_until_they_end() {
        let limits = limits();
        let key = ClientKey::Address([10, 0, 0, 1].into());
        let mut open: Vec<_> = (0..MAX_ANONYMOUS_WEBSOCKETS_PER_CLIENT)
            .map(|_| limits.admit_websocket(&key).unwrap())
            .collect();
        assert!(limits.admit_websocket(&key).is_err());
        assert!(limits.admit_websocket(&user("known")).is_ok());
        open.pop();
        assert!(limits.admit_websocket(&key).is_ok());
    }

    #[test]
    fn shares_without_a_use_are_forgotten() {
        let limits = limits();
        let kept = limits.admit_websocket(&user("kept")).unwrap();
        for number in 0..2 * SHARES_BEFORE_CLEANUP {
            limits.share(&user(&number.to_string()));
        }
        let shares = limits.shares.lock();
        assert!(shares.len() <= SHARES_BEFORE_CLEANUP);
        assert!(shares.contains_key(&user("kept")));
        drop(kept);
    }
}
