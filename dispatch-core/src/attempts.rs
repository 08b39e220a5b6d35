//! Attempt tokens: made for one lock, found again after a restart, ended when nobody needs them.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::api::NewToken;
use arvados_client::filter::Query;
use arvados_client::records::Authorization;
use arvados_client::{Client, ContainerUuid, Error, Token, TokenUuid, scopes};
use jiff::{SignedDuration, Timestamp};

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

/// Seconds: no token lives longer than ten years.
const LONGEST: u64 = 10 * 365 * 86400;

/// Mints, renews and ends attempt tokens of one dispatcher instance.
#[derive(Debug, Clone)]
pub struct Attempts {
    client: Client,
    label: String,
    margin: SignedDuration,
}

impl Attempts {
    /// For the dispatcher instance `label`; `margin` as in [`crate::Settings::token_margin`].
    pub fn new(client: Client, label: String, margin: Duration) -> Self {
        let margin = SignedDuration::try_from(margin).unwrap_or(SignedDuration::MAX);
        Self {
            client,
            label,
            margin: margin.min(SignedDuration::from_secs(LONGEST as i64)),
        }
    }

    /// Whether a token has less than half the margin left: time to renew it, and time to try that again.
    pub fn is_due(&self, token: &AttemptToken) -> bool {
        let left = |end: Timestamp| end.duration_since(Timestamp::now());
        token
            .expires_at
            .is_some_and(|end| left(end) < self.margin / 2)
    }

    /// Moves the end of a token that is still needed.
    pub async fn renew(&self, token: &AttemptToken) -> Result<AttemptToken, Error> {
        let expires_at = Timestamp::now() + self.margin;
        self.client.renew_token(&token.uuid, expires_at).await?;
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
    ) -> Result<AttemptToken, Error> {
        let expires_at = Timestamp::now() + lifetime(max_run_time, self.margin);
        let scopes = scopes::attempt(container, &self.label);
        let made = self
            .client
            .create_token(&NewToken { scopes, expires_at })
            .await?;
        attempt(&made).ok_or_else(|| {
            Error::Api(arvados_client::ApiError {
                status: arvados_client::error::StatusCode::FORBIDDEN,
                messages: vec![
                    "the new token came without its secret; the dispatch token may not mint tokens"
                        .into(),
                ],
                request_id: String::new(),
                retry_after: None,
            })
        })
    }

    /// Ends a token.
    pub async fn end(&self, token: &TokenUuid) -> Result<(), Error> {
        self.client.delete_token(token).await
    }

    /// Every attempt of this instance that the server still knows, by container.
    pub async fn recover(&self) -> Result<BTreeMap<ContainerUuid, Vec<AttemptToken>>, Error> {
        // Also those that have expired: a container they hold must still be told of.
        let query = Query::new();
        let tokens: Vec<Authorization> = self
            .client
            .all("api_client_authorizations", query, |t: &Authorization| {
                t.uuid.as_str()
            })
            .await?;
        let mut found: BTreeMap<ContainerUuid, Vec<AttemptToken>> = BTreeMap::new();
        for token in tokens
            .iter()
            .filter(|t| scopes::is_labelled(&t.scopes, &self.label))
        {
            if let (Some(container), Some(attempt)) =
                (scopes::attempt_container(&token.scopes), attempt(token))
            {
                found.entry(container).or_default().push(attempt);
            }
        }
        Ok(found)
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
