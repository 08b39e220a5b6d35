//! Cancels jobs, one or many with one scheduler command.
//!
//! Input: a batch of [`Stop`]s and a [`StopMode`]. Output: an [`Outcome`] per container.

use std::collections::BTreeSet;

use fail_points::fail_point;

use crate::act::runner::TaskResults;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::scheduling::StopMode;
use crate::model::task::Stop;
use crate::model::world::JobId;
use crate::scheduler::Scheduler;

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Cancels the jobs of `batch`.
    pub(super) async fn stop(&self, batch: Vec<Stop>, mode: StopMode) -> TaskResults {
        let jobs: Vec<JobId> = batch.iter().map(|stop| stop.job.clone()).collect();
        fail_point("dispatcher.before-stop");
        let mut answers = self.scheduler.cancel(&jobs, mode).await.into_iter();
        fail_point("dispatcher.after-stop");
        // An error that is equal for several jobs is reported once.
        let mut reported: BTreeSet<String> = BTreeSet::new();
        let results = batch.into_iter().map(|stop| {
            let (container, reason) = (stop.container.clone(), stop.reason);
            let error = match answers.next() {
                Some(Ok(())) => {
                    let event = Decision::JobStopped {
                        container,
                        job: stop.job.clone(),
                        reason,
                    };
                    let result = TaskResult::new(Outcome::Stopping(stop.job), vec![event]);
                    return (stop.container, result);
                }
                Some(Err(error)) => error.to_string(),
                None => "the scheduler's answer to the cancel lacks this job".to_owned(),
            };
            let event = reported
                .insert(error.clone())
                .then_some(Decision::ActionFailed { container, error });
            let result =
                TaskResult::new(Outcome::NotStopped(stop.job), event.into_iter().collect());
            (stop.container, result)
        });
        results.collect()
    }
}
