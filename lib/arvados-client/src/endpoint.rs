//! Address and token of an API server, from configuration or from `ARVADOS_*` variables.

use std::path::PathBuf;
use std::time::Duration;

use crate::token::Token;

/// Default time for which a refusal of a call that worked before is retried. A real server refuses
/// valid tokens while its processes have stale database connections. A revoked token is still
/// refused after this time.
pub const REFUSAL_WINDOW: Duration = Duration::from_secs(60);

/// Why an address or token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No host is configured.
    #[error(
        "no API server given: set ARVADOS_API_HOST (host or host:port) or name it in the configuration"
    )]
    NoHost,
    /// No token is configured.
    #[error("no API token given: set ARVADOS_API_TOKEN or name it in the configuration")]
    NoToken,
    /// An http address, which would send the token unencrypted.
    #[error(
        "{0:?} cannot be an API server: only https is supported, so write https://… or the host alone"
    )]
    PlainHttp(String),
    /// Not `host` or `host:port`.
    #[error("{0:?} is not an API host: write host or host:port, without a path")]
    BadHost(String),
}

/// An API server with a token and the settings of calls.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `host` or `host:port`.
    pub host: String,
    /// Token of the caller.
    pub token: Token,
    /// Whether any certificate is accepted.
    pub insecure: bool,
    /// File of trusted certificates (PEM), instead of those of the system.
    pub ca_file: Option<PathBuf>,
    /// Whether it is never reached through a proxy. Loopback addresses never are.
    pub is_direct: bool,
    /// Keep services to use instead of those the server lists (`ARVADOS_KEEP_SERVICES`).
    pub keep_services: Vec<String>,
    /// Retry budget of a call, delays included.
    pub retry_budget: Duration,
    /// Retry budget while the server is unreachable or overloaded; `None` means all of
    /// `retry_budget`.
    pub outage_budget: Option<Duration>,
    /// Time for which a refusal of a call that worked before is retried.
    pub refusal_window: Duration,
    /// Timeout of one attempt.
    pub call_timeout: Duration,
    /// Called with the host when a call has taken a while, and goes on; for people who wait.
    pub slow_notice: Option<fn(&str)>,
}

impl Endpoint {
    /// An endpoint with the defaults: verified TLS, 2 minutes of retrying, 60 s a call.
    pub fn new(host: &str, token: Token) -> Result<Self, EndpointError> {
        let host = host.trim();
        let host = host
            .strip_prefix("https://")
            .unwrap_or(host)
            .trim_end_matches('/');
        if host.is_empty() {
            return Err(EndpointError::NoHost);
        }
        if host.starts_with("http://") {
            return Err(EndpointError::PlainHttp(host.to_owned()));
        }
        if host.contains(['/', '?', '#', '@', ' '])
            || url::Url::parse(&format!("https://{host}/")).is_err()
        {
            return Err(EndpointError::BadHost(host.to_owned()));
        }
        if token.is_empty() {
            return Err(EndpointError::NoToken);
        }
        Ok(Self {
            host: host.to_owned(),
            token,
            insecure: false,
            ca_file: None,
            is_direct: false,
            keep_services: Vec::new(),
            retry_budget: Duration::from_secs(120),
            outage_budget: None,
            refusal_window: REFUSAL_WINDOW,
            call_timeout: Duration::from_secs(60),
            slow_notice: None,
        })
    }

    /// The host without its port.
    pub fn host_name(&self) -> &str {
        let end_of_address = self.host.rfind(']').map_or(0, |at| at + 1);
        match self.host[end_of_address..].rfind(':') {
            Some(colon) => &self.host[..end_of_address + colon],
            None => &self.host,
        }
    }

    /// Reads `ARVADOS_API_HOST`, `ARVADOS_API_TOKEN`, `ARVADOS_API_HOST_INSECURE`,
    /// `ARVADOS_KEEP_SERVICES` and `SSL_CERT_FILE`. Missing ones are read from
    /// `~/.config/arvados/settings.conf`.
    pub fn from_env() -> Result<Self, EndpointError> {
        let settings = settings_conf();
        let in_file = |key: &str| settings.iter().find(|(k, _)| k == key);
        Self::from_lookup(|key| {
            let set = std::env::var(key).ok().filter(|v| !v.is_empty());
            set.or_else(|| in_file(key).map(|(_, v)| v.clone()))
        })
    }

