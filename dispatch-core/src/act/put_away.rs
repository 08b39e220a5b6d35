//! What is left of an attempt that is over, removed.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use tokio::time::timeout;

use super::{Hands, Leavings, LeftOver, Outcome, Report};
use crate::api::{Api, Row};
use crate::events::Event;
use crate::scheduler::{Scheduler, StillInUse};

/// Words of crunch-run, in the error of a container that it ended because somebody asked it to.
const STOPPED_BY_SIGNAL: &str = "stopped on request (signal";
/// How long it may take to read how a container ended.
const LOOK: Duration = Duration::from_secs(10);

/// An attempt that is over could not be put away.
#[derive(Debug, thiserror::Error)]
pub(super) enum PutAwayError {
    #[error(transparent)]
    InUse(#[from] StillInUse),
    #[error(transparent)]
    Api(#[from] Error),
}

impl<A: Api, S: Scheduler> Hands<A, S> {
    /// Removes what is left of an attempt, its token last: as long as the server has that, the next life of this
    /// dispatcher finds what is left to do. And first of all before the container is locked again.
    pub(super) async fn put_away(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Result<(), PutAwayError> {
        self.scheduler.forget(container).await?;
        Ok(self.attempts.end(attempt).await?)
    }

    /// `ended`: its record is final, in this state, and nobody was told. `how`: how it ended, where a look has shown that.
    pub(super) async fn end_attempt(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        ended: Option<ContainerState>,
        how: Option<String>,
    ) -> Report {
        let mut report = match self.put_away(&container, attempt).await {
            Ok(()) => Report::new(Outcome::Ended, vec![]),
            Err(error) => {
                let mut report = Report::failed(&container, &error);
                if let PutAwayError::Api(error) = &error {
                    report = report.after(error);
                }
                report.outcome = Outcome::NotEnded;
                report
            }
        };
        let Some(state) = ended else {
            return report;
        };
        // For people: nothing depends on it.
        let mut how = match how {
            Some(how) => how,
            None => match timeout(LOOK, self.api.record(None, &container)).await {
                Ok(Ok(Row::Container(record))) => record.end(),
                Ok(Err(error)) => {
                    report = report.after(&error);
                    state.to_string()
                }
                _ => state.to_string(),
            },
        };
        // crunch-run got a signal, and cannot know whose.
        if state == ContainerState::Cancelled && how.contains(STOPPED_BY_SIGNAL) {
            let asked = self.scheduler.ending(&container, attempt);
            if let Ok(ending) = timeout(LOOK, asked).await
                && !ending.reason.is_empty()
            {
                how = format!("{how}; {}", ending.reason);
            }
        }
        report.events.insert(0, Event::Ended { container, how });
        report
    }

    pub(super) async fn sweep(&self, left_over: LeftOver) -> Report {
        let container = &left_over.container;
        if left_over.leavings == Leavings::Remove
            && let Err(error) = self.scheduler.forget(container).await
        {
            return Report::failed(container, error);
        }
        match self.end_left_over(&left_over).await {
            Ok(outcome) => Report::new(outcome, vec![]),
            Err(error) => Report::failed(container, &error).after(&error),
        }
    }

    /// A token that may still be granted the lock is disabled, and ended later. If the lock was granted just before,
    /// the token is needed to give it back, and is enabled again. A dispatcher that dies in between finds the token at
    /// its next start.
    async fn end_left_over(&self, left_over: &LeftOver) -> Result<Outcome, Error> {
        let LeftOver {
            container, token, ..
        } = left_over;
        if left_over.may_lock && self.attempts.disable(&token.uuid).await? {
            let holds = match self.api.record(None, container).await {
                Ok(Row::Container(record)) => record.locked_by.as_ref() == Some(&token.uuid),
                // Such a record is left alone, and so is its token.
                Ok(Row::Unreadable(..)) => return Ok(Outcome::Failed),
                Err(error) if error.is_not_found() => false,
                Err(error) => return Err(error),
            };
            if holds {
                return Ok(Outcome::Holds(self.attempts.renew(token).await?));
            }
            // A request that the server took up before may still be granted the lock: only this token can undo that.
            return Ok(Outcome::Disabled(token.clone()));
        }
        self.attempts.end(&token.uuid).await?;
        Ok(Outcome::Swept(token.uuid.clone()))
    }
}
