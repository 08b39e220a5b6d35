//! What a job proves itself with: the attempt's token, and the secret of its container gateway where the dispatcher can
//! derive one. Both travel in one private file, as lines; crunch-run reads it with `--token-file`.

use arvados_client::{ContainerUuid, Token};
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The cluster's `SystemRootToken`, from which the controller and the dispatcher derive the same secrets.
#[derive(Debug, Clone)]
pub struct GatewayKey(Token);

impl GatewayKey {
    /// With the `SystemRootToken` of the cluster's configuration.
    pub fn new(system_root_token: Token) -> Self {
        Self(system_root_token)
    }

    /// The secret of one container's gateway: `GatewayAuthSecret` of upstream's dispatchers, hex HMAC-SHA256 of the
    /// container's uuid.
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
    /// The attempt's token.
    pub token: Token,
    /// The secret of its container gateway: without it nobody can follow the log live on a real Arvados server.
    pub gateway_secret: Option<Token>,
}

impl Credentials {
    /// The content of the token file: the token alone on the first line, then `NAME=VALUE`. Without a gateway secret
    /// it is the token and nothing else, as upstream's programs write such files.
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
