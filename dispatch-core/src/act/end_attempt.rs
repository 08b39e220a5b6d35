//! Cleans up after an attempt: job directory and token.
//!
//! Input: a container, and an ended attempt or an orphaned token. Output: an [`Outcome`], and the
//! decision that reports the end of the container.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use tokio::time::timeout;

use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::container_record::{ContainerEnd, ListedRecord};
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::task::{AttemptEnd, OrphanToken};
use crate::scheduler::{Scheduler, StillInUse};

/// Timeout of a query for the end of a container to the API server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why cleanup of an ended attempt failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    #[error(transparent)]
    InUse(#[from] StillInUse),
    #[error(transparent)]
    Api(#[from] Error),
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Removes the job directory of an attempt, then revokes its token. A restarted dispatcher
    /// finds unfinished cleanup by the token, so the token goes last. Cleanup comes before the next
    /// lock of the container.
    pub(crate) async fn cleanup_attempt(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Result<(), CleanupError> {
        self.scheduler.cleanup(container).await?;
        Ok(self.attempts.revoke(attempt).await?)
    }

    /// Ends an attempt, and reports the end of its container if that was not reported yet.
    pub(crate) async fn end_attempt(&self, end: AttemptEnd) -> TaskResult {
        let AttemptEnd {
            container,
            attempt,
            final_state,
            description,
        } = end;
        let mut result = match self.cleanup_attempt(&container, &attempt).await {
            Ok(()) => TaskResult::new(Outcome::AttemptEnded, vec![]),
            Err(error) => {
                let mut result = TaskResult::failed(&container, &error);
                if let CleanupError::Api(error) = &error {
                    result = result.with_feedback(error);
                }
                result.outcome = Outcome::NotRevoked;
                result
            }
        };
        let Some(state) = final_state else {
            return result;
        };
        if state == ContainerState::Complete {
            self.storage.submission_sent();
        }
        // The description is only for people. No program depends on it.
        let how = match description {
            Some(description) => description,
            None => match timeout(QUERY_TIMEOUT, self.api.record(None, &container)).await {
                Ok(Ok(ListedRecord::Parsed(record))) => record.end(),
                Ok(Err(error)) => {
                    result = result.with_feedback(&error);
                    ContainerEnd::described(state.to_string())
                }
                _ => ContainerEnd::described(state.to_string()),
            },
        };
        result.events.insert(0, Decision::Ended { container, how });
        result
    }

    pub(crate) async fn revoke_orphan(&self, orphan: OrphanToken) -> TaskResult {
        let container = &orphan.container;
        if orphan.removes_dir
            && let Err(error) = self.scheduler.cleanup(container).await
        {
            return TaskResult::failed(container, error);
        }
        match self.disable_or_revoke(&orphan).await {
            Ok(outcome) => TaskResult::new(outcome, vec![]),
            Err(error) => TaskResult::api_failed(container, &error),
        }
    }

    /// Revokes an orphaned token, or first disables one that may still be granted a lock. If the
    /// lock was granted just before, the token is enabled again, because only it can unlock. A
    /// dispatcher that dies in between finds the token at its next start.
    async fn disable_or_revoke(&self, orphan: &OrphanToken) -> Result<Outcome, Error> {
        let OrphanToken {
            container, token, ..
        } = orphan;
        if orphan.may_lock && self.attempts.disable(&token.uuid).await? {
            let holds = match self.api.record(None, container).await {
                Ok(ListedRecord::Parsed(record)) => record.locked_by.as_ref() == Some(&token.uuid),
                // A malformed record is not touched, so its token is not revoked either.
                Ok(ListedRecord::Malformed(..)) => return Ok(Outcome::Failed),
                Err(error) if error.is_not_found() => false,
                Err(error) => return Err(error),
            };
            if holds {
                return Ok(Outcome::LockGranted(self.attempts.renew(token).await?));
            }
            // A lock request that the server has already accepted may still succeed. Only this
            // token can undo that lock.
            return Ok(Outcome::Disabled(token.clone()));
        }
        self.attempts.revoke(&token.uuid).await?;
        Ok(Outcome::OrphanRevoked(token.uuid.clone()))
    }
}
