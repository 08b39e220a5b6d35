//! Warnings about rejected requests: one in a minute for each kind of error and client.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::warn;

use crate::error::ApiError;

const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of kinds that are counted separately.
const MAX_KINDS: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    error: Discriminant<ApiError>,
    /// User or address; empty for all clients beyond [`MAX_KINDS`].
    client: String,
}

struct Rejections {
    status: u16,
    since: Instant,
    not_logged: u64,
}

#[derive(Default)]
pub struct RejectionLog {
    recent: Mutex<HashMap<Kind, Rejections>>,
}

impl RejectionLog {
    /// Whether this rejection is logged; otherwise it is counted.
    pub fn should_log(&self, problem: &ApiError, client: &str) -> bool {
        let mut recent = self.recent.lock();
        let mut kind = Kind {
            error: discriminant(problem),
            client: client.to_owned(),
        };
        if recent.len() >= MAX_KINDS && !recent.contains_key(&kind) {
            kind.client = String::new();
        }
        if let Some(known) = recent.get_mut(&kind)
            && known.since.elapsed() < WARNING_INTERVAL
        {
            known.not_logged += 1;
            return false;
        }
        let first = Rejections {
            status: problem.status().as_u16(),
            since: Instant::now(),
            not_logged: 0,
        };
        if let Some(previous) = recent.insert(kind.clone(), first) {
            log_count(&kind, &previous);
        }
        true
    }

    /// Logs the counts of the last minute. `periodic_tasks` calls it.
    pub fn log_counts(&self) {
        self.recent.lock().retain(|kind, rejections| {
            let is_recent = rejections.since.elapsed() < WARNING_INTERVAL;
            if !is_recent {
                log_count(kind, rejections);
            }
            is_recent
        });
    }
}

fn log_count(kind: &Kind, rejections: &Rejections) {
    if rejections.not_logged > 0 {
        warn!(
            client = kind.client,
            status = rejections.status,
            requests = rejections.not_logged,
            "rejected more requests of this kind"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_and_counted_afterwards() {
        let log = RejectionLog::default();
        let invalid = || ApiError::invalid("x");
        assert!(log.should_log(&invalid(), "a"));
        assert!(!log.should_log(&invalid(), "a"));
        assert!(log.should_log(&ApiError::NotLoggedIn, "a"));
        assert!(log.should_log(&invalid(), "b"));
        log.log_counts();
        assert!(!log.should_log(&invalid(), "a"), "the minute is not over");
        let counts: u64 = log.recent.lock().values().map(|one| one.not_logged).sum();
        assert_eq!(counts, 2);
    }

    #[test]
    fn a_flood_of_clients_takes_bounded_memory() {
        let log = RejectionLog::default();
        for number in 0..3 * MAX_KINDS {
            log.should_log(&ApiError::NotLoggedIn, &number.to_string());
        }
        assert!(log.recent.lock().len() <= MAX_KINDS + 1);
    }
}
