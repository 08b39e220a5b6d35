//! JSON responses, of results and of errors.

use axum::response::{IntoResponse, Response};
use http::header;

pub fn json_response(value: &serde_json::Value) -> Response {
    json_text_response(value.to_string())
}

pub fn json_text_response(text: String) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    (kind, text).into_response()
}
