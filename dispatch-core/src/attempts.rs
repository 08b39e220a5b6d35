//! Attempt tokens: made for one lock, found again after a restart, ended when nobody needs them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arvados_client::api::{Each, NewToken};
use arvados_client::error::StatusCode;
use arvados_client::records::Authorization;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error, Token, TokenUuid, scopes};
use fail_points::fail_point;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::api::Api;

/// One attempt's token.
#[derive(Debug, Clone)]
pub struct AttemptToken {
    /// Its name.
    pub uuid: TokenUuid,
    /// The secret.
    pub token: Token,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
}

/// Whose token holds the locks.
#[derive(Debug, Clone, Default)]
pub enum TokenMode {
    /// Every attempt has its own: what fences attempts, dispatchers and left-over executors from each other.
    #[default]
    PerAttempt,
    /// The dispatch token, this one, holds all locks and goes to every job: for servers where it may not make tokens.
    Shared(Token),
}

/// Why there is no token for an attempt.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The dispatch token may not make tokens.
    #[error(
        "the dispatch token may not make tokens for attempts ({0}): give the dispatcher one that may, or, if no other dispatcher uses it, run it with --token-mode=shared"
    )]
    NotAllowed(String),
    /// The call failed.
    #[error("no token could be made for it: {0}")]
    Api(#[from] Error),
}

/// Seconds: no token lives longer than ten years.
const LONGEST: u64 = 10 * 365 * 86400;

/// Age of the end of a token that is disabled: more than clocks differ, less than a server keeps ended tokens for.
const DISABLED_SINCE: SignedDuration = SignedDuration::from_hours(24);

/// Mints, renews and ends attempt tokens of one dispatcher instance.
#[derive(Debug, Clone)]
pub struct Attempts<A> {
    api: A,
    label: String,
    margin: SignedDuration,
    mode: TokenMode,
    /// The dispatch token by name, where it is shared; known after the first [`Self::recover`].
    own: Arc<OnceLock<AttemptToken>>,
    /// Since when the server refuses to make tokens, after it made one; none: it has made none yet.
    refused: Arc<Mutex<Option<RefusalTimer>>>,
}

