//! Tokens: no text makes their verification panic, and none but a signed one is taken for an
//! attempt token.

use std::sync::LazyLock;

use dispatch_api::auth::attempt_token::{AttemptKey, AttemptTokenVerifier, Claims};
use rusqlite::Connection;

const CONTAINER: &str = "local-dz642-0123456789abcde";
/// Stands for a valid token in the input.
const VALID: &str = "VALID";

static SIGNED: LazyLock<(AttemptTokenVerifier, String)> = LazyLock::new(|| {
    let key = AttemptKey::new(b"the key of this server");
    let secret = key
        .sign(&Claims {
            jti: "local-gj3su-0123456789abcde".into(),
            sub: "local-tpzed-0123456789abcde".into(),
            admin: true,
            container: CONTAINER.into(),
            scopes: vec!["all".into()],
            exp: None,
        })
        .expect("a signed token");
    let database = Connection::open_in_memory().expect("a database");
    database
        .execute_batch("CREATE TABLE attempt_overrides (uuid TEXT, expires_at TEXT)")
        .expect("a table");
    let verifier = AttemptTokenVerifier::load(key, &database).expect("a verifier");
    (verifier, secret)
});

/// Checks the rules with this input.
pub fn check(text: &str) {
    let (verifier, valid) = &*SIGNED;
    let secret = text.replace(VALID, valid);
    if verifier.verify(&secret).is_some() {
        assert_eq!(&secret, valid);
    }
}
