//! Attempt tokens: minted for one lock, recovered after a restart, and revoked after use.
//!
//! Input: containers, run time limits and the [`TokenMode`]. Output: [`AttemptToken`]s, and calls
//! that mint, renew, disable and revoke them. dispatch-api revokes them by itself, too, when the
//! container is unlocked or ends (`store/revocation.rs`).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arvados_client::api::NewToken;
use arvados_client::error::StatusCode;
use arvados_client::paging::{CountedPages, PageProgress};
use arvados_client::records::Authorization;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error, Token, TokenUuid, scopes};
use fail_points::fail_point;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::Api;
use crate::model::attempt_token::AttemptToken;

/// The kind of token that holds the locks.
#[derive(Debug, Clone, Default)]
pub enum TokenMode {
    /// Each attempt has a token of its own. This fences attempts, dispatchers and orphaned
    /// executors from each other.
    #[default]
    PerAttempt,
    /// The given dispatch token holds all locks and is passed to every job. This is for servers
    /// that do not let the dispatch token create tokens.
    Shared(Token),
}

/// Why no token could be minted for an attempt.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The dispatch token may not create tokens.
    #[error(
        "the dispatch token may not create tokens for attempts ({0}): give the dispatcher one that may, or, if no other dispatcher uses it, run it with --token-mode=shared"
    )]
    NotAllowed(String),
    /// The call to the API server failed.
    #[error("cannot create a token for the attempt: {0}")]
    Api(#[from] Error),
    /// The API server's answer to a call for several tokens lacks this one.
    #[error("cannot create a token for the attempt: the API server's answer lacks it")]
    NoAnswer,
}

/// Maximum lifetime of a token in seconds: ten years.
const MAX_TOKEN_LIFETIME: u64 = 10 * 365 * 86400;

/// Age of the expiry time that disables a token. It exceeds clock differences, and it is shorter
/// than the time for which a server retains expired tokens.
const DISABLED_EXPIRY_AGE: SignedDuration = SignedDuration::from_hours(24);

/// Mints, renews, disables and revokes attempt tokens of one dispatcher instance.
#[derive(Debug, Clone)]
pub struct AttemptTokens<A> {
    api: A,
    label: String,
    margin: SignedDuration,
    mode: TokenMode,
    /// The dispatch token with its UUID, in shared mode. Set by [`Self::read_dispatch_token`].
    dispatch_token: Arc<OnceLock<AttemptToken>>,
    /// Measures how long the server has been refusing to mint tokens. None: it has not minted any
    /// yet.
    refused: Arc<Mutex<Option<RefusalTimer>>>,
}

