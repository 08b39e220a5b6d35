//! Calls the API server with an attempt's token and interprets refusals. Reads a token that is not
//! known after a restart.
//!
//! Input: a call and the token of the attempt that should hold the lock. Output: its result, or a
//! [`HolderError`].
//!
//! A server may refuse a valid token for a while, for instance after a restart of its database.
//! While the record names the attempt as the holder, a refused call is therefore retried. Only a
//! lasting refusal counts.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use tokio::time::{Instant, sleep};

use crate::act::TaskRunner;
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::{ContainerSnapshot, ListedRecord};
use crate::scheduler::Scheduler;
use crate::scheduler::attempt_dir::AttemptDir;

/// Interval between tries of a refused call.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);

/// Why a call with an attempt's token failed.
#[derive(Debug)]
pub(super) enum HolderError {
    /// The call was refused, and the attempt does not hold the lock. Contains the record.
    NotHolder(Box<ContainerSnapshot>),
    /// The attempt holds the lock, but its token has expired or was refused for a minute.
    Expired,
    /// The call was refused, and the record cannot be parsed.
    Unreadable(String),
    /// Any other error of the API server.
    Api(Error),
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    fn attempt_dir(&self, container: &ContainerUuid) -> Option<AttemptDir> {
        let home = self.scheduler.state_dir()?;
        Some(AttemptDir::of(home, container))
    }

    /// Records the token before it locks the container. See [`AttemptDir::record_lock`].
    pub(super) async fn record_lock(&self, container: &ContainerUuid, token: &AttemptToken) {
        let token = token.token.clone();
        if !self.attempts.is_shared()
            && let Some(dir) = self.attempt_dir(container)
            && let Err(error) = dir.with_timeout(move |dir| dir.record_lock(&token)).await
        {
            tracing::warn!(%container, %error, "could not record the token with which the container is locked");
        }
    }

    /// Removes the record of a lock that was not granted.
    pub(super) async fn forget_lock(&self, container: &ContainerUuid) {
        if let Some(dir) = self.attempt_dir(container)
            && let Err(error) = dir.with_timeout(AttemptDir::forget_lock).await
        {
            tracing::debug!(%container, %error, "could not remove the record of a lock");
        }
    }

    /// Records in the job directory that no job of this attempt was submitted. The next run of the
    /// dispatcher then submits it with the same lock. Without the record, that run unlocks it.
    pub(super) async fn record_not_submitted(&self, container: &ContainerUuid, of: &TokenUuid) {
        let attempt = of.clone();
        if let Some(dir) = self.attempt_dir(container)
            && let Err(error) = dir
                .with_timeout(move |dir| dir.withdraw_token(&attempt))
                .await
        {
            tracing::debug!(%container, %error, "could not record that no job was submitted");
        }
    }

    /// Whether an earlier run recorded that no job of this attempt was submitted.
    pub(super) async fn was_not_submitted(
        &self,
        container: &ContainerUuid,
        of: &TokenUuid,
    ) -> bool {
        match self.attempt_dir(container) {
            Some(dir) => dir.was_not_submitted(of.clone()).await,
            None => false,
        }
    }

    /// The token of the attempt: `known` if that is the one, or as the server or the job directory
    /// has it. None: neither shows it.
    pub(crate) async fn token_or_read(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
        known: Option<AttemptToken>,
    ) -> Result<Option<AttemptToken>, Error> {
        let known = known.filter(|token| token.uuid == *attempt);
        let known = match known {
            None => self.attempts.read(attempt).await?,
            known => known,
        };
        match (known, self.attempt_dir(container)) {
            (None, Some(dir)) => {
                let secret = dir.token_of(attempt.clone()).await;
                Ok(secret.map(|token| AttemptToken {
                    uuid: attempt.clone(),
                    token,
                    expires_at: None,
                }))
            }
            (known, _) => Ok(known),
        }
    }

    /// Makes a call with the token of the attempt that is assumed to hold the lock of `container`.
    pub(super) async fn as_holder<T, F>(
        &self,
        container: &ContainerUuid,
        token: &AttemptToken,
        call: impl Fn() -> F,
    ) -> Result<T, HolderError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut refused = RefusalTimer::default();
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_denied() => error,
                Err(error) => return Err(HolderError::Api(error)),
            };
            let record = match self.api.record(None, container).await {
                Ok(ListedRecord::Parsed(record)) => record,
                Ok(ListedRecord::Malformed(_, why)) => return Err(HolderError::Unreadable(why)),
                Err(error) => return Err(HolderError::Api(error)),
            };
            let holds = record.locked_by.as_ref() == Some(&token.uuid);
            if !holds || record.state == ContainerState::Queued || record.state.is_final() {
                return Err(HolderError::NotHolder(record));
            }
            let has_ended = token.expires_at.is_some_and(|end| end <= self.api.now());
            if has_ended || refused.record_failure(&error, Instant::now().into_std()) {
                return Err(HolderError::Expired);
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
}
