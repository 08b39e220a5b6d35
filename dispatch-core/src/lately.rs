//! What a scheduler said of its machines, kept for a while: looks come often, machines seldom change.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::command::Command;

/// What is known holds for so long.
const HOLDS: Duration = Duration::from_secs(300);
/// Once it is in doubt, only for so long.
const HOLDS_IN_DOUBT: Duration = Duration::from_secs(30);
/// Jobs are more important.
const PATIENCE: Duration = Duration::from_secs(20);

/// The newest answer, if one could be read.
#[derive(Debug)]
pub struct Lately<T>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T> {
    answer: Option<T>,
    at: Option<Instant>,
    in_doubt: bool,
}

impl<T> Default for Lately<T> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            answer: None,
            at: None,
            in_doubt: false,
        }))
    }
}

impl<T> Known<T> {
    fn is_due(&self) -> bool {
        let holds = match self.in_doubt {
            true => HOLDS_IN_DOUBT,
            false => HOLDS,
        };
        self.at.is_none_or(|at| at.elapsed() >= holds)
    }
}

impl<T> Lately<T> {
    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `read` makes of the newest answer; none while nothing is known.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.known().answer.as_ref().map(read)
    }

    /// It may not be true any more: it is asked for again sooner.
    pub fn doubt(&self) {
        self.known().in_doubt = true;
    }

    /// Asks if what is known is old; what was said instead of an answer, if it was.
    pub async fn look<E>(&self, ask: impl Future<Output = Result<T, E>>) -> Result<(), E> {
        if !self.known().is_due() {
            return Ok(());
        }
        let (answer, result) = match ask.await {
            Ok(answer) => (Some(answer), Ok(())),
            Err(error) => (None, Err(error)),
        };
        *self.known() = Known {
            answer,
            at: Some(Instant::now()),
            in_doubt: false,
        };
        result
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
    fn what_is_in_doubt_is_asked_for_sooner() {
        let lately = Lately::<u32>::default();
        assert!(lately.known().is_due());
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        for (seconds, in_doubt, due) in [
            (31, false, false),
            (301, false, true),
            (31, true, true),
            (1, true, false),
        ] {
            *lately.known() = Known {
                answer: None,
                at: ago(seconds),
                in_doubt: false,
            };
            if in_doubt {
                lately.doubt();
            }
            assert_eq!(lately.known().is_due(), due, "{seconds} {in_doubt}");
        }
    }

    #[tokio::test]
    async fn an_answer_holds_until_it_is_old_and_one_that_cannot_be_read_is_told() {
        let lately = Lately::default();
        let patience = Duration::from_secs(10);
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let echo = |word: &str| answer(Command::new("echo").args([word]), patience, number);
        let said = lately.look(echo("many")).await;
        assert_eq!((said, lately.read(|n| *n)), (Err("many".into()), None));
        // Not asked again at once.
        let said = lately.look(echo("7")).await;
        assert_eq!((said, lately.read(|n| *n)), (Ok(()), None));
        lately.known().at = None;
        let said = lately.look(echo("7")).await;
        assert_eq!((said, lately.read(|n| *n)), (Ok(()), Some(7)));
    }
}
