//! The fault of the submit host, as a state. Input: trials of the host and submissions. Output: the
//! reason for which nothing is started, and its log lines.

use std::time::Duration;

use exp_backoff::Backoff;
use tokio::time::Instant;

/// Minimum time for which a failed submission holds the starts. Each further one doubles it: what
/// fails there may be something that a trial does not find.
const INITIAL_HOLD: Duration = Duration::from_secs(2);
/// See [`INITIAL_HOLD`].
const MAX_HOLD: Duration = Duration::from_secs(60);

/// Whether the submit host has a fault.
#[derive(Debug)]
pub(crate) struct HostFault {
    reason: Option<String>,
    /// A successful trial before this time ends no fault.
    held_until: Option<Instant>,
    /// Time of the next hold. It grows with the faults in a row that submissions find.
    hold: Backoff,
}

impl Default for HostFault {
    fn default() -> Self {
        Self {
            reason: None,
            held_until: None,
            hold: Backoff::new(INITIAL_HOLD, MAX_HOLD),
        }
    }
}

impl HostFault {
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Records the result of a trial.
    pub(crate) fn tried(&mut self, now: Instant, result: Result<(), String>) {
        match result {
            Err(reason) => self.set(reason),
            Ok(()) if self.held_until.is_some_and(|until| now < until) => {}
            Ok(()) => {
                if self.reason.take().is_some() {
                    tracing::info!(
                        event = "submit_host_mended",
                        "jobs can be submitted from this host again; containers are started"
                    );
                }
            }
        }
    }

    /// Records a submission that failed on this host.
    pub(crate) fn submission_failed(&mut self, now: Instant, reason: &str) {
        // The submissions of one moment count once.
        if self.reason.is_none() {
            self.held_until = Some(now + self.hold.next_delay());
        }
        self.set(reason.to_owned());
    }

    /// Records a submission that reached the scheduler.
    pub(crate) fn submission_sent(&mut self) {
        self.hold.reset();
    }

    fn set(&mut self, reason: String) {
        if self.reason.is_none() {
            tracing::error!(
                event = "submit_host_failed",
                "no job can be submitted from this host, so no container is started: {reason}"
            );
        }
        self.reason = Some(reason);
    }
}

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
            let mut fault = HostFault::default();
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

    #[test]
    fn the_hold_is_at_most_a_minute() {
        let mut fault = HostFault::default();
        let mut now = Instant::now();
        for _ in 0..40 {
            fault.submission_failed(now, "it is full");
            now += MAX_HOLD;
            fault.tried(now, Ok(()));
            assert!(fault.reason().is_none());
        }
    }
}
