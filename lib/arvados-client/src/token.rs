//! An API token as a secret type, which is never printed.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

use crate::ids::TokenUuid;

/// An API token: `v2/UUID/SECRET`, `v2/UUID/SECRET/CONTAINER`, or a bare secret.
///
/// The exact spelling matters: Keep signatures are made over the whole text as presented, so one
/// client must use one spelling everywhere.
#[derive(Clone)]
pub struct Token(SecretString);

impl Token {
    /// Makes a token from its text, without surrounding white space.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(SecretString::from(text.as_ref().trim().to_owned()))
    }

    /// `v2/UUID/SECRET`.
    pub fn v2(uuid: &TokenUuid, secret: &str) -> Self {
        Self::new(format!("v2/{uuid}/{secret}"))
    }

    /// The secret text, to send it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The uuid of a `v2/` token; `None` for a bare secret.
    pub fn uuid(&self) -> Option<TokenUuid> {
        let mut parts = self.expose().split('/');
        match (parts.next(), parts.next()) {
            (Some("v2"), Some(uuid)) => TokenUuid::parse(uuid).ok(),
            _ => None,
        }
    }

    /// Whether there is any text at all.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uuid() {
            Some(uuid) => write!(f, "Token({uuid}, secret)"),
            None => f.write_str("Token(secret)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_uuid_and_never_the_secret() {
        let token = Token::new("v2/zzzzz-gj3su-0123456789abcde/sesame\n");
        assert_eq!(
            format!("{token:?}"),
            "Token(zzzzz-gj3su-0123456789abcde, secret)"
        );
        assert_eq!(token.expose(), "v2/zzzzz-gj3su-0123456789abcde/sesame");
        assert_eq!(format!("{:?}", Token::new("sesame")), "Token(secret)");
    }
}
