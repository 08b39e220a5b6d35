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
            self.journal.say(format!(
                "{what} failed and is tried again in {:.1} s: {error}",
                pause.as_secs_f64()
            ));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stop.asked_again() => return Err(GaveUp::TooLong(error)),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
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
