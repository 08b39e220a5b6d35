//! Checks of the API server: whether it answers, whether the clocks agree, and whether the dispatch
//! token has the rights of a dispatcher. Input: the endpoint; output: findings.

use std::time::{Duration, Instant};

use arvados_client::api::NewToken;

use arvados_client::{Client, Endpoint, Error, Token};
use jiff::{SignedDuration, Timestamp};

use super::Finding;
use crate::api::Api;
use crate::service::StartError;

const SERVER: &str = "API server";
const STORAGE: &str = "file storage";
const CLOCK: &str = "clock";
const TOKEN: &str = "dispatch token";
const LIVE_LOGS: &str = "live logs";
/// End of the uuid of the system user of every cluster.
const SYSTEM_USER: &str = "-tpzed-000000000000000";
/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Clock difference in seconds that gives a warning, because logs of several machines are compared.
const CLOCK_SKEW_WARN: i64 = 5;
/// Clock difference in seconds that fails the check, because tokens would expire at unexpected
/// times.
const CLOCK_SKEW_FAIL: i64 = 300;
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
    let unusable = |error: &dyn std::error::Error| {
        let mend = "give --config, or ARVADOS_API_HOST and --token-file; SSL_CERT_FILE names a private authority, in a file that this user may read";
        vec![Finding::fail(SERVER, error.to_string(), mend)]
    };
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => return unusable(&error),
    };
    let (host, insecure) = (endpoint.host.clone(), endpoint.insecure);
    let client = Client::new(Endpoint {
        retry_budget: Duration::ZERO,
        call_timeout: CALL_TIMEOUT,
        ..endpoint
    });
    let client = match client {
        Ok(client) => client,
        Err(error) => return unusable(&error),
    };
    let began = Instant::now();
    let cluster = match client.discovery().await {
        Ok(discovery) => discovery.uuid_prefix,
        Err(error) => {
            let mend = "check its name, that it is up, and that its certificate is for that name and trusted here: SSL_CERT_FILE names a private authority";
            return vec![Finding::fail(SERVER, format!("{host}: {error}"), mend)];
        }
    };
    let took = began.elapsed().as_millis();
    let answered = format!("{host}, cluster {cluster}, answered in {took} ms");
    let mut findings = vec![Finding::ok(SERVER, answered)];
    if insecure {
        findings.push(Finding::warn(
            SERVER,
            "the client accepts any certificate",
            "remove TLS.Insecure or ARVADOS_API_HOST_INSECURE, and name the authority of the certificate in SSL_CERT_FILE",
        ));
    }
    findings.push(clock(client.server_time().await, Timestamp::now()));
    findings.extend(token(&client).await);
    findings.push(match client.store_trial_block().await {
        Ok(()) => Finding::ok(STORAGE, "takes a block from this host"),
        // The nodes may reach what this host does not.
        Err(failure) => Finding::warn(
            STORAGE,
            failure.reason,
            "see that Keep has free space, is up, and can be reached from this host and the nodes",
        ),
    });
    if let Some(key) = gateway_key {
        findings.push(match gateway_key_fault(&client, &key).await {
            None => Finding::ok(LIVE_LOGS, "the secrets of containers can be derived"),
            Some(fault) => Finding::warn(LIVE_LOGS, fault, GATEWAY_KEY_REMEDY),
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

fn clock(server: Option<Timestamp>, ours: Timestamp) -> Finding {
    let Some(server) = server else {
        return Finding::ok(CLOCK, "not compared: the server does not send the time");
    };
    let ahead = ours.as_second() - server.as_second();
    let way = if ahead < 0 { "behind" } else { "ahead of" };
    let words = format!("{} s {way} the API server's", ahead.abs());
    let mend = "synchronise both clocks: chronyd or systemd-timesyncd";
    match ahead.abs() {
        seconds if seconds <= CLOCK_SKEW_WARN => Finding::ok(CLOCK, "agrees with the API server's"),
        seconds if seconds <= CLOCK_SKEW_FAIL => Finding::warn(CLOCK, words, mend),
        _ => Finding::fail(CLOCK, words, mend),
    }
}

/// Checks the token by the calls that a dispatcher makes with it.
async fn token(client: &Client) -> Vec<Finding> {
    let mend = "give the token of an admin or of the system user";
    let token = match client.current_token().await {
        Ok(token) => token,
        Err(error) => return vec![Finding::fail(TOKEN, describe(&error), mend)],
    };
    let uuid = &token.uuid;
    let mut findings = vec![match token.expires_at {
        Some(end) => Finding::ok(TOKEN, format!("{uuid}, until {end}")),
        None => Finding::ok(TOKEN, format!("{uuid}, which does not expire")),
    }];
    match client.current_user().await {
        Ok(user) if user.is_admin => {}
        Ok(_) => findings.push(Finding::fail(
            TOKEN,
            "its user is no admin, and can neither read nor lock the containers of others: a dispatcher does not start with this token",
            mend,
        )),
        Err(error) => findings.push(Finding::fail(TOKEN, describe(&error), mend)),
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
        Ok(()) => Finding::ok(TOKEN, "may mint and revoke attempt tokens"),
        Err(error) => Finding::fail(
            TOKEN,
            format!("cannot mint and revoke attempt tokens: {error}"),
            format!("{mend}; where that is forbidden and no other dispatcher uses it, --token-mode=shared"),
        ),
    });
    findings
}

fn describe(error: &Error) -> String {
    match error.is_denied() {
        true => format!("it is wrong or has expired: {error}"),
        false => format!("it cannot be checked: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::subcommands::check::Level;

    #[test]
    fn clocks_are_compared() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (server, level, words) in [
            (None, Level::Ok, "not compared"),
            (Some(1003), Level::Ok, "agrees"),
            (Some(1060), Level::Warn, "60 s behind the API server's"),
            (Some(0), Level::Fail, "1000 s ahead of the API server's"),
        ] {
            let finding = clock(server.map(at), at(1000));
            assert_eq!(finding.level, level, "{server:?}");
            assert!(finding.finding.contains(words), "{}", finding.finding);
        }
    }
}
