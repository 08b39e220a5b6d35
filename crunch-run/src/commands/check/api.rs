//! Checks the API server: configuration, reply, clock difference and token.

use std::time::{Duration, Instant};

use arvados_client::error::with_causes;
use arvados_client::records::{Authorization, Discovery};
use arvados_client::{Client, Endpoint, Error};
use jiff::Timestamp;

use preflight::Finding;

use super::subject::Subject;

pub const API_SERVER: Subject = Subject("API server");
/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(6);
/// Response time from which a warning is given.
const SLOW_REPLY: Duration = Duration::from_secs(2);
/// Maximum clock difference in seconds without a warning: logs of several nodes are compared.
const MAX_CLOCK_SKEW_OK: i64 = 5;
/// Maximum clock difference in seconds that is a warning; more is a failure.
const MAX_CLOCK_SKEW_WARN: i64 = 300;
const DISCOVERY: &str = "/discovery/v1/apis/arvados/v1/rest";

/// Reply to the discovery request.
struct DiscoveryReply {
    discovery: Result<Discovery, String>,
    took: Duration,
}

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
    let endpoint = Endpoint {
        retry_budget: Duration::ZERO,
        call_timeout: CALL_TIMEOUT,
        ..endpoint
    };
    let host = endpoint.host.clone();
    let insecure = endpoint.insecure;
    let client = match Client::new(endpoint) {
        Ok(client) => client,
        Err(error) => {
            let mend = "name readable certificates (PEM) in SSL_CERT_FILE or with --ca-certs";
            return (vec![API_SERVER.fail(error.to_string(), mend)], None);
        }
    };
    let answer = match ask(&client, &host).await {
        Ok(answer) => answer,
        Err(finding) => return (vec![finding], None),
    };
    let mut findings = vec![evaluate(&host, &answer)];
    if insecure {
        findings.push(API_SERVER.warn(
            "ARVADOS_API_HOST_INSECURE is set: any certificate is accepted",
            "unset it, and name the server's certificate authority in SSL_CERT_FILE",
        ));
    }
    findings.push(clock(client.server_time().await, Timestamp::now()));
    if answer.discovery.is_err() {
        return (findings, None);
    }
    match token {
        TokenSource::Now => {}
        TokenSource::PerAttempt => {
            let words = "not tried, nor Keep: each attempt has a token of its own";
            findings.push(Subject("token").ok(words));
            return (findings, None);
        }
        TokenSource::None => {
            findings.push(Subject("token").warn(
                "none given, so that neither it nor Keep was tried",
                "give one with --token-file, or in ARVADOS_API_TOKEN",
            ));
            return (findings, None);
        }
    }
    let token = client.current_token().await;
    let accepted = token.is_ok();
    findings.push(evaluate_token(token, Timestamp::now()));
    (findings, accepted.then_some(client))
}

/// Fetches the discovery document, which needs no token.
async fn ask(client: &Client, host: &str) -> Result<DiscoveryReply, Finding> {
    let began = Instant::now();
    let request = client.http().get(format!("https://{host}{DISCOVERY}"));
    let failed = |words: String, mend: &str| API_SERVER.fail(words, mend);
    let response = match request.timeout(CALL_TIMEOUT).send().await {
        Ok(response) => response,
        Err(error) => {
            let reasons = reasons(&error);
            return Err(failed(
                format!("{host} cannot be reached: {reasons}"),
                advice(&reasons),
            ));
        }
    };
    let status = response.status();
    let body = response.bytes().await;
    let discovery = match (status.is_success(), body) {
        (true, Ok(body)) => serde_json::from_slice(&body)
            .map_err(|error| format!("it is not the expected JSON ({error})")),
        (true, Err(error)) => Err(reasons(&error)),
        (false, _) => Err(format!("the answer is {status}")),
    };
    Ok(DiscoveryReply {
        discovery,
        took: began.elapsed(),
    })
}

/// The causes of an error. The error itself repeats the address.
fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    with_causes(error.source().unwrap_or(error))
}

fn advice(reasons: &str) -> &'static str {
    let reasons = reasons.to_ascii_lowercase();
    let has = |word: &str| reasons.contains(word);
    if has("certificate") || has("unknownissuer") {
        return "name the server's certificate authority in SSL_CERT_FILE or with --ca-certs, and check the node's clock";
    }
    if has("dns") || has("lookup") || has("name or service") {
        return "check ARVADOS_API_HOST and the node's name servers";
    }
    if has("timed out") || has("unreachable") || has("deadline") {
        return "open the way from this node to the server: routes, firewalls, proxies";
    }
    "check ARVADOS_API_HOST, and that the server is up and reachable from this node"
}

