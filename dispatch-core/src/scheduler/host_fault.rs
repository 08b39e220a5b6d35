//! A fault that stops all starts, as a state: of the submit host, or of the file storage. Pure.
//!
//! Input: trials, submissions, and attempts that could store nothing. Output: the reason for which
//! nothing is started, and its log lines.

use std::time::Duration;

use exp_backoff::Backoff;
use tokio::time::Instant;

/// Minimum time for which a failed submission holds the starts. Each further one doubles it: what
/// fails there may be something that a trial does not find.
const INITIAL_HOLD: Duration = Duration::from_secs(2);
/// See [`INITIAL_HOLD`].
const MAX_HOLD: Duration = Duration::from_secs(60);
/// Time after which containers are tried although each trial failed, if no trial ever succeeded:
/// the nodes may reach storage that this host does not.
const UNTRUSTED_HOLD: Duration = Duration::from_secs(600);

/// Which part has the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    SubmitHost,
    FileStorage,
}

/// Whether a part has a fault.
#[derive(Debug)]
pub(crate) struct Fault {
    part: Part,
    /// What the fault is, and since when it holds.
    found: Option<(String, Instant)>,
    /// A successful trial before this time ends no fault.
    held_until: Option<Instant>,
    /// Time of the next hold. It grows with the faults in a row that submissions find.
    hold: Backoff,
    /// Whether a failed trial is believed.
    is_trial_trusted: bool,
}

impl Default for Fault {
    /// The submit host, without a fault.
    fn default() -> Self {
        Self {
            part: Part::SubmitHost,
            found: None,
            held_until: None,
            hold: Backoff::new(INITIAL_HOLD, MAX_HOLD),
            is_trial_trusted: true,
        }
    }
}

impl Fault {
    /// The file storage, without a fault. Only attempts find one: a trial from this host proves
    /// nothing about the nodes, before one has succeeded.
    pub(crate) fn of_storage() -> Self {
        Self {
            part: Part::FileStorage,
            is_trial_trusted: false,
            ..Self::default()
        }
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.found.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// Records the result of a trial.
    pub(crate) fn tried(&mut self, now: Instant, result: Result<(), String>) {
        let is_held = self.held_until.is_some_and(|until| now < until);
        let since = self.found.as_ref().map(|(_, since)| *since);
        if let Err(reason) = &result {
            tracing::debug!(part = ?self.part, reason, "a trial failed");
        }
        match result {
            Err(reason) if self.is_trial_trusted => self.set(now, reason),
            Err(_) => {
                let is_over = |since| now.duration_since(since) >= UNTRUSTED_HOLD;
                if since.is_some_and(is_over) {
                    self.clear();
                }
            }
            Ok(()) => {
                self.is_trial_trusted = true;
                if !is_held {
                    self.clear();
                }
            }
        }
    }

    /// Records a submission that failed on this host, or an attempt that could store nothing.
    pub(crate) fn submission_failed(&mut self, now: Instant, reason: &str) {
        // The submissions of one moment count once.
        if self.found.is_none() {
            self.held_until = Some(now + self.hold.next_delay());
        }
        self.set(now, reason.to_owned());
    }

    /// Records a submission that reached the scheduler.
    pub(crate) fn submission_sent(&mut self) {
        self.hold.reset();
    }

    fn clear(&mut self) {
        let log = "containers are started again";
        match (self.found.take(), self.part) {
            (None, _) => {}
            (Some(_), Part::SubmitHost) => tracing::info!(
                event = "submit_host_mended",
                "jobs can be submitted from this host again; {log}"
            ),
            (Some(_), Part::FileStorage) => tracing::info!(
                event = "file_storage_mended",
                "the file storage is tried again; {log}"
            ),
        }
    }

    fn set(&mut self, now: Instant, reason: String) {
        let reason = match self.part {
            Part::SubmitHost => reason,
            Part::FileStorage if reason.starts_with(STORAGE_FAILS) => reason,
            Part::FileStorage => format!("{STORAGE_FAILS}: {reason}"),
        };
        let since = match (&self.found, self.part) {
            (Some((_, since)), _) => *since,
            (None, Part::SubmitHost) => {
                tracing::error!(
                    event = "submit_host_failed",
                    "no job can be submitted from this host, so no container is started: {reason}"
                );
                now
            }
            (None, Part::FileStorage) => {
                tracing::error!(
                    event = "file_storage_failed",
                    "no container is started before a block can be stored: {reason}"
                );
                now
            }
        };
        self.found = Some((reason, since));
    }
}

/// First words of a reason.
const STORAGE_FAILS: &str = "the file storage (Keep) takes no data";

#[cfg(test)]
mod tests {
    use super::*;

