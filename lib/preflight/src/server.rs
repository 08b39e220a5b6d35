//! Checks of the API server that a node and the host of a dispatcher share.
//!
//! Input: an [`Endpoint`]. Output: findings about the server's answer, the clocks and the token,
//! and a client for further checks.

use std::time::{Duration, Instant};

use arvados_client::error::with_causes;
use arvados_client::records::{Authorization, Discovery};
use arvados_client::{Client, Endpoint, Error};
use jiff::Timestamp;

use crate::{Finding, Subject};

/// Subject of findings about the server.
pub const API_SERVER: Subject = Subject("API server");
/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(6);
/// Time to answer from which a warning is given.
const SLOW_REPLY: Duration = Duration::from_secs(2);
/// Clock difference in seconds that gives a warning, because logs of several machines are compared.
const CLOCK_SKEW_WARN: i64 = 5;
/// Clock difference in seconds that fails the check, because tokens would expire at unexpected
/// times.
const CLOCK_SKEW_FAIL: i64 = 300;

/// Checks the answer, the certificate and the clock of the server. Returns no client if the server
/// cannot be used.
pub async fn reach(endpoint: Endpoint) -> (Vec<Finding>, Option<Client>) {
    let (host, insecure) = (endpoint.host.clone(), endpoint.insecure);
    let client = Client::new(Endpoint {
        retry_budget: Duration::ZERO,
        call_timeout: CALL_TIMEOUT,
        ..endpoint
    });
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            let remedy = "name readable certificates (PEM) in SSL_CERT_FILE or with --ca-certs";
            return (vec![API_SERVER.fail(error.to_string(), remedy)], None);
        }
    };
    let began = Instant::now();
    let discovery = client.discovery().await;
    let took = began.elapsed();
    let usable = discovery
        .as_ref()
        .is_ok_and(|found| !found.uuid_prefix.is_empty());
    let mut findings = vec![answer(&host, discovery, took)];
    if insecure {
        findings.push(API_SERVER.warn(
            "the client accepts any certificate",
            "remove TLS.Insecure or ARVADOS_API_HOST_INSECURE, and name the authority of the certificate in SSL_CERT_FILE",
        ));
    }
    if usable {
        findings.push(clock(client.server_time().await, Timestamp::now()));
    }
    (findings, usable.then_some(client))
}

fn answer(host: &str, discovery: Result<Discovery, Error>, took: Duration) -> Finding {
    let milliseconds = took.as_millis();
    match discovery {
        Err(error) => {
            let reasons = with_causes(&error);
            API_SERVER.fail(format!("{host}: {reasons}"), advice(&reasons))
        }
        Ok(discovery) if discovery.uuid_prefix.is_empty() => API_SERVER.fail(
            format!("{host} answers, but its discovery document names no cluster"),
            "check that ARVADOS_API_HOST is an Arvados API server and no other web server",
        ),
        Ok(_) if took > SLOW_REPLY => API_SERVER.warn(
            format!("{host} took {milliseconds} ms to answer"),
            "look at the server's load and at the network in between",
        ),
        Ok(discovery) => API_SERVER.ok(format!(
            "{host}, cluster {}, revision {}, answered in {milliseconds} ms",
            discovery.uuid_prefix, discovery.revision
        )),
    }
}

fn advice(reasons: &str) -> &'static str {
    let reasons = reasons.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| reasons.contains(word));
    if has(&["certificate", "unknownissuer"]) {
        return "name the authority of the server's certificate in SSL_CERT_FILE, check that the certificate is for that name, and check this machine's clock";
    }
    if has(&["dns", "lookup", "name or service"]) {
        return "check ARVADOS_API_HOST and the name servers of this machine";
    }
    if has(&["timed out", "unreachable", "deadline"]) {
        return "open the way from this machine to the server: routes, firewalls, proxies";
    }
    if has(&["cannot be read"]) {
        return "check that ARVADOS_API_HOST is an Arvados API server and no other web server";
    }
    "check ARVADOS_API_HOST, and that the server is up and reachable from this machine"
}

fn clock(server: Option<Timestamp>, ours: Timestamp) -> Finding {
    let what = Subject("clock");
    let Some(server) = server else {
        return what.ok("not compared: the server does not send the time");
    };
    let ahead = ours.as_second() - server.as_second();
    let way = if ahead < 0 { "behind" } else { "ahead of" };
    let words = format!("{} s {way} the API server's", ahead.abs());
    let remedy = "synchronise both clocks with chronyd or systemd-timesyncd";
    match ahead.abs() {
        seconds if seconds <= CLOCK_SKEW_WARN => what.ok("agrees with the API server's"),
        seconds if seconds <= CLOCK_SKEW_FAIL => what.warn(words, remedy),
        _ => what.fail(words, remedy),
    }
}

/// Evaluates the server's answer to the question for the token, `what`. `remedy` says which token
/// to give.
pub fn token(what: Subject, token: Result<Authorization, Error>, remedy: &str) -> Finding {
    let token = match token {
        Ok(token) => token,
        Err(error) if error.is_denied() => {
            return what.fail(
                format!("not accepted, it is wrong or has expired: {error}"),
                remedy,
            );
        }
        Err(error) => return what.fail(format!("cannot be checked: {error}"), remedy),
    };
    let scopes = match token.scopes.as_slice() {
        [all] if all == "all" => "for everything its user may do".to_owned(),
        scopes => format!("for {} kinds of calls", scopes.len()),
    };
    let uuid = &token.uuid;
    match token.expires_at {
        Some(end) if end <= Timestamp::now() => what.fail(format!("{uuid} ended at {end}"), remedy),
        Some(end) => what.ok(format!("{uuid}, {scopes}, until {end}")),
        None => what.ok(format!("{uuid}, {scopes}, which does not expire")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

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

    #[test]
    fn answers() {
        let read = |json| serde_json::from_value::<Discovery>(json).unwrap();
        let good = || read(serde_json::json!({"uuidPrefix": "zzzzz", "revision": "2026"}));
        let quick = Duration::from_millis(20);
        for (discovery, took, level, words) in [
            (good(), quick, Level::Ok, "cluster zzzzz"),
            (good(), Duration::from_secs(4), Level::Warn, "4000 ms"),
            (
                read(serde_json::json!({})),
                quick,
                Level::Fail,
                "no cluster",
            ),
        ] {
            let finding = answer("h", Ok(discovery), took);
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
            ("an answer that cannot be read", "no other web server"),
            ("Connection refused", "is up"),
        ] {
            assert!(advice(reason).contains(words), "{reason}");
        }
    }

    #[test]
    fn tokens() {
        let uuid = arvados_client::TokenUuid::generate("zzzzz");
        for (end, scopes, level, words) in [
            (None, &["all"][..], Level::Ok, "everything"),
            (
                Some("2999-01-02T00:00:00Z"),
                &["GET /a", "GET /b"],
                Level::Ok,
                "2 kinds of calls",
            ),
            (
                Some("2026-01-01T11:00:00Z"),
                &["all"],
                Level::Fail,
                "ended at",
            ),
        ] {
            let record = serde_json::json!({"uuid": uuid, "scopes": scopes, "expires_at": end});
            let record = serde_json::from_value(record).unwrap();
            let finding = token(Subject("token"), Ok(record), "give another");
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.finding.contains(words), "{finding:?}");
        }
    }
}
