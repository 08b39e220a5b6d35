//! Calls for API tokens.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::filter::Query;
use crate::ids::{TokenUuid, UserUuid};
use crate::records::Authorization;

/// A token to create.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Its scopes.
    pub scopes: Vec<String>,
    /// When it expires.
    pub expires_at: Timestamp,
}

/// A token to create for a user.
#[derive(Debug, Clone)]
pub struct NewUserToken {
    /// Its user, if not that of the caller; only for administrators.
    pub owner: Option<UserUuid>,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// When it expires; `None` is what the server decides.
    pub expires_at: Option<Timestamp>,
}

impl Client {
    /// Fetches the record of the token of this client.
    pub async fn current_token(&self) -> Result<Authorization, Error> {
        self.send(Call::get("api_client_authorizations/current"))
            .await
    }

    /// Creates a token for the same user.
    pub async fn create_token(&self, new: &NewToken) -> Result<Authorization, Error> {
        let body = json!({"api_client_authorization": {"scopes": new.scopes, "expires_at": new.expires_at.to_string()}});
        self.send(Call::post("api_client_authorizations", body))
            .await
    }

    /// Creates a token for a user.
    pub async fn create_user_token(&self, new: &NewUserToken) -> Result<Authorization, Error> {
        let mut token = json!({"scopes": new.scopes});
        if let Some(owner) = &new.owner {
            token["owner_uuid"] = json!(owner);
        }
        if let Some(expires_at) = new.expires_at {
            token["expires_at"] = json!(expires_at.to_string());
        }
        let body = json!({"api_client_authorization": token});
        self.send(Call::post("api_client_authorizations", body))
            .await
    }

    /// Lists the tokens of the user, without their secrets.
    pub async fn tokens(&self) -> Result<Vec<Authorization>, Error> {
        let query =
            Query::new().select(&["uuid", "owner_uuid", "scopes", "created_at", "expires_at"]);
        self.all(
            "api_client_authorizations",
            query,
            |token: &Authorization| token.uuid.as_str(),
        )
        .await
    }

    /// Revokes a token that must exist.
    pub async fn revoke_token(&self, uuid: &TokenUuid) -> Result<(), Error> {
        let path = format!("api_client_authorizations/{uuid}");
        self.send::<Value>(Call::delete(path)).await.map(drop)
    }

    /// Revokes a token. Succeeds if it does not exist any more.
    pub async fn delete_token(&self, uuid: &TokenUuid) -> Result<(), Error> {
        match self.revoke_token(uuid).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Changes the expiry of a token.
    pub async fn renew_token(&self, uuid: &TokenUuid, expires_at: Timestamp) -> Result<(), Error> {
        let body = json!({"api_client_authorization": {"expires_at": expires_at.to_string()}});
        self.send::<Value>(Call::put(format!("api_client_authorizations/{uuid}"), body))
            .await
            .map(drop)
    }
}
