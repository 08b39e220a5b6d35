//! Parses a request to the gateway without I/O. In: the request head, the container uuid, the
//! proofs. Out: the request, or a refusal.

use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, header};
use percent_encoding::percent_decode_str;

use super::secret::Proofs;
use crate::logs::FILES;

const UUID: &str = "x-arvados-container-gateway-uuid";
const AUTHORIZATION: &str = "x-arvados-authorization";
const TARGET_PORT: &str = "x-arvados-container-target-port";
const SOURCE: &str = "x-webdav-source";
const PREFIX: &str = "x-webdav-prefix";
const DEPTH: &str = "depth";

/// An authorized request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRequest {
    /// OPTIONS.
    Abilities,
    /// GET or HEAD of a log file.
    Content { name: &'static str, with_body: bool },
    /// PROPFIND. The reply repeats the path of the URL.
    Properties { of: LogPath, path: String },
}

/// A path in the log directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPath {
    Directory { with_files: bool },
    File(&'static str),
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub sentence: String,
    /// Whether the request had the proof, so that the reply may have the other one.
    pub is_authorized: bool,
}

/// Parses a request. Only files of the log collection are served, by name: no path leads elsewhere.
pub fn parse_request(head: &Parts, uuid: &str, proofs: &Proofs) -> Result<LogRequest, Refusal> {
    let text = |name: &str| text(&head.headers, name);
    let refuse = |status, sentence: &str, is_authorized| {
        Err(Refusal {
            status,
            sentence: sentence.to_owned(),
            is_authorized,
        })
    };
    let addressee = text(UUID);
    if addressee != uuid {
        let sentence = format!("this is the gateway of {uuid}, not of {addressee:?}");
        return refuse(StatusCode::BAD_GATEWAY, &sentence, false);
    }
    let shown = head.headers.get(AUTHORIZATION);
    if !shown.is_some_and(|shown| proofs.is_shown(shown.as_bytes())) {
        let sentence = "the header X-Arvados-Authorization is not the expected one";
        return refuse(StatusCode::UNAUTHORIZED, sentence, false);
    }
    if text(header::UPGRADE.as_str()).eq_ignore_ascii_case("ssh") {
        let sentence = "this crunch-run offers no shell in containers";
        return refuse(StatusCode::NOT_IMPLEMENTED, sentence, true);
    }
    if !text(TARGET_PORT).is_empty() {
        let sentence = "this crunch-run does not forward to ports of containers";
        return refuse(StatusCode::NOT_IMPLEMENTED, sentence, true);
    }
    if text(SOURCE) != "/log" {
        return refuse(StatusCode::NOT_FOUND, "only the log is served here", true);
    }
    if !ALLOWED.contains(&head.method.as_str()) {
        let sentence = "the log can only be read";
        return refuse(StatusCode::METHOD_NOT_ALLOWED, sentence, true);
    }
    let Ok(path) = percent_decode_str(head.uri.path()).decode_utf8() else {
        return refuse(StatusCode::NOT_FOUND, NO_FILE, true);
    };
    let Some(rest) = path.strip_prefix(text(PREFIX).trim_end_matches('/')) else {
        let sentence = "the path does not begin with the header X-Webdav-Prefix";
        return refuse(StatusCode::BAD_REQUEST, sentence, true);
    };
    let file = FILES
        .into_iter()
        .find(|name| rest.strip_prefix('/') == Some(*name));
    let is_directory = matches!(rest, "" | "/");
    match (head.method.as_str(), file) {
        _ if file.is_none() && !is_directory => refuse(StatusCode::NOT_FOUND, NO_FILE, true),
        ("OPTIONS", _) => Ok(LogRequest::Abilities),
        ("PROPFIND", file) => Ok(LogRequest::Properties {
            of: match file {
                Some(name) => LogPath::File(name),
                None => LogPath::Directory {
                    with_files: text(DEPTH) != "0",
                },
            },
            path: head.uri.path().to_owned(),
        }),
        (_, Some(name)) => Ok(LogRequest::Content {
            name,
            with_body: head.method == Method::GET,
        }),
        (_, None) => refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "this is a directory; ask for a file of it, or by PROPFIND",
            true,
        ),
    }
}

