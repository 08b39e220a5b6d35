//! The API client authorization record: a token with its scopes.

use jiff::Timestamp;
use serde::Deserialize;

use super::attributes::{lenient, optional, time};
use crate::ids::{TokenUuid, Uuid};
use crate::token::Token;

/// Record of a token. It is never written back, and its secret is never printed.
#[derive(Debug, Clone, Deserialize)]
pub struct Authorization {
    /// Uuid of the token, as in `locked_by_uuid`.
    pub uuid: TokenUuid,
    /// Uuid of its user.
    #[serde(default, deserialize_with = "optional")]
    pub owner_uuid: Option<Uuid>,
    /// The secret part, if the server sends it.
    #[serde(default, deserialize_with = "secret")]
    pub api_token: Option<Token>,
    /// `all`, or `METHOD /path` strings.
    #[serde(default, deserialize_with = "lenient")]
    pub scopes: Vec<String>,
    /// When it was created.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// When it expires.
    #[serde(default, deserialize_with = "time")]
    pub expires_at: Option<Timestamp>,
}

impl Authorization {
    /// The complete token, `v2/UUID/SECRET`.
    pub fn token(&self) -> Option<Token> {
        self.api_token
            .as_ref()
            .map(|secret| Token::v2(&self.uuid, secret.expose()))
    }
}

fn secret<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Token>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|t| !t.is_empty()).map(Token::new))
}
