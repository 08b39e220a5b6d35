//! Requests to dispatch-api: no query, header or body makes the parsing of parameters panic, and
//! the same text gives the same parameters.

use arvados_client::byte_range::Part;
use dispatch_api::api::params::{self, Params};
use dispatch_api::schema;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue};

const CONTENT_TYPES: [&str; 4] = [
    "application/json",
    "application/x-www-form-urlencoded",
    "text/plain",
    "",
];

/// The first byte selects the content type; zero bytes separate query, header and body.
pub fn check(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let query = parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let header = parts
        .next()
        .and_then(|part| HeaderValue::from_bytes(part).ok());
    let body = parts.next().unwrap_or_default();
    let mut headers = HeaderMap::new();
    let kind = CONTENT_TYPES[usize::from(*first) % CONTENT_TYPES.len()];
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(header) = header {
        headers.insert(AUTHORIZATION, header.clone());
        headers.insert(HOST, header.clone());
        if let Part::Bytes(range) = Part::of(header.to_str().ok(), 1000) {
            assert!(range.end <= 1000, "{range:?}");
        }
    }
    if let Some(path) = query {
        let _ = params::decode_path(path);
    }
    let _ = params::client_facing_host(&headers, "localhost");
    let Ok(parsed) = Params::parse(query, &headers, body) else {
        return;
    };
    let _ = params::token(&headers, &parsed);
    for resource in schema::ALL {
        if let Ok(attributes) = parsed.attributes(resource) {
            assert_eq!(parsed.attributes(resource).ok(), Some(attributes));
        }
    }
}
