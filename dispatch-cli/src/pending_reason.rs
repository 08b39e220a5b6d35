//! Prints why a job is pending while a command waits for it, once per reason.
//!
//! The reason comes from the record of the container, or from the last log entry of a dispatcher on
//! the server.

use std::time::Duration;

use arvados_client::Client;
use tokio::time::Instant;

use crate::job::{Job, JobState};
use crate::printer::eprint_note;
use crate::text::strip_control;

/// Type of the log entries that dispatchers of this suite write.
pub const DISPATCH_EVENT_TYPE: &str = "dispatch";
/// Minimum age of a reason before it is printed.
const MIN_REASON_AGE: Duration = Duration::from_secs(10);
/// Interval between two queries of the log entries on the server.
const LOG_QUERY_INTERVAL: Duration = Duration::from_secs(30);

/// Pending reasons of one job.
#[derive(Debug, Default)]
pub struct PendingReasons {
    /// The current reason, and since when.
    current: Option<(String, Instant)>,
    reported: Option<String>,
    last_note: Option<String>,
    last_query: Option<Instant>,
}

impl PendingReasons {
    /// Prints the pending reason on standard error, if it is known and new.
    pub async fn print_if_new(&mut self, client: &Client, job: &Job, now: Instant) {
        if !matches!(job.state(), JobState::Queued | JobState::Locked) {
            return;
        }
        let reason = match reason_in_record(job) {
            Some(reason) => Some(reason),
            None => self.latest_note(client, job, now).await,
        };
        if let Some(reason) = reason.and_then(|reason| self.take_new(reason, now)) {
            let state = job.state().as_str();
            eprint_note(&format!(
                "dispatch: job {} is {state}: {}",
                job.name(),
                strip_control(&reason)
            ));
        }
    }

    /// The last log entry of a dispatcher, queried at an interval.
    async fn latest_note(&mut self, client: &Client, job: &Job, now: Instant) -> Option<String> {
        let container = job.request.container_uuid.as_ref()?;
        // The first query is after one interval: most jobs start earlier.
        let last_query = *self.last_query.get_or_insert(now);
        if now.duration_since(last_query) >= LOG_QUERY_INTERVAL {
            self.last_query = Some(now);
            // An error is ignored: the reason is only a hint.
            let notes = client.last_notes(container, DISPATCH_EVENT_TYPE, 1).await;
            self.last_note = notes.unwrap_or_default().pop().map(|(_, text)| text);
        }
        self.last_note.clone()
    }

    /// Returns the reason if it is old enough and was not the last one reported.
    fn take_new(&mut self, reason: String, now: Instant) -> Option<String> {
        let since = match &self.current {
            Some((current, since)) if *current == reason => *since,
            _ => {
                self.current = Some((reason.clone(), now));
                now
            }
        };
        let is_news =
            now.duration_since(since) >= MIN_REASON_AGE && self.reported.as_ref() != Some(&reason);
        is_news.then(|| {
            self.reported = Some(reason.clone());
            reason
        })
    }
}

/// The reason in the record of the container.
fn reason_in_record(job: &Job) -> Option<String> {
    let status = &job.container.as_ref()?.runtime_status;
    let texts = [&status.error, &status.warning, &status.activity];
    texts.into_iter().flatten().next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_when_it_lasts_and_again_when_it_changes() {
        // second, reason, whether it is reported
        let rows = [
            (0, "no node has 64 CPUs", false),
            (9, "no node has 64 CPUs", false),
            (10, "no node has 64 CPUs", true),
            (60, "no node has 64 CPUs", false),
            (61, "fetching image", false),
            (62, "no node has 64 CPUs", false),
            (80, "no node has 64 CPUs", false),
            (81, "the partition is down", false),
            (95, "the partition is down", true),
        ];
        let start = Instant::now();
        let mut reasons = PendingReasons::default();
        for (second, reason, reported) in rows {
            let reason_to_print =
                reasons.take_new(reason.to_owned(), start + Duration::from_secs(second));
            assert_eq!(reason_to_print.is_some(), reported, "{second} {reason}");
        }
    }
}