    /// [`Endpoint::from_env`] with any source of variables. An empty variable counts as unset.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, EndpointError> {
        let get = |key: &str| get(key).filter(|value| !value.is_empty());
        let host = get("ARVADOS_API_HOST").ok_or(EndpointError::NoHost)?;
        let token = get("ARVADOS_API_TOKEN").ok_or(EndpointError::NoToken)?;
        let mut endpoint = Self::new(&host, Token::new(token))?;
        endpoint.insecure = get("ARVADOS_API_HOST_INSECURE").is_some_and(|v| is_true(&v));
        endpoint.ca_file = get("SSL_CERT_FILE").map(PathBuf::from);
        endpoint.keep_services = get("ARVADOS_KEEP_SERVICES")
            .map(|v| v.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default();
        Ok(endpoint)
    }
}

/// Whether the SDKs read a value as true.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "yes" | "true")
}

/// `KEY=VALUE` lines of the user's settings file; lines that are not `ARVADOS_…` are ignored.
fn settings_conf() -> Vec<(String, String)> {
    let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) else {
        return Vec::new();
    };
    let path = PathBuf::from(home).join(".config/arvados/settings.conf");
    parse_settings(&std::fs::read_to_string(path).unwrap_or_default())
}

fn parse_settings(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))
        .filter(|(k, v)| k.starts_with("ARVADOS_") && !v.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |key| {
            pairs
                .iter()
                .find(|(k, _)| *k == key)
                .map(|(_, v)| (*v).to_owned())
        }
    }

    #[test]
    fn the_environment_alone_is_enough() {
        let e = Endpoint::from_lookup(lookup(&[
            ("ARVADOS_API_HOST", "zzzzz.example.org"),
            ("ARVADOS_API_TOKEN", "t"),
            ("ARVADOS_API_HOST_INSECURE", "Yes"),
            ("ARVADOS_KEEP_SERVICES", "http://a http://b"),
        ]))
        .unwrap();
        assert!(e.insecure);
        assert_eq!(e.keep_services, ["http://a", "http://b"]);
    }

    #[test]
    fn a_variable_that_is_set_but_empty_is_unset() {
        let e = Endpoint::from_lookup(lookup(&[
            ("ARVADOS_API_HOST", "zzzzz.example.org"),
            ("ARVADOS_API_TOKEN", "t"),
            ("ARVADOS_API_HOST_INSECURE", ""),
            ("ARVADOS_KEEP_SERVICES", ""),
            ("SSL_CERT_FILE", ""),
        ]))
        .unwrap();
        assert!(!e.insecure && e.keep_services.is_empty());
        assert_eq!(e.ca_file, None);
        let empty = Endpoint::from_lookup(lookup(&[
            ("ARVADOS_API_HOST", ""),
            ("ARVADOS_API_TOKEN", "t"),
        ]));
        assert_eq!(empty.unwrap_err(), EndpointError::NoHost);
    }

    #[test]
    fn missing_or_odd_values_are_named() {
        let host = ("ARVADOS_API_HOST", "h");
        assert_eq!(
            Endpoint::from_lookup(lookup(&[])).unwrap_err(),
            EndpointError::NoHost
        );
        assert_eq!(
            Endpoint::from_lookup(lookup(&[host])).unwrap_err(),
            EndpointError::NoToken
        );
        for bad in ["h/path", "user@h", "h h", "h:notaport"] {
            let got = Endpoint::from_lookup(lookup(&[
                ("ARVADOS_API_HOST", bad),
                ("ARVADOS_API_TOKEN", "t"),
            ]));
            assert_eq!(got.unwrap_err(), EndpointError::BadHost(bad.into()));
        }
        let plain = Endpoint::new("http://h:8000/", Token::new("t")).unwrap_err();
        assert_eq!(plain, EndpointError::PlainHttp("http://h:8000".into()));
    }

    #[test]
    fn settings_lines_that_are_not_ours_are_ignored() {
        let got = parse_settings("ARVADOS_API_HOST = h\r\nPATH=/bin\n# x\nARVADOS_API_TOKEN=a=b\n");
        assert_eq!(
            got,
            [
                ("ARVADOS_API_HOST".into(), "h".into()),
                ("ARVADOS_API_TOKEN".into(), "a=b".into())
            ]
        );
    }
}
