//! Calls for API tokens.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::client::{Call, Client};
use crate::error::{Error, ListFault, StatusCode};
use crate::filter::Query;
use crate::ids::{TokenUuid, UserUuid};
use crate::paging::{CountedPages, PAGE_SIZE, PageProgress};
use crate::records::Authorization;

/// The resource of tokens.
const TOKENS: &str = "api_client_authorizations";

/// A token to create.
#[derive(Debug, Clone, Serialize)]
pub struct NewToken {
    /// Its scopes.
    pub scopes: Vec<String>,
    /// When it expires.
    pub expires_at: Timestamp,
}

/// A token to create for a user.
#[derive(Debug, Clone, Serialize)]
pub struct NewUserToken {
    /// Its user, if not that of the caller; only for administrators.
    #[serde(rename = "owner_uuid", skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserUuid>,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// When it expires; `None` is what the server decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl Client {
    /// Fetches the record of the token of this client.
    pub async fn current_token(&self) -> Result<Authorization, Error> {
        self.get("api_client_authorizations/current").await
    }

    /// Creates a token for the same user.
    pub async fn create_token(&self, new: &NewToken) -> Result<Authorization, Error> {
        let body = json!({"api_client_authorization": new});
        self.send(Call::post(TOKENS, body)).await
    }

    /// Creates a token for a user.
    pub async fn create_user_token(&self, new: &NewUserToken) -> Result<Authorization, Error> {
        let body = json!({"api_client_authorization": new});
        self.send(Call::post(TOKENS, body)).await
    }

    /// Lists the tokens that this client may see, newest first, without their secrets and users.
    /// `skip` are those to leave out, the newest ones. The page may be shorter than the rest of the
    /// list; an empty page is the end. A real Arvados ignores filters here, so pages are counted by
    /// records: a token that is made meanwhile shows another one twice, and a token that is revoked
    /// meanwhile hides one.
    pub async fn newest_tokens(&self, skip: u64, limit: u64) -> Result<Vec<Authorization>, Error> {
        // Arvados does not select the user of a token.
        let query = Query::new().select(&["uuid", "scopes", "created_at", "expires_at"]);
        self.tokens_page(query, skip, limit).await
    }

    async fn tokens_page(
        &self,
        query: Query,
        skip: u64,
        limit: u64,
    ) -> Result<Vec<Authorization>, Error> {
        let newest_first = query.order("created_at desc").order("uuid desc");
        let query = newest_first.offset(skip).limit(limit);
        Ok(self.page(TOKENS, &query).await?.items)
    }

    /// Lists all tokens that this client may see, with their users.
    pub async fn tokens(&self) -> Result<Vec<Authorization>, Error> {
        let mut tokens: BTreeMap<TokenUuid, Authorization> = BTreeMap::new();
        let (mut pages, mut skip) = (CountedPages::default(), 0);
        loop {
            let page = self.tokens_page(Query::new(), skip, PAGE_SIZE).await?;
            skip += page.len() as u64;
            let progress = pages.add(page.iter().map(|token| token.uuid.as_str()));
            tokens.extend(page.into_iter().map(|token| (token.uuid.clone(), token)));
            match progress {
                PageProgress::More => {}
                PageProgress::End => return Ok(tokens.into_values().collect()),
                PageProgress::Repeats => {
                    return Err(self.incomplete(TOKENS, ListFault::PageRepeated));
                }
            }
        }
    }

    /// Reads a token. None: there is none with this uuid that this client may see, or the server
    /// shows none by uuid (403 where `Login.IssueTrustedTokens` is false). The secret is in it if
    /// the server shows it to this client.
    pub async fn token(&self, uuid: &TokenUuid) -> Result<Option<Authorization>, Error> {
        match self.get(format!("{TOKENS}/{uuid}")).await {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Revokes a token that must exist.
    pub async fn revoke_token(&self, uuid: &TokenUuid) -> Result<(), Error> {
        self.done(Call::delete(format!("{TOKENS}/{uuid}"))).await
    }

    /// Revokes a token. Succeeds if it does not exist any more.
    pub async fn delete_token(&self, uuid: &TokenUuid) -> Result<(), Error> {
        match self.revoke_token(uuid).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Changes the expiry of a token.
    pub async fn renew_token(&self, uuid: &TokenUuid, expires_at: Timestamp) -> Result<(), Error> {
        let body = json!({"api_client_authorization": {"expires_at": expires_at}});
        self.done(Call::put(format!("{TOKENS}/{uuid}"), body)).await
    }
}
