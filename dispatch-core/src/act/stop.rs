//! Jobs that are ended: one, or many by one command.

use std::collections::BTreeSet;

use arvados_client::ContainerUuid;
use fail_points::fail_point;

use super::{Hands, Outcome, Report};
use crate::api::Api;
use crate::events::Event;
use crate::plan::Reason;
use crate::scheduler::{Scheduler, Urgency};
use crate::world::JobId;

/// One job to be ended.
#[derive(Debug)]
pub struct Stop {
    /// Its container.
    pub container: ContainerUuid,
    /// Its number.
    pub job: JobId,
    /// Why.
    pub reason: Reason,
}

impl<A: Api, S: Scheduler> Hands<A, S> {
    /// What came of it for each.
    pub(super) async fn stop(
        &self,
        batch: Vec<Stop>,
        urgency: Urgency,
    ) -> Vec<(ContainerUuid, Report)> {
        let jobs: Vec<JobId> = batch.iter().map(|stop| stop.job.clone()).collect();
        fail_point("dispatcher.before-stop");
        let answers = match jobs.as_slice() {
            [job] => vec![self.scheduler.stop(job, urgency).await],
            jobs => self.scheduler.stop_all(jobs, urgency).await,
        };
        fail_point("dispatcher.after-stop");
        let mut answers = answers.into_iter();
        // What is true of a whole batch is told once.
        let mut told: BTreeSet<String> = BTreeSet::new();
        let reports = batch.into_iter().map(|stop| {
            let (container, reason) = (stop.container.clone(), stop.reason);
            let error = match answers.next() {
                Some(Ok(())) => {
                    let event = Event::CleanedUpContainer {
                        container,
                        job: stop.job.clone(),
                        reason,
                    };
                    let report = Report::new(Outcome::Stopping(stop.job), vec![event]);
                    return (stop.container, report);
                }
                Some(Err(error)) => error.to_string(),
                None => "the scheduler gave no answer for this one".to_owned(),
            };
            let event = told
                .insert(error.clone())
                .then_some(Event::ActionFailed { container, error });
            let report = Report::new(Outcome::NotStopped(stop.job), event.into_iter().collect());
            (stop.container, report)
        });
        reports.collect()
    }
}
