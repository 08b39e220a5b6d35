//! What is left of an attempt that is over, removed.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use tokio::time::timeout;

use super::{Hands, Leavings, Outcome, Report};
use crate::api::{Api, Row};
use crate::events::Event;
use crate::scheduler::{Scheduler, StillInUse};

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

    /// `ended`: its record is final, in this state, and nobody was told.
    pub(super) async fn end_attempt(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        ended: Option<ContainerState>,
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
        let how = match timeout(LOOK, self.api.record(None, &container)).await {
            Ok(Ok(Row::Container(record))) => record.end(),
            Ok(Err(error)) => {
                report = report.after(&error);
                state.to_string()
            }
            _ => state.to_string(),
        };
        report.events.insert(0, Event::Ended { container, how });
        report
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
