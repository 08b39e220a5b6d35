//! Coalesces queries for single jobs that arrive at about the same time into one command.
//!
//! Input: the id or name of a job. Output: the output of the command for all jobs of the group.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dispatch_core::scheduler::SchedulerError;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Time for which the first query of a group waits for others.
const COALESCE_WINDOW: Duration = Duration::from_millis(20);

/// Output for the whole group; each caller picks its own line.
pub type SharedAnswer = Result<Arc<str>, SchedulerError>;

/// Callers that wait for the next command.
#[derive(Debug, Default)]
pub struct Coalescer(Mutex<Vec<Waiter>>);

#[derive(Debug)]
struct Waiter {
    job: String,
    sender: oneshot::Sender<SharedAnswer>,
}

impl Coalescer {
    /// Queries a job together with others. `command` runs for the first caller only, with the jobs
    /// of all.
    pub async fn query<F>(&self, job: &str, command: impl FnOnce(Vec<String>) -> F) -> SharedAnswer
    where
        F: Future<Output = Result<String, SchedulerError>>,
    {
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut waiters = self.0.lock();
            waiters.push(Waiter {
                job: job.to_owned(),
                sender,
            });
            waiters.len() == 1
        };
        if is_first {
            let leader = Leader(Some(self));
            tokio::time::sleep(COALESCE_WINDOW).await;
            let waiters = leader.take_waiters();
            let jobs = waiters.iter().map(|waiter| waiter.job.clone()).collect();
            let answer: SharedAnswer = command(jobs).await.map(Arc::from);
            for waiter in waiters {
                // A receiver that was dropped has given up.
                let _ = waiter.sender.send(answer.clone());
            }
        }
        receiver.await.unwrap_or_else(|_| {
            let detail = "the query of several jobs was given up".to_owned();
            Err(crate::error::no_answer(detail))
        })
    }
}

/// The caller that runs the command. If it is dropped before, the whole group fails.
struct Leader<'a>(Option<&'a Coalescer>);

impl Leader<'_> {
    /// Takes the group; later callers start a new one.
    fn take_waiters(mut self) -> Vec<Waiter> {
        let coalescer = self.0.take();
        coalescer.map_or_else(Vec::new, |coalescer| {
            std::mem::take(&mut *coalescer.0.lock())
        })
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if let Some(coalescer) = self.0 {
            coalescer.0.lock().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_queries_share_one_command() {
        let (coalescer, commands) = (Coalescer::default(), AtomicUsize::new(0));
        let query = async |job: usize| {
            let command = async |jobs: Vec<String>| {
                commands.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(jobs.join(","))
            };
            coalescer.query(&job.to_string(), command).await.unwrap()
        };
        let later = async {
            tokio::time::sleep(COALESCE_WINDOW * 2).await;
            join_all((5..7).map(&query)).await
        };
        let (first, second) = tokio::join!(join_all((0..5).map(&query)), later);
        assert!(first.iter().all(|all| &**all == "0,1,2,3,4"), "{first:?}");
        assert!(second.iter().all(|all| &**all == "5,6"), "{second:?}");
        assert_eq!(commands.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn all_get_the_failure_and_a_dropped_leader_blocks_nobody() {
        let coalescer = Coalescer::default();
        let fails = |_| async { Err(crate::error::no_answer("timed out".into())) };
        let answers = join_all((0..3).map(|n| coalescer.query(["1", "2", "3"][n], fails))).await;
        let error_of = |answer: &SharedAnswer| answer.as_ref().err().map(ToString::to_string);
        let all = answers.iter().map(|answer| error_of(answer).unwrap());
        assert!(all.into_iter().all(|words| words.contains("timed out")));

        let given_up = tokio::time::timeout(COALESCE_WINDOW / 2, coalescer.query("4", fails));
        let other = async {
            tokio::time::sleep(COALESCE_WINDOW / 4).await;
            coalescer.query("5", fails).await
        };
        let (first, second) = tokio::join!(given_up, other);
        assert!(first.is_err());
        assert!(
            error_of(&second).unwrap().contains("given up"),
            "{second:?}"
        );
        let again = coalescer.query("6", |jobs| async move { Ok(jobs.join(",")) });
        assert_eq!(&*again.await.unwrap(), "6");
    }
}