fn evaluate(host: &str, answer: &DiscoveryReply) -> Finding {
    let milliseconds = answer.took.as_millis();
    match &answer.discovery {
        Err(reason) => API_SERVER.fail(
            format!("{host} answers, but its discovery document cannot be read: {reason}"),
            "check that ARVADOS_API_HOST is an Arvados API server and no other web server",
        ),
        Ok(discovery) if discovery.uuid_prefix.is_empty() => API_SERVER.fail(
            format!("{host} answers, but its discovery document names no cluster"),
            "check that ARVADOS_API_HOST is an Arvados API server and no other web server",
        ),
        Ok(_) if answer.took > SLOW_REPLY => API_SERVER.warn(
            format!("{host} took {milliseconds} ms to answer"),
            "look at the server's load and at the network in between",
        ),
        Ok(discovery) => API_SERVER.ok(format!(
            "{host}, cluster {}, revision {}, answered in {milliseconds} ms",
            discovery.uuid_prefix, discovery.revision
        )),
    }
}

fn clock(server: Option<Timestamp>, ours: Timestamp) -> Finding {
    let what = Subject("clock");
    let Some(server) = server else {
        return what.ok("not compared: the server does not send the time");
    };
    let ahead = ours.as_second() - server.as_second();
    let seconds = ahead.abs();
    let words = match ahead {
        0.. => format!("{seconds} s ahead of the API server's"),
        _ => format!("{seconds} s behind the API server's"),
    };
    let mend = "synchronise it with chronyd or systemd-timesyncd, on this node and on the server";
    if seconds <= MAX_CLOCK_SKEW_OK {
        return what.ok("agrees with the API server's");
    }
    if seconds <= MAX_CLOCK_SKEW_WARN {
        return what.warn(words, mend);
    }
    what.fail(words, mend)
}

fn evaluate_token(token: Result<Authorization, Error>, now: Timestamp) -> Finding {
    let what = Subject("token");
    let token = match token {
        Ok(token) => token,
        Err(error) if error.is_denied() => {
            return what.fail(
                format!("not accepted: {error}"),
                "it is wrong or has expired: give a valid one",
            );
        }
        Err(error) => {
            return what.fail(
                format!("cannot be checked: {error}"),
                "try again when the server answers",
            );
        }
    };
    let scopes = match token.scopes.as_slice() {
        [all] if all == "all" => "for everything its user may do".to_owned(),
        scopes => format!("for {} kinds of calls", scopes.len()),
    };
    let uuid = &token.uuid;
    match token.expires_at {
        Some(end) if end <= now => {
            what.fail(format!("{uuid} ended at {end}"), "give one that is valid")
        }
        Some(end) => what.ok(format!("{uuid}, {scopes}, until {end}")),
        None => what.ok(format!("{uuid}, {scopes}, which does not expire")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::fmt::rfc2822::DateTimeParser;

    use super::*;
    use preflight::Level;

    #[test]
    fn clocks() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| DateTimeParser::new().parse_timestamp(text).ok();
        for (server, level, words) in [
            (None, Level::Ok, "not compared"),
            (at("Thu, 01 Jan 2026 12:00:02 GMT"), Level::Ok, "agrees"),
            (
                at("Thu, 01 Jan 2026 12:01:00 GMT"),
                Level::Warn,
                "60 s behind",
            ),
            (
                at("Thu, 01 Jan 2026 11:50:00 GMT"),
                Level::Fail,
                "600 s ahead",
            ),
        ] {
            let finding = clock(server, now);
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.finding.contains(words), "{finding:?}");
        }
    }

    #[test]
    fn answers() {
        let good: Discovery =
            serde_json::from_value(serde_json::json!({"uuidPrefix": "zzzzz", "revision": "2026"}))
                .unwrap();
        let other: Discovery = serde_json::from_value(serde_json::json!({})).unwrap();
        let quick = Duration::from_millis(20);
        for (discovery, took, level, words) in [
            (Ok(good.clone()), quick, Level::Ok, "cluster zzzzz"),
            (Ok(good), Duration::from_secs(4), Level::Warn, "4000 ms"),
            (Ok(other), quick, Level::Fail, "no cluster"),
            (Err("nonsense".to_owned()), quick, Level::Fail, "nonsense"),
        ] {
            let answer = DiscoveryReply { discovery, took };
            let finding = evaluate("h", &answer);
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.finding.contains(words), "{finding:?}");
        }
    }

    #[test]
    fn the_advice_fits_the_reason() {
        for (reason, words) in [
            ("invalid peer certificate: UnknownIssuer", "authority"),
            ("dns error: failed to lookup address", "name servers"),
            ("operation timed out", "firewalls"),
            ("Connection refused", "is up"),
        ] {
            assert!(advice(reason).contains(words), "{reason}");
        }
    }

    #[test]
    fn tokens() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let uuid = arvados_client::TokenUuid::generate("zzzzz");
        let token = |end: Option<&str>, scopes: &[&str]| -> Authorization {
            let record = serde_json::json!({"uuid": uuid, "scopes": scopes, "expires_at": end});
            serde_json::from_value(record).unwrap()
        };
        for (record, level, words) in [
            (token(None, &["all"]), Level::Ok, "everything"),
            (
                token(Some("2026-01-02T00:00:00Z"), &["GET /a", "GET /b"]),
                Level::Ok,
                "2 kinds of calls",
            ),
            (
                token(Some("2026-01-01T11:00:00Z"), &["all"]),
                Level::Fail,
                "ended at",
            ),
        ] {
            let finding = evaluate_token(Ok(record), now);
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.finding.contains(words), "{finding:?}");
        }
    }
}
