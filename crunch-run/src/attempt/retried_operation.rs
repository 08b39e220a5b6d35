//! Retries operations on results that must not be lost. Logs each failure once.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use exp_backoff::Backoff;

use crate::logs::RunLog;
use crate::node::signals::Stop;

const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Whether a retry may help.
#[derive(Debug)]
pub enum RetryError<E> {
    /// A retry may succeed.
    Transient(E),
    /// A retry cannot succeed.
    Final(E),
}

/// Why retries ended.
#[derive(Debug)]
pub enum RetryStopped<E> {
    /// The timeout expired, or a second stop request arrived.
    TimedOut(E),
    Final(E),
}

/// How long to retry.
#[derive(Debug)]
pub struct RetryPolicy<'a> {
    /// Timeout, from the first failure on.
    pub timeout: Duration,
    pub stop: &'a Stop,
    pub run_log: &'a RunLog,
}

impl RetryPolicy<'_> {
    /// Runs `attempt` until it succeeds. `what` completes the sentence "… failed".
    pub async fn run<T, E: Display, F: Future<Output = Result<T, RetryError<E>>>>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, RetryStopped<E>> {
        let mut failing_since: Option<Instant> = None;
        let mut backoff = Backoff::new(INITIAL_BACKOFF, MAX_BACKOFF);
        let mut failures = Failures::new(what, self.run_log);
        loop {
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(RetryError::Final(error)) => return Err(RetryStopped::Final(error)),
                Err(RetryError::Transient(error)) => error,
            };
            let since = *failing_since.get_or_insert_with(Instant::now);
            let delay = backoff.next_delay();
            if since.elapsed() + delay > self.timeout {
                return Err(RetryStopped::TimedOut(error));
            }
            failures.log(&error.to_string());
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = self.stop.second_request() => return Err(RetryStopped::TimedOut(error)),
            }
        }
    }
}

/// Logs each failure once, however often it repeats: users see the last lines of the log of
/// undelivered results.
struct Failures<'a> {
    what: &'a str,
    run_log: &'a RunLog,
    last: String,
    repeats: u32,
}

impl<'a> Failures<'a> {
    fn new(what: &'a str, run_log: &'a RunLog) -> Self {
        Self {
            what,
            run_log,
            last: String::new(),
            repeats: 0,
        }
    }

    fn log(&mut self, error: &str) {
        if without_request(error) == without_request(&self.last) {
            self.repeats += 1;
            return;
        }
        self.log_repeats();
        self.run_log
            .write(format!("{} failed and will be retried: {error}", self.what));
        error.clone_into(&mut self.last);
    }

    fn log_repeats(&mut self) {
        if self.repeats > 0 {
            let times = match self.repeats {
                1 => "once more".to_owned(),
                more => format!("{more} times more"),
            };
            self.run_log
                .write(format!("{} failed {times} for the same reason", self.what));
        }
        self.repeats = 0;
    }
}

impl Drop for Failures<'_> {
    fn drop(&mut self) {
        self.log_repeats();
    }
}

/// Equal errors differ in their request id.
fn without_request(error: &str) -> &str {
    match error.rfind(" (req-") {
        Some(at) if error.ends_with(')') => &error[..at],
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::signals::StopRequests;
    use arvados_client::ContainerUuid;

    fn run_log() -> RunLog {
        RunLog::new(
            tempfile::tempfile().unwrap(),
            ContainerUuid::generate("zzzzz"),
        )
    }

    #[tokio::test]
    async fn call_is_retried_until_it_works_or_cannot() {
        let (_tell, stop) = Stop::channel();
        let run_log = run_log();
        let retry = RetryPolicy {
            timeout: Duration::from_secs(60),
            stop: &stop,
            run_log: &run_log,
        };
        let mut tries = 0;
        let done = retry
            .run("It", || {
                tries += 1;
                let result = if tries < 2 {
                    Err(RetryError::Transient("no"))
                } else {
                    Ok(tries)
                };
                async move { result }
            })
            .await;
        assert_eq!(done.unwrap(), 2);
        let refused: Result<(), _> = retry
            .run("It", || async { Err(RetryError::Final("never")) })
            .await;
        assert!(matches!(refused, Err(RetryStopped::Final("never"))));
    }

    #[test]
    fn a_failure_that_comes_again_and_again_is_said_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let run_log = RunLog::new(file.reopen().unwrap(), uuid);
        let mut failures = Failures::new("It", &run_log);
        for error in [
            "no (req-a)",
            "no (req-b)",
            "no (req-c)",
            "other",
            "no",
            "no",
        ] {
            failures.log(error);
        }
        drop(failures);
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| &line[31..]).collect();
        assert_eq!(
            lines,
            [
                "It failed and will be retried: no (req-a)",
                "It failed 2 times more for the same reason",
                "It failed and will be retried: other",
                "It failed and will be retried: no",
                "It failed once more for the same reason",
            ]
        );
    }

    #[tokio::test]
    async fn retries_end_with_the_budget_or_a_second_request() {
        let (tell, stop) = Stop::channel();
        let run_log = run_log();
        let mut retry = RetryPolicy {
            timeout: Duration::ZERO,
            stop: &stop,
            run_log: &run_log,
        };
        let failing = || async { Err::<(), _>(RetryError::Transient("no")) };
        let ended = retry.run("It", failing).await;
        assert!(matches!(ended, Err(RetryStopped::TimedOut("no"))));
        let _ = tell.send(StopRequests {
            count: 2,
            by: "TERM",
        });
        retry.timeout = Duration::from_secs(3600);
        let ended = retry.run("It", failing).await;
        assert!(matches!(ended, Err(RetryStopped::TimedOut("no"))));
    }
}