impl<A: Api> AttemptTokens<A> {
    /// Creates the tokens of the dispatcher instance `label`. `margin` is
    /// [`crate::Settings::token_margin`].
    pub fn new(api: A, label: String, margin: Duration, mode: TokenMode) -> Self {
        let margin = SignedDuration::try_from(margin).unwrap_or(SignedDuration::MAX);
        Self {
            api,
            label,
            margin: margin.min(SignedDuration::from_secs(MAX_TOKEN_LIFETIME as i64)),
            mode,
            dispatch_token: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Whether one token is for all attempts.
    pub fn is_shared(&self) -> bool {
        matches!(self.mode, TokenMode::Shared(_))
    }

    /// Whether a token has less than half of the margin left. The rest allows for retries of the
    /// renewal.
    pub fn needs_renewal(&self, token: &AttemptToken) -> bool {
        let left = |end: Timestamp| end.duration_since(self.api.now());
        !self.is_shared()
            && token
                .expires_at
                .is_some_and(|end| left(end) < self.margin / 2)
    }

    /// Extends the expiry time of a token that is still needed.
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

    /// Mints one token for each of the containers, given with their maximum run times in seconds.
    pub async fn mint(
        &self,
        wanted: &[(&ContainerUuid, Option<u64>)],
    ) -> Result<Vec<Result<AttemptToken, MintError>>, Error> {
        if let (TokenMode::Shared(_), Some(own)) = (&self.mode, self.dispatch_token.get()) {
            return Ok(wanted.iter().map(|_| Ok(own.clone())).collect());
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let new = wanted
            .iter()
            .map(|(uuid, max_run_time)| self.new_token(uuid, *max_run_time));
        let new: Vec<NewToken> = new.collect();
        fail_point("dispatcher.before-mint");
        let minted = self.api.mint(&new).await;
        fail_point("dispatcher.after-mint");
        let checked = minted?.into_iter().map(|one| self.check_minted(one));
        Ok(checked.collect())
    }

    fn check_minted(&self, made: Result<Authorization, Error>) -> Result<AttemptToken, MintError> {
        let may_not = self.is_mint_denied(&made);
        let made = made.map_err(|error| match may_not {
            true => MintError::NotAllowed(error.to_string()),
            false => MintError::Api(error),
        })?;
        attempt_token(&made).ok_or_else(|| {
            MintError::NotAllowed("the server did not show the new token's secret".into())
        })
    }

    /// Whether the server denies minting to the dispatch token. It does if it answers 403 and has
    /// never minted a token. Otherwise it does after a minute of refusals without success.
    fn is_mint_denied(&self, made: &Result<Authorization, Error>) -> bool {
        let mut refused = self.refused.lock();
        let now = Instant::now().into_std();
        match made {
            Ok(_) => {
                refused.get_or_insert_default().record(made, now);
                false
            }
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => {
                let timer = refused.as_mut();
                timer.is_none_or(|timer| timer.record_failure(error, now))
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

    /// Makes the server refuse a token until the token is renewed. False: the token does not exist,
    /// or tokens are shared and must not be disabled.
    pub async fn disable(&self, token: &TokenUuid) -> Result<bool, Error> {
        if let TokenMode::Shared(_) = self.mode {
            return Ok(false);
        }
        match self
            .api
            .renew(token, self.api.now() - DISABLED_EXPIRY_AGE)
            .await
        {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Revokes a token. A shared token is kept.
    pub async fn revoke(&self, token: &TokenUuid) -> Result<(), Error> {
        fail_point("dispatcher.before-end");
        let ended = match self.mode {
            TokenMode::PerAttempt => self.api.revoke(token).await,
            TokenMode::Shared(_) => Ok(()),
        };
        fail_point("dispatcher.after-end");
        ended
    }

    /// Reads the dispatch token, if it is shared: containers are locked with its UUID.
    pub async fn read_dispatch_token(&self) -> Result<(), Error> {
        if let (TokenMode::Shared(token), None) = (&self.mode, self.dispatch_token.get()) {
            let own = AttemptToken {
                uuid: self.api.own_token().await?.uuid,
                token: token.clone(),
                expires_at: None,
            };
            let _ = self.dispatch_token.set(own);
        }
        Ok(())
    }

    /// Lists the attempts of this instance by the tokens that the server has, newest first, down to
    /// those created before `since`. Expired tokens are included: a container that one of them
    /// holds must still be reported. With a shared token: the containers that it holds.
    ///
    /// Nothing follows from the absence of a token: a server lists only what it likes to.
    pub async fn list(&self, since: Option<Timestamp>) -> Result<TokenList, Error> {
        let mut list = TokenList::default();
        if let Some(own) = self.dispatch_token.get() {
            let held = self.api.locked_by(&own.uuid).await?.into_iter();
            list.ours = held.map(|uuid| (uuid, own.uuid.clone())).collect();
            list.is_complete = true;
            return Ok(list);
        }
        let (mut pages, mut skip) = (CountedPages::default(), 0);
        loop {
            let page = self.api.newest_tokens(skip).await?;
            skip += page.len() as u64;
            let progress = pages.add(page.iter().map(|token| token.uuid.as_str()));
            let oldest = page.iter().filter_map(|token| token.created_at).min();
            for token in page {
                let is_ours = scopes::is_labelled(&token.scopes, &self.label);
                let container = scopes::attempt_container(&token.scopes).filter(|_| is_ours);
                list.newest = list.newest.max(token.created_at);
                list.ours.extend(container.map(|uuid| (uuid, token.uuid)));
            }
            let is_old = since.is_some_and(|since| oldest.is_some_and(|oldest| oldest < since));
            list.is_complete = is_old || progress == PageProgress::End;
            if list.is_complete || progress == PageProgress::Repeats {
                return Ok(list);
            }
        }
    }

    /// Reads the token of an attempt. None: only the server knows it, and does not show it to the
    /// dispatch token.
    pub async fn read(&self, token: &TokenUuid) -> Result<Option<AttemptToken>, Error> {
        match self.dispatch_token.get() {
            Some(own) => Ok(Some(own.clone()).filter(|own| own.uuid == *token)),
            None => Ok(self
                .api
                .token(token)
                .await?
                .as_ref()
                .and_then(attempt_token)),
        }
    }
}

/// Attempts of this instance, as the server's list of tokens shows them.
#[derive(Debug, Default)]
pub struct TokenList {
    /// Container and token of each attempt.
    pub ours: Vec<(ContainerUuid, TokenUuid)>,
    /// Creation time of the newest token, also of another program.
    pub newest: Option<Timestamp>,
    /// Whether the server listed every token. False: its pages repeat.
    pub is_complete: bool,
}

fn attempt_token(token: &Authorization) -> Option<AttemptToken> {
    Some(AttemptToken {
        uuid: token.uuid.clone(),
        token: token.token()?,
        expires_at: token.expires_at,
    })
}

/// Initial lifetime of an attempt token: the maximum run time plus `margin`. The margin covers the
/// scheduler's queue, staging and saving. A token that is needed for longer is renewed.
fn lifetime(max_run_time: Option<u64>, margin: SignedDuration) -> SignedDuration {
    let seconds = max_run_time.unwrap_or(0).min(MAX_TOKEN_LIFETIME);
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
