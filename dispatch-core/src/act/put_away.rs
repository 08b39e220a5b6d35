//! What is left of an attempt that is over, removed.

use arvados_client::{ContainerUuid, Error, TokenUuid};

use super::{Hands, Leavings, Outcome, Report};
use crate::api::{Api, Row};
use crate::events::Event;
use crate::plan::Reason;
use crate::scheduler::{Scheduler, StillInUse};

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

    pub(super) async fn end_attempt(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        reason: Reason,
    ) -> Report {
        match self.put_away(&container, attempt).await {
            Ok(()) if reason == Reason::ContainerFinal => {
                let how = self.how_it_ended(&container).await;
                Report::new(Outcome::Ended, vec![Event::Ended { container, how }])
            }
            Ok(()) => Report::new(Outcome::Ended, vec![]),
            Err(error) => {
                let mut report = Report::failed(&container, &error);
                if let PutAwayError::Api(error) = &error {
                    report = report.after(error);
                }
                report.outcome = Outcome::NotEnded;
                report
            }
        }
    }

    /// For people: nothing depends on it.
    async fn how_it_ended(&self, container: &ContainerUuid) -> String {
        match self.api.record(None, container).await {
            Ok(Row::Container(record)) => record.end(),
            _ => "how could not be read".to_owned(),
        }
    }

    pub(super) async fn sweep(
        &self,
        container: &ContainerUuid,
        token: TokenUuid,
        leavings: Leavings,
    ) -> Report {
        if leavings == Leavings::Remove
            && let Err(error) = self.scheduler.forget(container).await
        {
            return Report::failed(container, error);
        }
        match self.attempts.end(&token).await {
            Ok(()) => Report::new(Outcome::Swept(token), vec![]),
            Err(error) => Report::failed(container, &error).after(&error),
        }
    }
}
