//! Attempt tokens: signed, so that they are verified without a database query, and yet revocable.
//!
//! A revocation or renewal after signing is an *expiry override*, stored in a small table and in
//! memory.

use std::collections::HashMap;

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::RwLock;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::{ApiError, Result};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// Uuid of the token.
    pub jti: String,
    /// Uuid of the user.
    pub sub: String,
    pub admin: bool,
    /// Uuid of the container.
    pub container: String,
    pub scopes: Vec<String>,
    /// Seconds since the epoch; absent for a token without expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
}

/// The key that signs and verifies attempt tokens.
#[derive(Clone)]
pub struct AttemptKey {
    sign: EncodingKey,
    check: DecodingKey,
}

impl AttemptKey {
    pub fn new(secret: &[u8]) -> Self {
        AttemptKey {
            sign: EncodingKey::from_secret(secret),
            check: DecodingKey::from_secret(secret),
        }
    }

    pub fn sign(&self, claims: &Claims) -> Result<String> {
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &self.sign).map_err(|error| {
            ApiError::BadRecord(format!("an attempt token cannot be signed: {error}"))
        })
    }

    fn verify_signature(&self, secret: &str) -> Option<Claims> {
        let mut rules = Validation::new(Algorithm::HS256);
        // `AttemptTokenVerifier::verify` checks the expiry, which an override may have changed.
        rules.validate_exp = false;
        rules.required_spec_claims.clear();
        jsonwebtoken::decode::<Claims>(secret, &self.check, &rules)
            .ok()
            .map(|token| token.claims)
    }
}

/// The uuid of a token, and the expiry set after signing; `None` removes the expiry.
pub type ExpiryOverride = (String, Option<String>);

/// Verifies attempt tokens, with all expiry overrides in memory.
pub struct AttemptTokenVerifier {
    key: AttemptKey,
    overrides: RwLock<HashMap<String, Option<String>>>,
}

impl AttemptTokenVerifier {
    pub fn load(key: AttemptKey, connection: &Connection) -> Result<Self> {
        let mut overrides = HashMap::new();
        let mut statement = connection.prepare("SELECT uuid, expires_at FROM attempt_overrides")?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            overrides.insert(row.get(0)?, row.get(1)?);
        }
        Ok(AttemptTokenVerifier {
            key,
            overrides: RwLock::new(overrides),
        })
    }

    pub fn apply_overrides(&self, changes: Vec<ExpiryOverride>) {
        if !changes.is_empty() {
            self.overrides.write().extend(changes);
        }
    }

    /// Removes overrides of tokens whose signed expiry has passed.
    pub fn remove_overrides(&self, uuids: &[String]) {
        let mut known = self.overrides.write();
        for uuid in uuids {
            known.remove(uuid);
        }
    }

    /// The claims of a token that is signed by this server and has not expired.
    pub fn verify(&self, secret: &str) -> Option<Claims> {
        // Other tokens cannot be valid signatures.
        if !is_signed(secret) {
            return None;
        }
        let claims = self.key.verify_signature(secret)?;
        let known = self.overrides.read();
        let end = match known.get(&claims.jti) {
            Some(decided) => decided.clone(),
            None => claims.exp.and_then(from_epoch),
        };
        end.is_none_or(|end| end > clock::now()).then_some(claims)
    }
}

/// Whether a secret looks like a JWT, which starts with the base64 of `{"`.
pub fn is_signed(secret: &str) -> bool {
    secret.starts_with("eyJ")
}

pub fn from_epoch(seconds: i64) -> Option<String> {
    Timestamp::from_second(seconds).ok().map(clock::stamp)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claims(exp: Option<i64>) -> Claims {
        Claims {
            jti: "local-gj3su-0123456789abcde".into(),
            sub: "local-tpzed-0123456789abcde".into(),
            admin: true,
            container: "local-dz642-0123456789abcde".into(),
            scopes: vec!["GET /arvados/v1/users/current".into()],
            exp,
        }
    }

    fn tokens(secret: &[u8]) -> AttemptTokenVerifier {
        AttemptTokenVerifier {
            key: AttemptKey::new(secret),
            overrides: RwLock::default(),
        }
    }

    #[test]
    fn a_genuine_token_gives_its_claims_back() {
        let token = AttemptKey::new(b"key").sign(&claims(None)).unwrap();
        assert_eq!(tokens(b"key").verify(&token), Some(claims(None)));
        assert_eq!(tokens(b"other").verify(&token), None);
        assert_eq!(tokens(b"key").verify("eyJnonsense"), None);
    }

    #[test]
    fn expiry_revocation_and_renewal() {
        let past = Timestamp::now().as_second() - 10;
        let future = Timestamp::now().as_second() + 100;
        let key = AttemptKey::new(b"key");
        let tokens = tokens(b"key");
        let expired = key.sign(&claims(Some(past))).unwrap();
        let alive = key.sign(&claims(Some(future))).unwrap();
        assert!(tokens.verify(&expired).is_none());
        assert!(tokens.verify(&alive).is_some());

        let decide = |expires_at| {
            tokens.apply_overrides(vec![(claims(None).jti, expires_at)]);
        };
        decide(Some(clock::before(Duration::from_secs(1))));
        assert!(tokens.verify(&alive).is_none(), "revoked");
        decide(Some(clock::after(Duration::from_secs(60))));
        assert!(tokens.verify(&expired).is_some(), "renewed");
    }
}
