//! Attempt tokens: made for one lock, found again after a restart, ended when nobody needs them.

use std::collections::BTreeMap;

use arvados_client::api::NewToken;
use arvados_client::filter::Query;
use arvados_client::records::Authorization;
use arvados_client::{Client, ContainerUuid, Error, Token, TokenUuid, scopes};
use jiff::{SignedDuration, Timestamp};

/// Added to a container's run time limit: queueing in the scheduler, staging, saving.
const MARGIN: SignedDuration = SignedDuration::from_hours(30 * 24);
/// For a container without a limit.
const UNLIMITED: SignedDuration = SignedDuration::from_hours(3 * 365 * 24);

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

/// Mints and ends attempt tokens of one dispatcher instance.
#[derive(Debug, Clone)]
pub struct Attempts {
    client: Client,
    label: String,
}

impl Attempts {
    /// For the dispatcher instance `label`.
    pub fn new(client: Client, label: String) -> Self {
        Self { client, label }
    }

    /// A new token for one attempt at `container`.
    pub async fn mint(
        &self,
        container: &ContainerUuid,
        max_run_time: Option<u64>,
    ) -> Result<AttemptToken, Error> {
        let expires_at = Timestamp::now() + lifetime(max_run_time);
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

/// How long an attempt's token lives. Without a run time limit: as long as anybody may want it to.
fn lifetime(max_run_time: Option<u64>) -> SignedDuration {
    match max_run_time {
        Some(seconds) => SignedDuration::from_secs(seconds.min(10 * 365 * 86400) as i64) + MARGIN,
        None => UNLIMITED,
    }
}
