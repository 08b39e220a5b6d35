//! Errors of API calls, classified by what the caller can do about them.

use std::time::Duration;

pub use http::StatusCode;
use rustls::CertificateError;

/// An error response of the server: the request had no effect, except for ambiguous server errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Error messages of the server, as plain text.
    pub messages: Vec<String>,
    /// The request id, to find the request in the log of the server.
    pub request_id: String,
    /// Wait that the server asked for (`Retry-After`).
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

/// The innermost cause, which is more useful than "error sending request".
fn innermost_cause(error: &dyn std::error::Error) -> String {
    let deepest = std::iter::successors(Some(error), |error| error.source()).last();
    deepest.unwrap_or(error).to_string()
}

/// An error with its causes, each once: the last ones are those of the network or the system.
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

fn through(proxy: Option<&str>) -> String {
    match proxy {
        Some(proxy) => {
            format!(" through the proxy {proxy} (of https_proxy or all_proxy; see no_proxy)")
        }
        None => String::new(),
    }
}

/// Why a listing may be incomplete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListFault {
    /// A page has a record that this filter of its query excludes.
    #[error("a record does not match the filter {0}")]
    FilterIgnored(String),
    /// A page has only records of earlier pages.
    #[error("a page repeats an earlier one")]
    PageRepeated,
}

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error response of the server.
    #[error("{0}")]
    Api(ApiError),
    /// The connection failed, so the call had no effect.
    #[error(
        "cannot reach the API server at {host}{}: {}",
        through(proxy.as_deref()),
        innermost_cause(source)
    )]
    Connect {
        /// Host and port.
        host: String,
        /// Address of the proxy that the environment names for the server.
        proxy: Option<String>,
        /// Error of the network.
        source: reqwest::Error,
    },
    /// The connection broke or timed out; the server may have received the request.
    #[error(
        "lost the API server at {host} while waiting for its answer: {}",
        innermost_cause(source)
    )]
    Interrupted {
        /// Host and port.
        host: String,
        /// Error of the network.
        source: reqwest::Error,
    },
    /// The reply cannot be decoded.
    #[error("the API server at {host} sent an answer that cannot be read ({source}) to {call}")]
    Undecodable {
        /// Host and port.
        host: String,
        /// Method and path.
        call: String,
        /// Error of the decoder.
        source: serde_json::Error,
    },
    /// The server did not answer the query of a listing. The listing may be incomplete.
    #[error(
        "the API server at {host} lists {resource} wrongly ({fault}); the list may be incomplete and is not used"
    )]
    IncompleteList {
        /// Host and port.
        host: String,
        /// Resource of the listing.
        resource: String,
        /// What is wrong.
        fault: ListFault,
    },
    /// The host or token is missing or unusable.
    #[error(transparent)]
    Endpoint(#[from] crate::endpoint::EndpointError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// The subscription to live events failed or ended.
    #[error("no live events from {host}: {detail}")]
    Events {
        /// Host and port.
        host: String,
        /// Reason.
        detail: String,
    },
    /// The server refused a gateway tunnel.
    #[error("no gateway tunnel from the API server at {host}: {detail}")]
    Tunnel {
        /// Host and port.
        host: String,
        /// Reason.
        detail: String,
    },
    /// A Keep service has an unusable address.
    #[error(transparent)]
    KeepService(#[from] crate::keep::service::ServiceError),
}

impl Error {
    /// HTTP status, for an error response of the server.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Error::Api(e) => Some(e.status),
            _ => None,
        }
    }

    /// Whether the request may have had an effect, so that the caller must check before repeating
    /// it.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Error::Interrupted { .. } | Error::Undecodable { .. } => true,
            // An error of a gateway does not tell whether the server handled the request. A server
            // that reports a full disk has rolled the change back.
            Error::Api(e) => {
                e.status.is_server_error()
                    && e.status != StatusCode::INSUFFICIENT_STORAGE
                    && !(e.status == StatusCode::SERVICE_UNAVAILABLE && e.retry_after.is_some())
            }
            _ => false,
        }
    }

    /// 404: the object does not exist, or this token cannot read it.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }

    /// 412: the record changed since it was read.
    pub fn is_stale(&self) -> bool {
        self.status() == Some(StatusCode::PRECONDITION_FAILED)
    }

    /// 401 or 403: this token is not allowed to do this, or not any more.
    pub fn is_denied(&self) -> bool {
        matches!(
            self.status(),
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        )
    }

    /// Whether no connection was made because no certificate here says that the server's can be
    /// trusted.
    pub fn is_untrusted_certificate(&self) -> bool {
        let Error::Connect { source, .. } = self else {
            return false;
        };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(source);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                let unknown = CertificateError::UnknownIssuer;
                return *error == rustls::Error::InvalidCertificate(unknown);
            }
            // An error of I/O does not name the one in it as its source.
            let inside = error.downcast_ref::<std::io::Error>();
            cause = match inside.and_then(std::io::Error::get_ref) {
                Some(inside) => Some(inside),
                None => error.source(),
            };
        }
        false
    }

    /// 422: the request is invalid, and a retry fails, too.
    pub fn is_refused(&self) -> bool {
        self.status() == Some(StatusCode::UNPROCESSABLE_ENTITY)
    }

    /// 429 or 503: the server is overloaded.
    pub fn is_overload(&self) -> bool {
        matches!(
            self.status(),
            Some(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        )
    }

    /// Wait that the server asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Api(e) => e.retry_after,
            _ => None,
        }
    }
}

/// Reads the `errors` array of a response. The controller wraps each text as `//host/path: STATUS
/// REASON: TEXT (req-…)`; only TEXT is kept.
pub(crate) fn messages(body: &[u8]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Body {
        #[serde(default)]
        errors: Vec<String>,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => body.errors.iter().map(|e| strip_wrapping(e)).collect(),
        Err(_) => {
            let text: String = String::from_utf8_lossy(body).chars().take(300).collect();
            let text = Some(text.trim()).filter(|text| !text.is_empty());
            text.into_iter().map(str::to_owned).collect()
        }
    }
}

fn strip_wrapping(text: &str) -> String {
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
        let link = |text, innermost_cause: Link| Link(text, Some(Box::new(innermost_cause)));
        let refused = || Link("refused", None);
        let rows = [
            (refused(), "refused"),
            (
                link("sending", link("connect", refused())),
                "sending: connect: refused",
            ),
            (link("connect: refused", refused()), "connect: refused"),
        ];
        for (error, expected) in rows {
            assert_eq!(with_causes(&error), expected);
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