impl<A: Api> Attempts<A> {
    /// For the dispatcher instance `label`; `margin` as in [`crate::Settings::token_margin`].
    pub fn new(api: A, label: String, margin: Duration, mode: TokenMode) -> Self {
        let margin = SignedDuration::try_from(margin).unwrap_or(SignedDuration::MAX);
        Self {
            api,
            label,
            margin: margin.min(SignedDuration::from_secs(LONGEST as i64)),
            mode,
            own: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Whether a token has less than half the margin left: time to renew it, and time to try that again.
    pub fn is_due(&self, token: &AttemptToken) -> bool {
        let own = matches!(self.mode, TokenMode::Shared(_));
        let left = |end: Timestamp| end.duration_since(self.api.now());
        !own && token
            .expires_at
            .is_some_and(|end| left(end) < self.margin / 2)
    }

    /// Moves the end of a token that is still needed.
    pub async fn renew(&self, token: &AttemptToken) -> Result<AttemptToken, Error> {
        let expires_at = self.api.now() + self.margin;
        fail_point("dispatcher.before-renew");
        self.api.renew(&token.uuid, expires_at).await?;
        fail_point("dispatcher.after-renew");
        Ok(AttemptToken {
            expires_at: Some(expires_at),
            ..token.clone()
        })
    }

    /// A new token for one attempt at `container`.
    pub async fn mint(
        &self,
        container: &ContainerUuid,
        max_run_time: Option<u64>,
    ) -> Result<AttemptToken, MintError> {
        if let (TokenMode::Shared(_), Some(own)) = (&self.mode, self.own.get()) {
            return Ok(own.clone());
        }
        let new = self.new_token(container, max_run_time);
        fail_point("dispatcher.before-mint");
        let made = self.api.mint(&new).await;
        fail_point("dispatcher.after-mint");
        self.made_attempt(made)
    }

    /// The same for many, by one call.
    pub async fn mint_all(
        &self,
        wanted: &[(&ContainerUuid, Option<u64>)],
    ) -> Result<Vec<Result<AttemptToken, MintError>>, Error> {
        if let (TokenMode::Shared(_), Some(own)) = (&self.mode, self.own.get()) {
            return Ok(wanted.iter().map(|_| Ok(own.clone())).collect());
        }
        let new = wanted
            .iter()
            .map(|(uuid, limit)| self.new_token(uuid, *limit));
        let new: Vec<NewToken> = new.collect();
        fail_point("dispatcher.before-mint");
        let made: Result<Each<Authorization>, Error> = self.api.mint_all(&new).await;
        fail_point("dispatcher.after-mint");
        Ok(made?
            .into_iter()
            .map(|one| self.made_attempt(one))
            .collect())
    }

    fn made_attempt(&self, made: Result<Authorization, Error>) -> Result<AttemptToken, MintError> {
        let may_not = self.may_not_mint(&made);
        let made = made.map_err(|error| match may_not {
            true => MintError::NotAllowed(error.to_string()),
            false => MintError::Api(error),
        })?;
        attempt(&made).ok_or_else(|| {
            MintError::NotAllowed("the server did not show the new token's secret".into())
        })
    }

    /// Whether the server does not let the dispatch token make tokens: it says so (403, for a token that it accepts), and
    /// has never made one, or has said nothing else for a minute.
    fn may_not_mint(&self, made: &Result<Authorization, Error>) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now().into_std();
        match made {
            Ok(_) => {
                refused.get_or_insert_default().is_over(made, now);
                false
            }
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => {
                let timer = refused.as_mut();
                timer.is_none_or(|timer| timer.has_failed(error, now))
            }
            Err(_) => false,
        }
    }

    fn new_token(&self, container: &ContainerUuid, max_run_time: Option<u64>) -> NewToken {
        NewToken {
            scopes: scopes::attempt(container, &self.label),
            expires_at: self.api.now() + lifetime(max_run_time, self.margin),
        }
    }

    /// Has the server refuse a token from now on, until it is renewed. False: there is no such token any more, or it
    /// is not to be disabled.
    pub async fn disable(&self, token: &TokenUuid) -> Result<bool, Error> {
        if let TokenMode::Shared(_) = self.mode {
            return Ok(false);
        }
        match self.api.renew(token, self.api.now() - DISABLED_SINCE).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends a token.
    pub async fn end(&self, token: &TokenUuid) -> Result<(), Error> {
        fail_point("dispatcher.before-end");
        let ended = match self.mode {
            TokenMode::PerAttempt => self.api.revoke(token).await,
            TokenMode::Shared(_) => Ok(()),
        };
        fail_point("dispatcher.after-end");
        ended
    }

    /// Every attempt of this instance that the server still knows, also those whose token has expired: a container
    /// they hold must still be told of. Of a shared token: every container it holds.
    pub async fn recover(&self) -> Result<Vec<(ContainerUuid, AttemptToken)>, Error> {
        if let TokenMode::Shared(token) = &self.mode {
            let own = AttemptToken {
                uuid: self.api.own_token().await?.uuid,
                token: token.clone(),
                expires_at: None,
            };
            let held = self.api.held_by(&own.uuid).await?;
            let _ = self.own.set(own.clone());
            return Ok(held.into_iter().map(|uuid| (uuid, own.clone())).collect());
        }
        let tokens = self.api.tokens().await?.into_iter();
        let ours = tokens.filter(|token| scopes::is_labelled(&token.scopes, &self.label));
        Ok(ours
            .filter_map(|token| Some((scopes::attempt_container(&token.scopes)?, attempt(&token)?)))
            .collect())
    }
}

fn attempt(token: &Authorization) -> Option<AttemptToken> {
    Some(AttemptToken {
        uuid: token.uuid.clone(),
        token: token.token()?,
        expires_at: token.expires_at,
    })
}

/// How long an attempt's token lives at first: `margin` longer than the container may run, for queueing in the
/// scheduler, staging and saving. One that is still needed then is renewed.
fn lifetime(max_run_time: Option<u64>, margin: SignedDuration) -> SignedDuration {
    let seconds = max_run_time.unwrap_or(0).min(LONGEST);
    SignedDuration::from_secs(seconds as i64) + margin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_outlives_its_container_by_the_margin() {
        let day = SignedDuration::from_hours(24);
        for (limit, days) in [(None, 1), (Some(86400), 2), (Some(u64::MAX), 3651)] {
            assert_eq!(lifetime(limit, day), day * days, "{limit:?}");
        }
    }
}
