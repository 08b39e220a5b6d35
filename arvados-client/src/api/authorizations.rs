//! Calls on tokens.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::ids::TokenUuid;
use crate::records::Authorization;

/// A token to be made.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// What it may do.
    pub scopes: Vec<String>,
    /// When it stops working.
    pub expires_at: Timestamp,
}

impl Client {
    /// The record of this client's own token.
    pub async fn current_token(&self) -> Result<Authorization, Error> {
        self.send(Call::get("api_client_authorizations/current"))
            .await
    }

    /// Makes a token for the same user.
    pub async fn create_token(&self, new: &NewToken) -> Result<Authorization, Error> {
        let body = json!({"api_client_authorization": {"scopes": new.scopes, "expires_at": new.expires_at.to_string()}});
        self.send(Call::post("api_client_authorizations", body))
            .await
    }

    /// Ends a token. One that is gone already is success.
    pub async fn delete_token(&self, uuid: &TokenUuid) -> Result<(), Error> {
        match self
            .send::<Value>(Call::delete(format!("api_client_authorizations/{uuid}")))
            .await
        {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Moves the expiry of a token.
    pub async fn renew_token(&self, uuid: &TokenUuid, expires_at: Timestamp) -> Result<(), Error> {
        let body = json!({"api_client_authorization": {"expires_at": expires_at.to_string()}});
        self.send::<Value>(Call::put(format!("api_client_authorizations/{uuid}"), body))
            .await
            .map(drop)
    }
}