    enum Observed {
        Good,
        Bad,
        NotSent,
        Sent,
    }
    use Observed::{Bad, Good, NotSent, Sent};

    #[test]
    fn a_fault_holds_until_a_trial_succeeds_after_the_hold() {
        let start = Instant::now();
        for (what, observations) in [
            (
                "a trial finds it and another its end",
                vec![(0, Bad, true), (1, Good, false)],
            ),
            (
                "a good trial is no fault",
                vec![(0, Good, false), (5, Good, false)],
            ),
            (
                "a submission finds what the trial does not",
                vec![
                    (0, NotSent, true),
                    (0, NotSent, true),
                    (1, Good, true),
                    (2, Good, false),
                    (3, NotSent, true),
                    (6, Good, true),
                    (7, Good, false),
                ],
            ),
            (
                "a job that was sent resets the hold",
                vec![
                    (0, NotSent, true),
                    (2, Good, false),
                    (2, Sent, false),
                    (3, NotSent, true),
                    (5, Good, false),
                ],
            ),
        ] {
            let mut fault = Fault::default();
            for (second, observed, expected) in observations {
                let now = start + Duration::from_secs(second);
                match observed {
                    Good => fault.tried(now, Ok(())),
                    Bad => fault.tried(now, Err("it is full".to_owned())),
                    NotSent => fault.submission_failed(now, "it is full"),
                    Sent => fault.submission_sent(),
                }
                assert_eq!(
                    fault.reason().is_some(),
                    expected,
                    "{what}, second {second}"
                );
            }
        }
    }

    /// Seconds, what is observed, and whether starts are held then.
    type Step = (u64, Observed, bool);

    #[test]
    fn attempts_find_a_fault_of_the_storage_and_a_trial_ends_it() {
        let rows: [(&str, Vec<Step>); 3] = [
            (
                "a failed trial alone is no fault",
                vec![(0, Bad, false), (5, Bad, false)],
            ),
            (
                "a trial that has succeeded is believed",
                vec![
                    (0, Good, false),
                    (5, NotSent, true),
                    (6, Bad, true),
                    (5000, Bad, true),
                    (5001, Good, false),
                ],
            ),
            (
                "storage that only the nodes reach",
                vec![
                    (0, Bad, false),
                    (5, NotSent, true),
                    (600, Bad, true),
                    (605, Bad, false),
                    (606, NotSent, true),
                    (1206, Bad, false),
                ],
            ),
        ];
        for (what, steps) in rows {
            let mut fault = Fault::of_storage();
            let start = Instant::now();
            for (second, observed, expected) in steps {
                let now = start + Duration::from_secs(second);
                match observed {
                    Good => fault.tried(now, Ok(())),
                    Bad => fault.tried(now, Err("it is full".to_owned())),
                    NotSent => fault.submission_failed(now, "it is full"),
                    Sent => fault.submission_sent(),
                }
                let reason = fault.reason();
                assert_eq!(reason.is_some(), expected, "{what}, second {second}");
                let words = "the file storage (Keep) takes no data: it is full";
                assert!(reason.is_none_or(|reason| reason == words), "{reason:?}");
            }
        }
    }

    #[test]
    fn the_hold_is_at_most_a_minute() {
        let mut fault = Fault::default();
        let mut now = Instant::now();
        for _ in 0..40 {
            fault.submission_failed(now, "it is full");
            now += MAX_HOLD;
            fault.tried(now, Ok(()));
            assert!(fault.reason().is_none());
        }
    }
}
