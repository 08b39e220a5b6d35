//! Where the API server is and who we are: from configuration or from `ARVADOS_*`.

use std::path::PathBuf;
use std::time::Duration;

use crate::token::Token;

/// What is wrong with the given address or token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No host anywhere.
    #[error(
        "no API server given: set ARVADOS_API_HOST (host or host:port) or name it in the configuration"
    )]
    NoHost,
    /// No token anywhere.
    #[error("no API token given: set ARVADOS_API_TOKEN or name it in the configuration")]
    NoToken,
    /// An address that would send the token in the clear.
    #[error(
        "{0:?} is no address of an API server: it is spoken to by https only, so write https://… or the host alone"
    )]
    Plain(String),
    /// Not `host` or `host:port`.
    #[error("{0:?} is not an API host: write host or host:port, without a path")]
    BadHost(String),
}

/// One API server as seen by one token.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `host` or `host:port`.
    pub host: String,
    /// Whom we are.
    pub token: Token,
    /// Accept any certificate.
    pub insecure: bool,
    /// Trust only these certificates (PEM) instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Keep services to use instead of asking the server (`ARVADOS_KEEP_SERVICES`).
    pub keep_services: Vec<String>,
    /// How long one call may be repeated, waits included.
    pub retry_budget: Duration,
    /// How long one call may be repeated while the server cannot be reached or cannot answer; none: for all of
    /// `retry_budget`.
    pub outage_budget: Option<Duration>,
    /// How long a refusal of what worked before is asked again.
    pub refusal_window: Duration,
    /// How long one attempt may take.
    pub call_timeout: Duration,
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
            return Err(EndpointError::Plain(host.to_owned()));
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
            keep_services: Vec::new(),
            retry_budget: Duration::from_secs(120),
            outage_budget: None,
            refusal_window: crate::retry::REFUSAL_WINDOW,
            call_timeout: Duration::from_secs(60),
        })
    }

    /// From `ARVADOS_API_HOST`, `ARVADOS_API_TOKEN`, `ARVADOS_API_HOST_INSECURE`, `ARVADOS_KEEP_SERVICES` and
    /// `SSL_CERT_FILE`; what is missing there is looked up in `~/.config/arvados/settings.conf`.
    pub fn from_env() -> Result<Self, EndpointError> {
        let settings = settings_conf();
        let in_file = |key: &str| settings.iter().find(|(k, _)| k == key);
        Self::from_lookup(|key| {
            let set = std::env::var(key).ok().filter(|v| !v.is_empty());
            set.or_else(|| in_file(key).map(|(_, v)| v.clone()))
        })
    }

    /// [`Endpoint::from_env`] over any source of variables. One that is set but empty counts as unset.
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

/// What the SDKs take as true.
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
        assert_eq!(plain, EndpointError::Plain("http://h:8000".into()));
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
