//! Lets the pages of other sites, such as Workbench, send requests (Cross-Origin Resource Sharing,
//! the WHATWG Fetch standard). A page has no rights by that: each request still needs a token,
//! which a browser does not add by itself.
//!
//! An OPTIONS request that asks for no method is not from a browser: WebDAV clients send it, too.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, header};

const METHODS: &str = "GET, HEAD, PUT, POST, PATCH, DELETE, PROPFIND";
/// Headers that a page may send.
const SENT: &str = "Authorization, Cache-Control, Content-Type, Depth, If-Match, Range, \
    X-Http-Method-Override, X-Keep-Storage-Classes, X-Request-Id";
/// Headers of an answer that a page may read.
const READ: &str = "Accept-Ranges, Content-Length, Content-Range, ETag, X-Request-Id";
/// Seconds for which a browser may keep the answer: a day.
const MAX_AGE: &str = "86400";

/// Answers what a browser asks before the request of a page, and lets the page read every answer.
pub async fn cors(request: Request, next: Next) -> Response {
    let is_question = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match is_question {
        true => [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, SENT),
            (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
        ]
        .into_response(),
        false => next.run(request).await,
    };
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, READ),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