/// The methods of a log, for `Allow`.
pub const ALLOWED: [&str; 4] = ["OPTIONS", "GET", "HEAD", "PROPFIND"];
const NO_FILE: &str = "there is no such file in the log";

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::super::secret::GatewaySecret;
    use super::*;

    const ME: &str = "zzzzz-dz642-0123456789abcde";
    const BASE: &str = "/arvados/v1/container_requests/CR/log/C";

    type Headers<'a> = &'a [(&'a str, &'a str)];
    /// What is wanted, or the status of the refusal and whether the proof was accepted.
    type Outcome = Result<LogRequest, (u16, bool)>;

    fn ask(method: &str, path: &str, more: Headers<'_>) -> Outcome {
        let proofs = GatewaySecret::new("00ff").unwrap().proofs(b"certificate");
        // The value of the test `the_proofs_are_those_that_arvados_computes`.
        let shown = super::super::secret::tests::SHOWN;
        let mut request = Request::builder().method(method).uri(path);
        let usual = [
            (UUID, ME),
            (AUTHORIZATION, shown),
            (SOURCE, "/log"),
            (PREFIX, BASE),
        ];
        let headers = request.headers_mut().unwrap();
        for (name, value) in usual.iter().chain(more) {
            let name: hyper::header::HeaderName = name.parse().unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        let head = request.body(()).unwrap().into_parts().0;
        parse_request(&head, ME, &proofs).map_err(|no| (no.status.as_u16(), no.is_authorized))
    }

    #[test]
    fn a_request_gets_a_log_file_or_a_refusal_that_says_why() {
        let content = |name, with_body| Ok(LogRequest::Content { name, with_body });
        let properties = |of, path: &str| {
            Ok(LogRequest::Properties {
                of,
                path: format!("{BASE}{path}"),
            })
        };
        let all = LogPath::Directory { with_files: true };
        let itself = LogPath::Directory { with_files: false };
        #[rustfmt::skip]
        let rows: Vec<(&str, &str, Headers<'_>, Outcome)> = vec![
            ("GET", "/stdout.txt", &[], content("stdout.txt", true)),
            ("GET", "/stdout%2Etxt", &[], content("stdout.txt", true)),
            ("HEAD", "/crunch-run.txt?x=y", &[], content("crunch-run.txt", false)),
            ("GET", "/stdout.txt", &[(PREFIX, "/arvados/v1/container_requests/CR/log/C/")], content("stdout.txt", true)),
            ("OPTIONS", "/", &[], Ok(LogRequest::Abilities)),
            ("OPTIONS", "/stdout.txt", &[], Ok(LogRequest::Abilities)),
            ("PROPFIND", "", &[], properties(all, "")),
            ("PROPFIND", "/", &[(DEPTH, "1")], properties(all, "/")),
            ("PROPFIND", "/", &[(DEPTH, "0")], properties(itself, "/")),
            ("PROPFIND", "/stderr.txt", &[], properties(LogPath::File("stderr.txt"), "/stderr.txt")),
            ("GET", "/stdout.txt", &[(UUID, "zzzzz-dz642-other0000000000")], Err((502, false))),
            ("GET", "/stdout.txt", &[(AUTHORIZATION, "00")], Err((401, false))),
            ("GET", "/stdout.txt", &[(AUTHORIZATION, "")], Err((401, false))),
            ("POST", "/ssh", &[("upgrade", "ssh")], Err((501, true))),
            ("GET", "/", &[(TARGET_PORT, "80")], Err((501, true))),
            ("GET", "/stdout.txt", &[(SOURCE, "/output")], Err((404, true))),
            ("GET", "/stdout.txt", &[(SOURCE, "")], Err((404, true))),
            ("PUT", "/stdout.txt", &[], Err((405, true))),
            ("DELETE", "/stdout.txt", &[], Err((405, true))),
            ("GET", "/", &[], Err((405, true))),
            ("GET", "/stdout.txt", &[(PREFIX, "/elsewhere")], Err((400, true))),
            ("GET", "/none.txt", &[], Err((404, true))),
            ("GET", "/../token", &[], Err((404, true))),
            ("GET", "/%2e%2e/token", &[], Err((404, true))),
            ("GET", "/%2e%2e%2ftoken", &[], Err((404, true))),
            ("GET", "//etc/passwd", &[], Err((404, true))),
            ("GET", "/stdout.txt/", &[], Err((404, true))),
            ("GET", "/./stdout.txt", &[], Err((404, true))),
            ("GET", "/stdout.txt%00", &[], Err((404, true))),
            ("GET", "/%ff", &[], Err((404, true))),
            ("GET", "x/stdout.txt", &[], Err((404, true))),
        ];
        for (method, path, more, expected) in rows {
            let got = ask(method, &format!("{BASE}{path}"), more);
            assert_eq!(got, expected, "{method} {path} {more:?}");
        }
    }
}
