//! Why a job that somebody waits for does not run, told once for each reason.
//!
//! The reason comes from the container's record, or from the last note of a dispatcher in the server's logs.

use std::time::Duration;

use arvados_client::Client;
use tokio::time::Instant;

use crate::commands::explain::NOTES;
use crate::job::{Job, JobState};
use crate::output::{note, plain};

/// Time for which a reason holds before it is told: what is over sooner is no news.
const REASON_DELAY: Duration = Duration::from_secs(10);
/// Interval between two looks at the server's logs.
const NOTES_INTERVAL: Duration = Duration::from_secs(30);

/// The reasons of one job.
#[derive(Debug, Default)]
pub struct Reasons {
    /// The newest reason, and since when it holds.
    current: Option<(String, Instant)>,
    told: Option<String>,
    noted: Option<String>,
    looked: Option<Instant>,
}

impl Reasons {
    /// Tells on standard error why the job does not run, where that is known and new.
    pub async fn tell(&mut self, client: &Client, job: &Job, now: Instant) {
        if !matches!(job.state(), JobState::Queued | JobState::Locked) {
            return;
        }
        let reason = match recorded(job) {
            Some(reason) => Some(reason),
            None => self.noted(client, job, now).await,
        };
        if let Some(reason) = reason.and_then(|reason| self.news(reason, now)) {
            let state = job.state().word();
            note(&format!(
                "dispatch: job {} is {state}: {}",
                job.name(),
                plain(&reason)
            ));
        }
    }

    /// What a dispatcher noted last, asked for now and then.
    async fn noted(&mut self, client: &Client, job: &Job, now: Instant) -> Option<String> {
        let container = job.request.container_uuid.as_ref()?;
        // The first interval passes without a look: most jobs start meanwhile.
        let looked = *self.looked.get_or_insert(now);
        if now.duration_since(looked) >= NOTES_INTERVAL {
            self.looked = Some(now);
            // It is only help.
            let notes = client.last_notes(container, NOTES, 1).await;
            self.noted = notes.unwrap_or_default().pop().map(|(_, text)| text);
        }
        self.noted.clone()
    }

    /// The reason, if it has held for long enough and was not told last.
    fn news(&mut self, reason: String, now: Instant) -> Option<String> {
        let since = match &self.current {
            Some((current, since)) if *current == reason => *since,
            _ => {
                self.current = Some((reason.clone(), now));
                now
            }
        };
        let is_news =
            now.duration_since(since) >= REASON_DELAY && self.told.as_ref() != Some(&reason);
        is_news.then(|| {
            self.told = Some(reason.clone());
            reason
        })
    }
}

/// What the container's record says of why it does not run.
fn recorded(job: &Job) -> Option<String> {
    let status = &job.container.as_ref()?.runtime_status;
    let texts = [&status.error, &status.warning, &status.activity];
    texts.into_iter().flatten().next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_when_it_lasts_and_again_when_it_changes() {
        // second, reason, whether it is told
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
        let mut reasons = Reasons::default();
        for (second, reason, told) in rows {
            let news = reasons.news(reason.to_owned(), start + Duration::from_secs(second));
            assert_eq!(news.is_some(), told, "{second} {reason}");
        }
    }
}
