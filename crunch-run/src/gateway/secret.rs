//! The gateway secret, which crunch-run and the API server share for one container, and the proofs
//! derived from it. In: the token file, or the environment. Out: two proofs for one certificate.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use arvados_client::Token;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::flags::normalise;
use crate::node::detach::own_program;

/// The environment variable, and the name in a token file.
pub const VARIABLE: &str = "GatewayAuthSecret";
/// Flag for a secret on stdin, see [`re_exec`].
const FLAG: &str = "--gateway-secret-stdin";
/// Size of a random secret in bytes.
const RANDOM_BYTES: usize = 32;

/// The secret of one container: the key of all proofs.
#[derive(Clone)]
pub struct GatewaySecret(Token);

impl fmt::Debug for GatewaySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GatewaySecret")
    }
}

impl GatewaySecret {
    /// The secret without surrounding white space; `None` if it is empty.
    pub fn new(text: &str) -> Option<Self> {
        let secret = Token::new(text);
        (!secret.is_empty()).then_some(Self(secret))
    }

    /// A random secret, for a server that accepts any.
    pub fn random() -> Option<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        let provider = rustls::crypto::ring::default_provider();
        provider.secure_random.fill(&mut bytes).ok()?;
        Self::new(&HEXLOWER.encode(&bytes))
    }

    /// The secret as a token, for the request that opens a tunnel.
    pub fn token(&self) -> &Token {
        &self.0
    }

    /// The proofs of both sides for the certificate of the gateway (DER).
    pub fn proofs(&self, certificate: &[u8]) -> Proofs {
        let request = self.mac(certificate);
        let response = self.mac(request.as_bytes());
        Proofs { request, response }
    }

    fn mac(&self, message: &[u8]) -> String {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(self.0.expose().as_bytes())
            .expect("HMAC takes keys of any length");
        mac.update(message);
        HEXLOWER.encode(&mac.finalize().into_bytes())
    }
}

/// Proofs of knowledge of the secret, valid for one certificate.
pub struct Proofs {
    request: String,
    response: String,
}

impl Proofs {
    /// Whether a request has the proof. Compares in constant time.
    pub fn is_shown(&self, given: &[u8]) -> bool {
        self.request.as_bytes().ct_eq(given).into()
    }

    /// The proof in the response.
    pub fn response(&self) -> &str {
        &self.response
    }
}

/// A token file: the attempt's token on the first line, then lines `NAME=VALUE`.
#[derive(Debug)]
pub struct TokenFile {
    pub token: Token,
    pub gateway: Option<GatewaySecret>,
}

impl TokenFile {
    pub fn read(path: &Path) -> io::Result<Self> {
        std::fs::read_to_string(path).map(|text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.trim_start().lines();
        let token = Token::new(lines.next().unwrap_or_default());
        let gateway = lines
            .filter_map(|line| line.split_once('='))
            .find(|(name, _)| name.trim() == VARIABLE)
            .and_then(|(_, value)| GatewaySecret::new(value));
        Self { token, gateway }
    }

    /// The content of a token file.
    pub fn text(token: &Token, gateway: Option<&str>) -> String {
        match gateway {
            Some(secret) => format!("{}\n{VARIABLE}={secret}\n", token.expose()),
            None => token.expose().to_owned(),
        }
    }
}

/// Replaces this process by the same program without the variable in its environment, so that no
/// child inherits it and no process reads it in `/proc`. The secret is passed on stdin, unless
/// stdin is `taken`; then it is lost. Returns only on failure.
pub fn re_exec(
    secret: &str,
    taken: bool,
    arguments: impl IntoIterator<Item = OsString>,
) -> io::Error {
    let mut words: Vec<OsString> = normalise(arguments).into_iter().skip(1).collect();
    let mut command = Command::new(own_program());
    if !taken && let Ok(reader) = piped(secret) {
        command.stdin(reader);
        words.insert(0, FLAG.into());
    }
    command
        .arg0("crunch-run")
        .args(words)
        .env_remove(VARIABLE)
        .exec()
}

/// A pipe that contains the secret.
fn piped(secret: &str) -> io::Result<Stdio> {
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(secret.as_bytes())?;
    Ok(reader.into())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The proof for the secret 00ff and the certificate `certificate`.
    pub const SHOWN: &str = "052d01ad82adc9ceb7ff3e36e84e7c150b5afc7d3cd4c2ade126c63ba40af080";

    /// The secret that Arvados derives from the root token `systemroottoken` and a container's
    /// uuid.
    const DERIVED: &str = "1ae68a7fc2c3bbb9294dbeaf797a46e5b0103949eb176ce95d84fd622b699c24";

    #[test]
    fn the_proofs_are_those_that_arvados_computes() {
        // From Python: hmac.new(key, message, "sha256").hexdigest(), the first fed into the
        // second.
        #[rustfmt::skip]
        let rows: [(&str, &[u8], &str, &str); 2] = [
            ("00ff", b"certificate", SHOWN,
             "cad376e54ae32112b10494d79e3157d72122c51e20a3e6b0a6074f9122d9452e"),
            (DERIVED, &[0x30, 0x82, 0x00, 0xff],
             "64ce6518cfd5556a138beb84c01cf36de921e8f8ad0152a4772ca4c126a437b2",
             "b64633d8e52a031a38d39dc0e8953e23e703f2e75c2ec788082657496792c381"),
        ];
        for (secret, certificate, request, response) in rows {
            let proofs = GatewaySecret::new(secret).unwrap().proofs(certificate);
            assert!(proofs.is_shown(request.as_bytes()), "{secret}");
            assert!(!proofs.is_shown(&request.as_bytes()[1..]), "{secret}");
            assert!(!proofs.is_shown(b""), "{secret}");
            assert_eq!(proofs.response(), response);
        }
    }

    #[test]
    fn a_token_file_has_the_token_first_and_the_secret_by_name() {
        for (text, token, secret) in [
            ("v2/a/b", "v2/a/b", None),
            ("\nv2/a/b\n", "v2/a/b", None),
            (
                "v2/a/b\r\nGatewayAuthSecret=00ff\r\n",
                "v2/a/b",
                Some("00ff"),
            ),
            (
                "v2/a/b\nOther=x\nGatewayAuthSecret=00ff",
                "v2/a/b",
                Some("00ff"),
            ),
            ("v2/a/b\nGatewayAuthSecret=\n", "v2/a/b", None),
            ("v2/a/b\nno name\n", "v2/a/b", None),
            ("", "", None),
        ] {
            let file = TokenFile::parse(text);
            assert_eq!(file.token.expose(), token, "{text:?}");
            let got = file.gateway.as_ref().map(|secret| secret.token().expose());
            assert_eq!(got, secret, "{text:?}");
        }
        let text = TokenFile::text(&Token::new("v2/a/b"), Some("00ff"));
        let again = TokenFile::parse(&text);
        assert_eq!(again.gateway.unwrap().token().expose(), "00ff");
    }

    #[test]
    fn a_secret_is_not_printed_and_a_random_one_is_new() {
        let secret = GatewaySecret::new("sesame").unwrap();
        assert!(!format!("{secret:?}").contains("sesame"));
        let [one, other] = [(); 2].map(|()| GatewaySecret::random().unwrap());
        assert_eq!(one.token().expose().len(), 2 * RANDOM_BYTES);
        assert_ne!(one.token().expose(), other.token().expose());
    }
}
