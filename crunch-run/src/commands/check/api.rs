//! Checks the API server and the token of this node.

use arvados_client::{Client, Endpoint};
use preflight::{Finding, Subject, server};

/// Whether there is a token to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    Now,
    None,
    /// Each attempt gets a token of its own.
    PerAttempt,
}

/// Returns the findings, and a client if the token is accepted.
pub async fn run(endpoint: Endpoint, token: TokenSource) -> (Vec<Finding>, Option<Client>) {
    const TOKEN: Subject = Subject("token");
    let (mut findings, client) = server::reach(endpoint).await;
    let Some(client) = client else {
        return (findings, None);
    };
    findings.push(match token {
        TokenSource::Now => {
            let token = client.current_token().await;
            let is_accepted = token.is_ok();
            findings.push(server::token(TOKEN, token, "give a valid one"));
            return (findings, is_accepted.then_some(client));
        }
        TokenSource::PerAttempt => {
            TOKEN.ok("not tried, nor Keep: each attempt has a token of its own")
        }
        TokenSource::None => TOKEN.warn(
            "none given, so that neither it nor Keep was tried",
            "give one with --token-file, or in ARVADOS_API_TOKEN",
        ),
    });
    (findings, None)
}
