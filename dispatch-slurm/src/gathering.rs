//! Questions about single jobs that come at about the same time, as when a thousand are put away: one command asks for
//! all of them.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dispatch_core::scheduler::SchedulerError;
use tokio::sync::oneshot;

/// How long the first question waits for others.
const WAIT: Duration = Duration::from_millis(20);

/// The whole answer to all that were asked for together; who asked picks his own line.
pub type Answer = Result<Arc<str>, SchedulerError>;

/// Those who wait for the next command.
#[derive(Debug, Default)]
pub struct Gathering(Mutex<Vec<Question>>);

#[derive(Debug)]
struct Question {
    job: String,
    tell: oneshot::Sender<Answer>,
}

impl Gathering {
    /// Asks about a job, together with who else does. `command` is called for the first of them only, with the jobs of all.
    pub async fn ask<F>(&self, job: &str, command: impl FnOnce(Vec<String>) -> F) -> Answer
    where
        F: Future<Output = Result<String, SchedulerError>>,
    {
        let (tell, told) = oneshot::channel();
        let is_first = {
            let mut questions = self.questions();
            questions.push(Question {
                job: job.to_owned(),
                tell,
            });
            questions.len() == 1
        };
        if is_first {
            let lead = Lead(Some(self));
            tokio::time::sleep(WAIT).await;
            let questions = lead.begin();
            let jobs = questions.iter().map(|q| q.job.clone()).collect();
            let answer: Answer = command(jobs).await.map(Arc::from);
            for question in questions {
                // Who does not listen any more has given up.
                let _ = question.tell.send(answer.clone());
            }
        }
        told.await.unwrap_or_else(|_| {
            let detail = "the question was given up".to_owned();
            Err(crate::slurm::no_answer(detail))
        })
    }

    fn questions(&self) -> MutexGuard<'_, Vec<Question>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that asks for all. If it is given up before that, so are the others.
struct Lead<'a>(Option<&'a Gathering>);

impl Lead<'_> {
    /// Who comes from now on gathers anew.
    fn begin(mut self) -> Vec<Question> {
        let gathering = self.0.take();
        gathering.map_or_else(Vec::new, |g| std::mem::take(&mut *g.questions()))
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if let Some(gathering) = self.0 {
            gathering.questions().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_that_come_together_are_asked_by_one_command() {
        let (gathering, commands) = (Gathering::default(), AtomicUsize::new(0));
        let ask = async |job: usize| {
            let command = async |jobs: Vec<String>| {
                commands.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(jobs.join(","))
            };
            gathering.ask(&job.to_string(), command).await.unwrap()
        };
        let later = async {
            tokio::time::sleep(WAIT * 2).await;
            join_all((5..7).map(&ask)).await
        };
        let (first, second) = tokio::join!(join_all((0..5).map(&ask)), later);
        assert!(first.iter().all(|all| &**all == "0,1,2,3,4"), "{first:?}");
        assert!(second.iter().all(|all| &**all == "5,6"), "{second:?}");
        assert_eq!(commands.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_to_all_and_nobody_waits_for_who_gave_up() {
        let gathering = Gathering::default();
        let fails = |_| async { Err(crate::slurm::no_answer("timed out".into())) };
        let answers = join_all((0..3).map(|n| gathering.ask(["1", "2", "3"][n], fails))).await;
        let said = |answer: &Answer| answer.as_ref().err().map(ToString::to_string);
        let all = answers.iter().map(|answer| said(answer).unwrap());
        assert!(all.into_iter().all(|words| words.contains("timed out")));

        let given_up = tokio::time::timeout(WAIT / 2, gathering.ask("4", fails));
        let other = async {
            tokio::time::sleep(WAIT / 4).await;
            gathering.ask("5", fails).await
        };
        let (first, second) = tokio::join!(given_up, other);
        assert!(first.is_err());
        assert!(said(&second).unwrap().contains("given up"), "{second:?}");
        let again = gathering.ask("6", |jobs| async move { Ok(jobs.join(",")) });
        assert_eq!(&*again.await.unwrap(), "6");
    }
}
