//! What can go wrong between us and the API server, by what may be done about it.

use std::time::Duration;

pub use http::StatusCode;

/// A refusal by the server: the request was understood (or not) and did not take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// The server's sentences, both dialects reduced to plain text.
    pub messages: Vec<String>,
    /// The request id the server saw, to find it in its log.
    pub request_id: String,
    /// How long the server asked us to wait (`Retry-After`).
    pub retry_after: Option<Duration>,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.messages.is_empty() {
            true => write!(f, "the API server answered {}", self.status)?,
            false => write!(
                f,
                "the API server answered {}: {}",
                self.status,
                self.messages.join("; ")
            )?,
        }
        write!(f, " ({})", self.request_id)
    }
}

/// What lies behind an error: that it was "sending a request" helps nobody.
fn cause(error: &dyn std::error::Error) -> String {
    let deepest = std::iter::successors(Some(error), |error| error.source()).last();
    deepest.unwrap_or(error).to_string()
}

/// An error with its causes, each said once: the last ones carry what the network or the system said.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let more = cause.to_string();
        match text.contains(&more) {
            true => text,
            false => format!("{text}: {more}"),
        }
    })
}

/// Everything a call can end with other than its answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server said no.
    #[error("{0}")]
    Api(ApiError),
    /// The connection was never made, so nothing took effect.
    #[error("cannot reach the API server at {host}: {}", cause(source))]
    Connect {
        /// Host and port.
        host: String,
        /// What the network said.
        source: reqwest::Error,
    },
    /// The connection broke or timed out after the request may have been received.
    #[error(
        "lost the API server at {host} while waiting for its answer: {}",
        cause(source)
    )]
    Interrupted {
        /// Host and port.
        host: String,
        /// What the network said.
        source: reqwest::Error,
    },
    /// The answer came, but is not what the API promises.
    #[error("the API server at {host} sent an answer that cannot be read ({source}) to {call}")]
    Undecodable {
        /// Host and port.
        host: String,
        /// Method and path.
        call: String,
        /// Where decoding stopped.
        source: serde_json::Error,
    },
    /// No host or token given, or one that cannot be used.
    #[error(transparent)]
    Endpoint(#[from] crate::endpoint::EndpointError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// Live events cannot be had, or ended.
    #[error("no live events from {host}: {detail}")]
    Events {
        /// Host and port.
        host: String,
        /// What happened.
        detail: String,
    },
    /// The server made no way in to a container.
    #[error("no gateway tunnel from the API server at {host}: {detail}")]
    Tunnel {
        /// Host and port.
        host: String,
        /// What happened.
        detail: String,
    },
    /// A Keep service has an address that cannot be used.
    #[error(transparent)]
    KeepService(#[from] crate::keep::ServiceError),
}

impl Error {
    /// HTTP status of the server's refusal, if that is what this is.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Error::Api(e) => Some(e.status),
            _ => None,
        }
    }

    /// The request may have taken effect although no answer came: look before repeating it.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Error::Interrupted { .. } | Error::Undecodable { .. } => true,
            // A gateway's complaint says nothing about what the server behind it did.
            Error::Api(e) => {
                e.status.is_server_error()
                    && !(e.status == StatusCode::SERVICE_UNAVAILABLE && e.retry_after.is_some())
            }
            _ => false,
        }
    }

    /// 404: no such object, or not for this token to see.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }

    /// 412: the record changed since it was read.
    pub fn is_stale(&self) -> bool {
        self.status() == Some(StatusCode::PRECONDITION_FAILED)
    }

    /// 401 or 403: this token may not (any longer) do this.
    pub fn is_denied(&self) -> bool {
        matches!(
            self.status(),
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        )
    }

    /// 422: the request itself is refused, and would be again.
    pub fn is_refused(&self) -> bool {
        self.status() == Some(StatusCode::UNPROCESSABLE_ENTITY)
    }

    /// The server asks for less: 429 or 503.
    pub fn is_overload(&self) -> bool {
        matches!(
            self.status(),
            Some(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        )
    }

    /// The wait the server asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Api(e) => e.retry_after,
            _ => None,
        }
    }
}

/// Reads the `errors` array of either dialect. The controller's dialect wraps the text in
/// `//host/path: STATUS REASON: TEXT (req-…)`; only TEXT is for people.
pub(crate) fn messages(body: &[u8]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Body {
        #[serde(default)]
        errors: Vec<String>,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => body.errors.iter().map(|e| plain(e)).collect(),
        Err(_) => {
            let text: String = String::from_utf8_lossy(body).chars().take(300).collect();
            let text = text.trim();
            if text.is_empty() {
                Vec::new()
            } else {
                vec![text.to_owned()]
            }
        }
    }
}

fn plain(text: &str) -> String {
    let mut text = text.trim();
    if text.starts_with("//") {
        // "//railsapi.internal/arvados/v1/x: 422 Unprocessable Entity: TEXT"
        if let Some(rest) = text.splitn(3, ": ").nth(2) {
            text = rest;
        }
    }
    if let Some(at) = text.rfind(" (req-")
        && text.ends_with(')')
    {
        text = &text[..at];
    }
    // Rails shows exceptions as "#<Class: message>".
    if let Some(inner) = text.strip_prefix("#<").and_then(|t| t.strip_suffix('>'))
        && let Some((_, message)) = inner.split_once(": ")
    {
        text = message;
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Link(&'static str, #[source] Option<Box<Link>>);

    #[test]
    fn causes_are_told_once_each() {
        let link = |text, cause: Link| Link(text, Some(Box::new(cause)));
        let refused = || Link("refused", None);
        let rows = [
            (refused(), "refused"),
            (
                link("sending", link("connect", refused())),
                "sending: connect: refused",
            ),
            (link("connect: refused", refused()), "connect: refused"),
        ];
        for (error, told) in rows {
            assert_eq!(with_causes(&error), told);
        }
    }

    #[test]
    fn both_error_dialects_read_as_plain_sentences() {
        let rows: [(&str, &[&str]); 6] = [
            (
                r##"{"errors":["#<ArvadosModel::LockFailedError: cannot lock when Locked> (req-0123456789abcdefghij)"],"error_token":"1+2"}"##,
                &["cannot lock when Locked"],
            ),
            (
                r##"{"errors":["#<ArvadosModel::LockFailedError: cannot lock when Locked>"],"error_token":"1+2"}"##,
                &["cannot lock when Locked"],
            ),
            (
                r#"{"errors":["//railsapi.internal/arvados/v1/collections: 422 Unprocessable Entity: name: taken (req-1)"]}"#,
                &["name: taken"],
            ),
            (r#"{"errors":["one","two"]}"#, &["one", "two"]),
            ("<html>bad gateway</html>", &["<html>bad gateway</html>"]),
            ("", &[]),
        ];
        for (body, want) in rows {
            assert_eq!(messages(body.as_bytes()), want, "{body}");
        }
    }
}
