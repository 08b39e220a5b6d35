//! Trying again until it works, for results that must not be lost.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::logs::Journal;
use crate::signals::Stop;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether another try may help.
#[derive(Debug)]
pub enum Trouble<E> {
    /// Perhaps later.
    Later(E),
    /// Never.
    Final(E),
}

/// Why there was no further try.
#[derive(Debug)]
pub enum GaveUp<E> {
    /// The patience was over, or we were asked twice to stop.
    TooLong(E),
    Final(E),
}

/// How to insist.
#[derive(Debug)]
pub struct Insistence<'a> {
    /// From the first failure on.
    pub patience: Duration,
    pub stop: &'a Stop,
    pub journal: &'a Journal,
}

impl Insistence<'_> {
    /// `what` completes the sentence "… failed".
    pub async fn on<T, E: Display, F: Future<Output = Result<T, Trouble<E>>>>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, GaveUp<E>> {
        let mut failing_since: Option<Instant> = None;
        let mut pause = FIRST_PAUSE;
        let mut failures = Failures::new(what, self.journal);
        loop {
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(Trouble::Final(error)) => return Err(GaveUp::Final(error)),
                Err(Trouble::Later(error)) => error,
            };
            let since = *failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() + pause > self.patience {
                return Err(GaveUp::TooLong(error));
            }
            failures.say(&error.to_string());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stop.asked_again() => return Err(GaveUp::TooLong(error)),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Says each failure once, however often it comes: the last lines of the log are what people see of undelivered
/// results.
struct Failures<'a> {
    what: &'a str,
    journal: &'a Journal,
    last: String,
    repeats: u32,
}

impl<'a> Failures<'a> {
    fn new(what: &'a str, journal: &'a Journal) -> Self {
        Self {
            what,
            journal,
            last: String::new(),
            repeats: 0,
        }
    }

    fn say(&mut self, error: &str) {
        if without_request(error) == without_request(&self.last) {
            self.repeats += 1;
            return;
        }
        self.say_repeats();
        self.journal
            .say(format!("{} failed and is tried again: {error}", self.what));
        error.clone_into(&mut self.last);
    }

    fn say_repeats(&mut self) {
        if self.repeats > 0 {
            let times = match self.repeats {
                1 => "once more".to_owned(),
                more => format!("{more} times more"),
            };
            self.journal
                .say(format!("{} failed {times} for the same reason", self.what));
        }
        self.repeats = 0;
    }
}

impl Drop for Failures<'_> {
    fn drop(&mut self) {
        self.say_repeats();
    }
}

/// The same refusal has another request id each time.
fn without_request(error: &str) -> &str {
    match error.rfind(" (req-") {
        Some(at) if error.ends_with(')') => &error[..at],
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::Asked;
    use arvados_client::ContainerUuid;

    fn journal() -> Journal {
        Journal::new(
            tempfile::tempfile().unwrap(),
            ContainerUuid::generate("zzzzz"),
        )
    }

    #[tokio::test]
    async fn it_goes_on_until_it_works_or_cannot() {
        let (_tell, stop) = Stop::channel();
        let journal = journal();
        let insistence = Insistence {
            patience: Duration::from_secs(60),
            stop: &stop,
            journal: &journal,
        };
        let mut tries = 0;
        let done = insistence
            .on("It", || {
                tries += 1;
                let result = if tries < 2 {
                    Err(Trouble::Later("no"))
                } else {
                    Ok(tries)
                };
                async move { result }
            })
            .await;
        assert_eq!(done.unwrap(), 2);
        let refused: Result<(), _> = insistence
            .on("It", || async { Err(Trouble::Final("never")) })
            .await;
        assert!(matches!(refused, Err(GaveUp::Final("never"))));
    }

    #[test]
    fn a_failure_that_comes_again_and_again_is_said_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let journal = Journal::new(file.reopen().unwrap(), uuid);
        let mut failures = Failures::new("It", &journal);
        for error in [
            "no (req-a)",
            "no (req-b)",
            "no (req-c)",
            "other",
            "no",
            "no",
        ] {
            failures.say(error);
        }
        drop(failures);
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| &line[31..]).collect();
        assert_eq!(
            lines,
            [
                "It failed and is tried again: no (req-a)",
                "It failed 2 times more for the same reason",
                "It failed and is tried again: other",
                "It failed and is tried again: no",
                "It failed once more for the same reason",
            ]
        );
    }

    #[tokio::test]
    async fn it_ends_with_the_patience_or_a_second_request() {
        let (tell, stop) = Stop::channel();
        let journal = journal();
        let mut insistence = Insistence {
            patience: Duration::ZERO,
            stop: &stop,
            journal: &journal,
        };
        let failing = || async { Err::<(), _>(Trouble::Later("no")) };
        let ended = insistence.on("It", failing).await;
        assert!(matches!(ended, Err(GaveUp::TooLong("no"))));
        let _ = tell.send(Asked {
            times: 2,
            by: "TERM",
        });
        insistence.patience = Duration::from_secs(3600);
        let ended = insistence.on("It", failing).await;
        assert!(matches!(ended, Err(GaveUp::TooLong("no"))));
    }
}
