//! Caches a scheduler's description of its machines. Polls are frequent, but machines rarely
//! change.
//!
//! Input: a query command and a parser. Output: the last answer that could be parsed.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::resources::Admission;
use crate::scheduler::command::Command;

/// Cache lifetime of an answer.
const TTL: Duration = Duration::from_secs(300);
/// Cache lifetime of an invalidated answer, and the first retry interval after a failure.
const TTL_SUSPECT: Duration = Duration::from_secs(30);
/// Maximum age of an answer when no newer one arrives. Machines do change.
const MAX_STALE: Duration = Duration::from_secs(3600);
/// Age beyond which an answer does not tell that a container can never run. While one is in doubt,
/// it does not become as old.
const MAX_AGE_OF_NEVER: Duration = Duration::from_secs(60);
/// Timeout of the query; short, because it delays the job listing.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// The last answer that could be parsed.
#[derive(Debug)]
pub struct CachedQuery<T>(Mutex<Cache<T>>);

#[derive(Debug)]
struct Cache<T> {
    /// The last answer and its time.
    answer: Option<(T, Instant)>,
    /// Time of the last query.
    at: Option<Instant>,
    in_doubt: bool,
    /// Number of consecutive failed queries.
    failed: u32,
}

impl<T> Default for CachedQuery<T> {
    fn default() -> Self {
        Self(Mutex::new(Cache {
            answer: None,
            at: None,
            in_doubt: false,
            failed: 0,
        }))
    }
}

impl<T> Cache<T> {
    fn is_due(&self, now: Instant) -> bool {
        let holds = match (self.in_doubt, self.failed) {
            (false, 0) => TTL,
            (true, 0) => TTL_SUSPECT,
            // Failures double the interval between queries, up to the normal cache lifetime.
            (_, failed) => TTL.min(TTL_SUSPECT * 2u32.saturating_pow(failed - 1).min(64)),
        };
        self.at.is_none_or(|at| now.duration_since(at) >= holds)
    }
}

impl<T> CachedQuery<T> {
    /// Applies `read` to the cached answer. None if there is no answer, or if it is too old.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        let known = self.0.lock();
        let fresh = known
            .answer
            .as_ref()
            .filter(|(_, at)| at.elapsed() < MAX_STALE);
        fresh.map(|(answer, _)| read(answer))
    }

    /// Marks the answer as possibly wrong, so that it is queried again sooner.
    pub fn invalidate(&self) {
        self.0.lock().in_doubt = true;
    }

    /// Whether a container could ever run on these machines. Without an answer it could. Machines
    /// and partitions come and go, so an older answer that says never is asked for again first.
    pub fn fit(&self, read: impl FnOnce(&T) -> Admission) -> Admission {
        let mut known = self.0.lock();
        let Some((answer, at)) = &known.answer else {
            return Admission::Now;
        };
        let age = at.elapsed();
        let fit = match age < MAX_STALE {
            true => read(answer),
            false => Admission::Now,
        };
        if fit.never().is_some() {
            known.in_doubt = true;
        }
        match fit {
            Admission::Never(why) if age > MAX_AGE_OF_NEVER => Admission::Later(format!(
                "{why}, as the scheduler said {} s ago; it is asked again",
                age.as_secs()
            )),
            fit => fit,
        }
    }

    /// Runs the query if the cache has expired. Returns the error of a failed query.
    pub async fn refresh<E>(&self, ask: impl Future<Output = Result<T, E>>) -> Result<(), E> {
        if !self.0.lock().is_due(Instant::now()) {
            return Ok(());
        }
        let asked = ask.await;
        let (mut known, now) = (self.0.lock(), Instant::now());
        (known.at, known.in_doubt) = (Some(now), false);
        match asked {
            Ok(answer) => {
                (known.answer, known.failed) = (Some((answer, now)), 0);
                Ok(())
            }
            // The old answer is kept: it is better than none.
            Err(error) => {
                known.failed = known.failed.saturating_add(1);
                Err(error)
            }
        }
    }
}

/// Runs `command` and parses its stdout. Returns its error text if it fails or cannot be parsed.
pub async fn answer<T>(
    command: Command,
    patience: Duration,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, String> {
    let program = command.name();
    let answer = command.timeout(patience.min(QUERY_TIMEOUT)).run_checked();
    let answer = answer.await.map_err(|failure| failure.to_string())?;
    let unreadable = first_line(&answer.stderr, &answer.stdout);
    parse(&answer.into_stdout(&program)).ok_or(unreadable)
}

fn first_line(complaint: &str, output: &str) -> String {
    let lines = complaint.lines().chain(output.lines());
    let mut nonempty = lines.filter(|line| !line.trim().is_empty());
    nonempty.next().unwrap_or("nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_doubt_or_failed_is_asked_for_sooner() {
        let lately = CachedQuery::<u32>::default();
        let at = Instant::now();
        assert!(lately.0.lock().is_due(at));
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
            *lately.0.lock() = Cache {
                answer: None,
                at: Some(at),
                in_doubt: false,
                failed,
            };
            if in_doubt {
                lately.invalidate();
            }
            assert_eq!(
                lately.0.lock().is_due(at + Duration::from_secs(seconds)),
                due,
                "{seconds} {in_doubt} {failed}"
            );
        }
    }

    #[test]
    fn nothing_is_called_impossible_before_it_is_asked_again() {
        let lately = CachedQuery::<u32>::default();
        let fit = || {
            lately.fit(|cpus| match cpus {
                0 => Admission::Never("no CPU".into()),
                _ => Admission::Now,
            })
        };
        assert_eq!(fit(), Admission::Now);
        for (cpus, age, never, later, in_doubt) in [
            (0, 0, true, false, true),
            (0, 59, true, false, true),
            (0, 61, false, true, true),
            (0, 3601, false, false, false),
            (1, 61, false, false, false),
        ] {
            let at = Instant::now().checked_sub(Duration::from_secs(age));
            let mut known = lately.0.lock();
            (known.answer, known.in_doubt) = (at.map(|at| (cpus, at)), false);
            drop(known);
            let fit = fit();
            let found = (fit.never().is_some(), matches!(fit, Admission::Later(_)));
            assert_eq!(found, (never, later), "{cpus} {age}");
            assert_eq!(lately.0.lock().in_doubt, in_doubt, "{cpus} {age}");
        }
    }

    #[tokio::test]
    async fn an_answer_holds_until_it_is_old_and_one_that_cannot_be_read_is_told() {
        let lately = CachedQuery::default();
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let echo = |word: &str| answer(Command::new("echo").args([word]), QUERY_TIMEOUT, number);
        let said = lately.refresh(echo("many")).await;
        assert_eq!((said, lately.read(|n| *n)), (Err("many".into()), None));
        // The failed query is not repeated at once.
        let said = lately.refresh(echo("7")).await;
        assert_eq!((said, lately.read(|n| *n)), (Ok(()), None));
        let later = || lately.0.lock().at = None;
        later();
        let said = lately.refresh(echo("7")).await;
        assert_eq!((said, lately.read(|n| *n)), (Ok(()), Some(7)));
        later();
        let said = lately.refresh(echo("many")).await;
        assert_eq!((said, lately.read(|n| *n)), (Err("many".into()), Some(7)));
        assert_eq!(lately.0.lock().failed, 1, "it is asked for again soon");
        let hours_ago = Instant::now().checked_sub(MAX_STALE).unwrap();
        lately.0.lock().answer = Some((7, hours_ago));
        assert_eq!(lately.read(|n| *n), None);
    }
}
