//! Checks of the API server: whether it answers, whether the clocks agree, and whether the dispatch
//! token has the rights of a dispatcher. Input: the endpoint; output: findings.

use arvados_client::api::NewToken;

use arvados_client::{Client, Endpoint, Token};
use jiff::{SignedDuration, Timestamp};

use preflight::server::{self, API_SERVER};
use preflight::{Finding, Subject};

use crate::api::Api;
use crate::service::StartError;

const STORAGE: Subject = Subject("file storage");
const TOKEN: Subject = Subject("dispatch token");
const LIVE_LOGS: Subject = Subject("live logs");
/// End of the uuid of the system user of every cluster.
const SYSTEM_USER: &str = "-tpzed-000000000000000";
/// Lifetime of the test token, in case it cannot be revoked.
const PROBE_TOKEN_LIFETIME: SignedDuration = SignedDuration::from_secs(60);

/// What to do if the secrets of containers cannot be derived.
pub const GATEWAY_KEY_REMEDY: &str =
    "put the cluster's own SystemRootToken into the file, and an admin's token into --token-file";

/// Runs the checks with the dispatch token. They mint one token without rights and revoke it.
pub async fn run(
    endpoint: Result<Endpoint, StartError>,
    gateway_key: Option<Token>,
) -> Vec<Finding> {
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let remedy = "give --config, or ARVADOS_API_HOST and --token-file; SSL_CERT_FILE names a private authority, in a file that this user may read";
            return vec![API_SERVER.fail(error.to_string(), remedy)];
        }
    };
    let (mut findings, client) = server::reach(endpoint).await;
    let Some(client) = client else {
        return findings;
    };
    findings.extend(token(&client).await);
    findings.push(match client.store_trial_block().await {
        Ok(()) => STORAGE.ok("takes a block from this host"),
        // The nodes may reach what this host does not.
        Err(failure) => STORAGE.warn(
            failure.reason,
            "see that Keep has free space, is up, and can be reached from this host and the nodes",
        ),
    });
    if let Some(key) = gateway_key {
        findings.push(match gateway_key_fault(&client, &key).await {
            None => LIVE_LOGS.ok("the secrets of containers can be derived"),
            Some(fault) => LIVE_LOGS.warn(fault, GATEWAY_KEY_REMEDY),
        });
    }
    findings
}

/// Why users cannot follow logs live, if the server says so. `key` is the `SystemRootToken` of the
/// configuration file. dispatch-api accepts any secret from an attempt.
pub async fn gateway_key_fault(client: &Client, key: &Token) -> Option<&'static str> {
    let is_upstream = client.discovery().await.ok()?.bulk().starts <= 1;
    let user = client.with_token(key.clone()).current_user().await;
    match user {
        _ if !is_upstream => None,
        Ok(user) if user.uuid.as_str().ends_with(SYSTEM_USER) => None,
        Ok(_) => Some(
            "SystemRootToken in the configuration file is the token of another user: the server refuses live logs, and only crunch-run.txt says so",
        ),
        Err(error) if error.is_denied() => Some(
            "the server does not know SystemRootToken in the configuration file: it refuses live logs, and only crunch-run.txt says so",
        ),
        Err(_) => None,
    }
}

/// Checks the token by the calls that a dispatcher makes with it.
async fn token(client: &Client) -> Vec<Finding> {
    let mend = "give the token of an admin or of the system user";
    let token = client.current_token().await;
    let is_accepted = token.is_ok();
    let mut findings = vec![server::token(TOKEN, token, mend)];
    if !is_accepted {
        return findings;
    }
    match client.current_user().await {
        Ok(user) if user.is_admin => {}
        Ok(_) => findings.push(TOKEN.fail("its user is no admin, and can neither read nor lock the containers of others: a dispatcher does not start with this token",
            mend,
        )),
        Err(error) => findings.push(TOKEN.fail(format!("its user cannot be read: {error}"), mend)),
    }
    let trial = NewToken {
        scopes: vec!["GET /arvados/v1/users/current".to_owned()],
        expires_at: Timestamp::now() + PROBE_TOKEN_LIFETIME,
    };
    let made = match client.create_token(&trial).await {
        Ok(made) => client.delete_token(&made.uuid).await,
        Err(error) => Err(error),
    };
    findings.push(match made {
        Ok(()) => TOKEN.ok("may mint and revoke attempt tokens"),
        Err(error) => TOKEN.fail(format!("cannot mint and revoke attempt tokens: {error}"),
            format!("{mend}; where that is forbidden and no other dispatcher uses it, --token-mode=shared"),
        ),
    });
    findings
}
