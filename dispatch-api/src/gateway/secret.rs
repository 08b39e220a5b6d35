//! What server and gateway know of each other: a secret, and the proofs of it that travel.

use std::fmt;

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Numbers of bytes of the text of a secret: fewer can be guessed.
const LENGTH: std::ops::RangeInclusive<usize> = 32..=256;

/// The text that a gateway was started with.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// What a client presents, if it can be a secret at all.
    pub fn presented(text: &str) -> Option<Secret> {
        LENGTH
            .contains(&text.len())
            .then(|| Secret(text.to_owned()))
    }

    /// What a dispatcher that knows the root token gives the gateway of a container.
    pub fn derived(root_token: &str, container: &str) -> Secret {
        let proof = mac(root_token.as_bytes(), container.as_bytes());
        Secret(HEXLOWER.encode(&proof.finalize().into_bytes()))
    }

    /// Equal, in a time that tells nothing of where they differ.
    pub fn is(&self, other: &Secret) -> bool {
        let one = mac(self.0.as_bytes(), b"").finalize().into_bytes();
        mac(other.0.as_bytes(), b"").verify_slice(&one).is_ok()
    }

    /// The server's proof, for the gateway that has this certificate.
    pub fn request_proof(&self, certificate: &[u8]) -> String {
        let proof = mac(self.0.as_bytes(), certificate);
        HEXLOWER.encode(&proof.finalize().into_bytes())
    }

    /// Whether this is the gateway's proof, in answer to the server's.
    pub fn is_answer(&self, request_proof: &str, answer: &[u8]) -> bool {
        let Ok(answer) = HEXLOWER.decode(answer) else {
            return false;
        };
        let expected = mac(self.0.as_bytes(), request_proof.as_bytes());
        expected.verify_slice(&answer).is_ok()
    }
}

fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(text);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_derived_and_proved_as_everywhere() {
        // Computed with: printf %s TEXT | openssl dgst -sha256 -hmac KEY
        let secret = Secret::derived("root", "zzzzz-dz642-0123456789abcde");
        assert_eq!(
            secret.0,
            "0a66907e63b75102a2b1f28ea1d36d47eda9213bcc510fabdd2ae3e322d14af9"
        );
        let proof = secret.request_proof(b"certificate");
        assert_eq!(
            proof,
            "165658ffbff5acbe54944b9972d066f1abe9d236170134c4cd20ff31516f12df"
        );
        let answer = "a012d658f62ffa5d2c99bc6ec8af45931a4f32d6f65a3d38e8d1d7d56ff1d985";
        assert!(secret.is_answer(&proof, answer.as_bytes()));
        let other = Secret::derived("other", "zzzzz-dz642-0123456789abcde");
        assert!(!other.is_answer(&proof, answer.as_bytes()));
        assert!(!secret.is_answer(&proof, b"nonsense"));
        assert!(!secret.is(&other));
        assert!(secret.is(&Secret::presented(&secret.0).unwrap()));
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn what_can_be_guessed_is_no_secret() {
        assert!(Secret::presented("").is_none());
        assert!(Secret::presented("password").is_none());
        assert!(Secret::presented(&"x".repeat(257)).is_none());
    }
}
