//! The secret that server and gateway share, and the proofs of it.

use std::fmt;

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Permitted length in bytes of a secret; a shorter one could be guessed.
const SECRET_LENGTH: std::ops::RangeInclusive<usize> = 32..=256;

/// The secret that a gateway was started with.
#[derive(Clone)]
pub struct GatewaySecret(String);

impl fmt::Debug for GatewaySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl GatewaySecret {
    /// A secret sent by a client, if its length is permitted.
    pub fn from_client(text: &str) -> Option<GatewaySecret> {
        SECRET_LENGTH
            .contains(&text.len())
            .then(|| GatewaySecret(text.to_owned()))
    }

    /// The secret that a dispatcher with the root token derives for a container's gateway.
    pub fn derive(root_token: &str, container: &str) -> GatewaySecret {
        let proof = mac(root_token.as_bytes(), container.as_bytes());
        GatewaySecret(HEXLOWER.encode(&proof.finalize().into_bytes()))
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &GatewaySecret) -> bool {
        let one = mac(self.0.as_bytes(), b"").finalize().into_bytes();
        mac(other.0.as_bytes(), b"").verify_slice(&one).is_ok()
    }

    /// The server's proof for a gateway with this certificate.
    pub fn request_proof(&self, certificate: &[u8]) -> String {
        let proof = mac(self.0.as_bytes(), certificate);
        HEXLOWER.encode(&proof.finalize().into_bytes())
    }

    /// Whether `answer` is the gateway's proof in reply to the server's.
    pub fn verify_response_proof(&self, request_proof: &str, expected_reply: &[u8]) -> bool {
        let Ok(expected_reply) = HEXLOWER.decode(expected_reply) else {
            return false;
        };
        let expected = mac(self.0.as_bytes(), request_proof.as_bytes());
        expected.verify_slice(&expected_reply).is_ok()
    }
}

fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    mac.update(text);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_derived_and_proved_as_everywhere() {
        // Computed with: printf %s TEXT | openssl dgst -sha256 -hmac KEY
        let secret = GatewaySecret::derive("root", "zzzzz-dz642-0123456789abcde");
        assert_eq!(
            secret.0,
            "0a66907e63b75102a2b1f28ea1d36d47eda9213bcc510fabdd2ae3e322d14af9"
        );
        let proof = secret.request_proof(b"certificate");
        assert_eq!(
            proof,
            "165658ffbff5acbe54944b9972d066f1abe9d236170134c4cd20ff31516f12df"
        );
        let expected_reply = "a012d658f62ffa5d2c99bc6ec8af45931a4f32d6f65a3d38e8d1d7d56ff1d985";
        assert!(secret.verify_response_proof(&proof, expected_reply.as_bytes()));
        let other = GatewaySecret::derive("other", "zzzzz-dz642-0123456789abcde");
        assert!(!other.verify_response_proof(&proof, expected_reply.as_bytes()));
        assert!(!secret.verify_response_proof(&proof, b"nonsense"));
        assert!(!secret.matches(&other));
        assert!(secret.matches(&GatewaySecret::from_client(&secret.0).unwrap()));
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn what_can_be_guessed_is_no_secret() {
        assert!(GatewaySecret::from_client("").is_none());
        assert!(GatewaySecret::from_client("password").is_none());
        assert!(GatewaySecret::from_client(&"x".repeat(257)).is_none());
    }
}
