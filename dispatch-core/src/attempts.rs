//! Attempt tokens: made for one lock, found again after a restart, ended when nobody needs them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arvados_client::api::{Each, NewToken};
use arvados_client::records::Authorization;
use arvados_client::{ContainerUuid, Error, Token, TokenUuid, scopes};
use fail_points::fail_point;
use jiff::{SignedDuration, Timestamp};

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

/// Mints, renews and ends attempt tokens of one dispatcher instance.
#[derive(Debug, Clone)]
pub struct Attempts<A> {
    api: A,
    label: String,
    margin: SignedDuration,
    mode: TokenMode,
    /// The dispatch token by name, where it is shared; known after the first [`Self::recover`].
    own: Arc<OnceLock<AttemptToken>>,
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
        made_attempt(made)
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
        Ok(made?.into_iter().map(made_attempt).collect())
    }

    fn new_token(&self, container: &ContainerUuid, max_run_time: Option<u64>) -> NewToken {
        NewToken {
            scopes: scopes::attempt(container, &self.label),
            expires_at: self.api.now() + lifetime(max_run_time, self.margin),
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

fn made_attempt(made: Result<Authorization, Error>) -> Result<AttemptToken, MintError> {
    let made = made.map_err(|error| match error.is_denied() {
        true => MintError::NotAllowed(error.to_string()),
        false => MintError::Api(error),
    })?;
    attempt(&made).ok_or_else(|| {
        MintError::NotAllowed("the server did not show the new token's secret".into())
    })
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
