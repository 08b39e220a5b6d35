//! The credentials of a job: the attempt's token, and the gateway secret where it can be derived.
//!
//! Input: an attempt token, a container UUID and the `SystemRootToken`. Output: the content of one
//! private file, which crunch-run reads with `--token-file`.

use arvados_client::{ContainerUuid, Token};
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The cluster's `SystemRootToken`. The Arvados controller and the dispatcher derive the same
/// secrets from it.
#[derive(Debug, Clone)]
pub struct GatewayKey(Token);

impl GatewayKey {
    /// Creates the key from the `SystemRootToken` of the cluster's configuration.
    pub fn new(system_root_token: Token) -> Self {
        Self(system_root_token)
    }

    /// The gateway secret of one container: the hex HMAC-SHA256 of its UUID. Upstream's dispatchers
    /// call it `GatewayAuthSecret`.
    pub fn secret(&self, container: &ContainerUuid) -> Token {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose().as_bytes())
            .expect("HMAC takes keys of any length");
        mac.update(container.as_str().as_bytes());
        Token::new(HEXLOWER.encode(&mac.finalize().into_bytes()))
    }
}

/// The secrets of one job.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Token of the attempt.
    pub token: Token,
    /// Secret of the container gateway. Without it, users cannot follow the log live on an Arvados
    /// server.
    pub gateway_secret: Option<Token>,
}

impl Credentials {
    /// The content of the token file: the token on the first line, then `NAME=VALUE`. Without a
    /// gateway secret it contains only the token, like the files of upstream's programs.
    pub fn file_content(&self) -> Token {
        let token = self.token.expose();
        match &self.gateway_secret {
            None => Token::new(token),
            Some(secret) => Token::new(format!("{token}\nGatewayAuthSecret={}", secret.expose())),
        }
    }
}

impl From<Token> for Credentials {
    fn from(token: Token) -> Self {
        Self {
            token,
            gateway_secret: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_derives_the_same_gateway_secret() {
        let key = GatewayKey::new(Token::new("systemroottoken"));
        let container = ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap();
        // printf %s zzzzz-dz642-queuedcontainer | openssl dgst -sha256 -hmac systemroottoken
        assert_eq!(
            key.secret(&container).expose(),
            "23e1e4d7a42192093f1be6fe462cdca5694f67437715fcc81638587205281d70"
        );
    }

    #[test]
    fn the_token_is_the_first_line_and_nothing_is_printed() {
        let mut credentials = Credentials::from(Token::new("v2/u/sesame"));
        assert_eq!(credentials.file_content().expose(), "v2/u/sesame");
        credentials.gateway_secret = Some(Token::new("abc123"));
        let content = credentials.file_content();
        assert_eq!(content.expose(), "v2/u/sesame\nGatewayAuthSecret=abc123");
        let printed = format!("{credentials:?} {content:?}");
        assert!(!printed.contains("sesame") && !printed.contains("abc123"));
    }
}
