//! The API client authorization record: a token and what it may do.

use jiff::Timestamp;
use serde::Deserialize;

use super::{lenient, optional, time};
use crate::ids::{TokenUuid, Uuid};
use crate::token::Token;

/// A token's record. It is read and never written back, and its secret cannot be printed.
#[derive(Debug, Clone, Deserialize)]
pub struct Authorization {
    /// The token's name; what `locked_by_uuid` holds.
    pub uuid: TokenUuid,
    /// Whom it acts as.
    #[serde(default, deserialize_with = "optional")]
    pub owner_uuid: Option<Uuid>,
    /// The secret part, where the server shows it.
    #[serde(default, deserialize_with = "secret")]
    pub api_token: Option<Token>,
    /// `all`, or `METHOD /path` strings.
    #[serde(default, deserialize_with = "lenient")]
    pub scopes: Vec<String>,
    /// When it stops working.
    #[serde(default, deserialize_with = "time")]
    pub expires_at: Option<Timestamp>,
}

impl Authorization {
    /// The whole token, `v2/UUID/SECRET`.
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
