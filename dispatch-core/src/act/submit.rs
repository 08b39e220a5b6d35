//! Submits attempts to the scheduler in one batch.
//!
//! Input: [`Submission`]s. Output: an [`Outcome`] for each. The container of a rejected submission
//! is unlocked; one that this host could not submit stays locked.

use arvados_client::ContainerUuid;
use fail_points::fail_point;
use futures_util::future::join_all;

use crate::act::runner::TaskResults;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::reason::Reason;
use crate::model::task::{Submission, Unlock};
use crate::model::world::JobId;
use crate::scheduler::credentials::{Credentials, GatewayKey};
use crate::scheduler::{Scheduler, SchedulerError, SubmitRequest};

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    pub(super) async fn submit(&self, batch: Vec<Submission>) -> TaskResults {
        let gateway = self.gateway.as_ref();
        let request = |one: &Submission| SubmitRequest {
            avoid: self.nodes_to_avoid(one),
            ..request(one, gateway)
        };
        let requests = batch.iter().map(request).collect();
        fail_point("dispatcher.before-submit");
        let answers = self.submit_from_host(requests).await;
        fail_point("dispatcher.after-submit");
        self.record_host_fault(&answers);
        let mut answers = answers.into_iter();
        let concluded = batch.into_iter().map(|submission| {
            let container = submission.container.clone();
            // A submission without an answer may have taken effect.
            let answer = answers
                .next()
                .unwrap_or_else(|| Err(self.no_answer(&container)));
            async move { (container, self.conclude_submit(submission, answer).await) }
        });
        join_all(concluded).await
    }

    /// The nodes that the job must not use: the excluded ones, and those of its last attempts if
    /// another node fits.
    fn nodes_to_avoid(&self, one: &Submission) -> Vec<String> {
        let mut all = one.avoid.clone();
        let own = one
            .failed_on
            .iter()
            .filter(|node| !one.avoid.contains(node));
        all.extend(own.cloned());
        match all.len() > one.avoid.len() && self.scheduler.fits_beside(&one.needs, &all) {
            true => all,
            false => one.avoid.clone(),
        }
    }

    /// Submits, if the job directories are where the nodes look for them.
    async fn submit_from_host(
        &self,
        requests: Vec<SubmitRequest>,
    ) -> Vec<Result<JobId, SchedulerError>> {
        let confirmed = match self.scheduler.submit_host() {
            Some(host) => host.confirm_directory().await,
            None => Ok(()),
        };
        let Err(detail) = confirmed else {
            return self.scheduler.submit(requests).await;
        };
        let fault = |request: SubmitRequest| {
            Err(SchedulerError::HostFault {
                container: request.container,
                detail: detail.clone(),
            })
        };
        requests.into_iter().map(fault).collect()
    }

    fn record_host_fault(&self, answers: &[Result<JobId, SchedulerError>]) {
        let Some(host) = self.scheduler.submit_host() else {
            return;
        };
        for answer in answers {
            match answer {
                Err(SchedulerError::HostFault { detail, .. }) => host.submission_failed(detail),
                Ok(_) => host.submission_sent(),
                Err(_) => {}
            }
        }
    }

    fn no_answer(&self, container: &ContainerUuid) -> SchedulerError {
        SchedulerError::Ambiguous {
            scheduler: self.scheduler.name(),
            container: container.clone(),
            detail: "the answer to the batch lacks this container".into(),
        }
    }

    /// Turns the scheduler's answer into a result, and unlocks the container after a rejection.
    async fn conclude_submit(
        &self,
        submission: Submission,
        answer: Result<JobId, SchedulerError>,
    ) -> TaskResult {
        let Submission {
            container,
            token,
            owner,
            needs,
            ..
        } = submission;
        let error = match answer {
            Ok(job) => {
                let event = Decision::Dispatched {
                    container,
                    job,
                    owner,
                };
                return TaskResult::new(Outcome::Submitted, vec![event]);
            }
            Err(error @ SchedulerError::RefusedInBatch { .. }) => {
                tracing::debug!(%container, %error, "submitting the job alone next");
                return TaskResult::new(Outcome::RetryAlone, vec![]);
            }
            Err(error @ SchedulerError::JobDirectory { .. }) => {
                return TaskResult {
                    outcome: Outcome::NoJobDirectory,
                    ..TaskResult::failed(&container, error)
                };
            }
            Err(error @ (SchedulerError::HostFault { .. } | SchedulerError::NotTried { .. })) => {
                tracing::debug!(%container, %error, "submitting the job later");
                self.record_not_submitted(&container, &token.uuid).await;
                return TaskResult::new(Outcome::NotTried, vec![]);
            }
            Err(error) => error,
        };
        let failed = Decision::SubmitFailed {
            container: container.clone(),
            error: error.to_string(),
        };
        let is_held = self
            .scheduler
            .rejections()
            .is_some_and(|known| known.holds(&needs));
        let unknown = Outcome::SubmitUnknown { is_held };
        if !matches!(error, SchedulerError::Refused { .. }) {
            return TaskResult::new(unknown, vec![failed]);
        }
        let unlock = Unlock {
            container,
            attempt: token.uuid.clone(),
            token: Some(token),
            reason: Reason::Refused,
            was_listed: false,
        };
        let mut result = self.unlock(unlock).await;
        result.events.insert(0, failed);
        result.outcome = match result.outcome {
            // Tests tell when such jobs are accepted again.
            released @ Outcome::Released(..) if is_held => released,
            Outcome::Released(state, is_revoked) => Outcome::NotSubmitted(state, is_revoked),
            // The unlock failed. Later listings lack the job, and the plan unlocks the container
            // then.
            _ => unknown,
        };
        result
    }
}

fn request(submission: &Submission, gateway: Option<&GatewayKey>) -> SubmitRequest {
    SubmitRequest {
        container: submission.container.clone(),
        attempt: submission.token.uuid.clone(),
        credentials: Credentials {
            token: submission.token.token.clone(),
            gateway_secret: gateway.map(|key| key.secret(&submission.container)),
        },
        needs: submission.needs.clone(),
        avoid: submission.avoid.clone(),
        owner: submission.owner.clone(),
    }
}
