//! What a scheduler said of its machines, kept for a while: looks come often, machines seldom change.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::command::Command;

/// What is known holds for so long.
const HOLDS: Duration = Duration::from_secs(300);
/// Once it is in doubt, or was asked for in vain, only for so long.
const HOLDS_IN_DOUBT: Duration = Duration::from_secs(30);
/// An answer is given up when nothing newer comes for so long: machines do change.
const STALE: Duration = Duration::from_secs(3600);
/// Jobs are more important.
const PATIENCE: Duration = Duration::from_secs(20);

/// The newest answer that could be read.
#[derive(Debug)]
pub struct Lately<T>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T> {
    /// And when it was given.
    answer: Option<(T, Instant)>,
    /// When it was last asked for.
    at: Option<Instant>,
    in_doubt: bool,
    /// How often in a row there was no answer.
    failed: u32,
}

impl<T> Default for Lately<T> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            answer: None,
            at: None,
            in_doubt: false,
            failed: 0,
        }))
    }
}

impl<T> Known<T> {
    fn is_due(&self, now: Instant) -> bool {
        let holds = match (self.in_doubt, self.failed) {
            (false, 0) => HOLDS,
            (true, 0) => HOLDS_IN_DOUBT,
            // What never answers is asked ever more seldom.
            (_, failed) => HOLDS.min(HOLDS_IN_DOUBT * 2u32.saturating_pow(failed - 1).min(64)),
        };
        self.at.is_none_or(|at| now.duration_since(at) >= holds)
    }
}

impl<T> Lately<T> {
    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `read` makes of the newest answer; none while nothing is known.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        let known = self.known();
        let fresh = known.answer.as_ref().filter(|(_, at)| at.elapsed() < STALE);
        fresh.map(|(answer, _)| read(answer))
    }

    /// It may not be true any more: it is asked for again sooner.
    pub fn doubt(&self) {
        self.known().in_doubt = true;
    }

    /// Asks if what is known is old; what was said instead of an answer, if it was.
    pub async fn look<E>(&self, ask: impl Future<Output = Result<T, E>>) -> Result<(), E> {
        if !self.known().is_due(Instant::now()) {
            return Ok(());
        }
        let asked = ask.await;
        let (mut known, now) = (self.known(), Instant::now());
        (known.at, known.in_doubt) = (Some(now), false);
        match asked {
            Ok(answer) => {
                (known.answer, known.failed) = (Some((answer, now)), 0);
                Ok(())
            }
            // What was known is better than nothing.
            Err(error) => {
                known.failed = known.failed.saturating_add(1);
                Err(error)
            }
        }
    }
}

/// What `parse` makes of a command's answer; else what it said.
pub async fn answer<T>(
    command: Command,
    patience: Duration,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, String> {
    match command.patience(patience.min(PATIENCE)).succeed().await {
        Ok(said) => parse(&said.output).ok_or_else(|| first_line(&said.complaint, &said.output)),
        Err(failure) => Err(failure.to_string()),
    }
}

fn first_line(complaint: &str, output: &str) -> String {
    let lines = complaint.lines().chain(output.lines());
    let mut told = lines.filter(|line| !line.trim().is_empty());
    told.next().unwrap_or("nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_doubt_or_failed_is_asked_for_sooner() {
        let lately = Lately::<u32>::default();
        let at = Instant::now();
        assert!(lately.known().is_due(at));
        for (seconds, in_doubt, failed, due) in [
            (31, false, 0, false),
            (301, false, 0, true),
            (31, true, 0, true),
            (1, true, 0, false),
            (35, false, 1, true),
            (40, false, 2, false),
            (80, false, 2, true),
            (40, true, 2, false),
            (200, false, 50, false),
            (301, false, 50, true),
        ] {
            *lately.known() = Known {
                answer: None,
                at: Some(at),
                in_doubt: false,
                failed,
            };
            if in_doubt {
                lately.doubt();
            }
            assert_eq!(
                lately.known().is_due(at + Duration::from_secs(seconds)),
                due,
                "{seconds} {in_doubt} {failed}"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_holds_until_it_is_old_and_one_that_cannot_be_read_is_told() {
        let lately = Lately::default();
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let echo = |word: &str| answer(Command::new("echo").args([word]), PATIENCE, number);
        let said = lately.look(echo("many")).await;
        assert_eq!((said, lately.read(|n| *n)), (Err("many".into()), None));
        // Not asked again at once.
        let said = lately.look(echo("7")).await;
        assert_eq!((said, lately.read(|n| *n)), (Ok(()), None));
        let later = || lately.known().at = None;
        later();
        let said = lately.look(echo("7")).await;
        assert_eq!((said, lately.read(|n| *n)), (Ok(()), Some(7)));
        later();
        let said = lately.look(echo("many")).await;
        assert_eq!((said, lately.read(|n| *n)), (Err("many".into()), Some(7)));
        assert_eq!(lately.known().failed, 1, "it is asked for again soon");
        let hours_ago = Instant::now().checked_sub(STALE).unwrap();
        lately.known().answer = Some((7, hours_ago));
        assert_eq!(lately.read(|n| *n), None);
    }
}
