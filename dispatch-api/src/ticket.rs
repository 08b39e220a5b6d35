//! What identifies a request in answers, logs and metrics; and how a refusal is written.

use std::time::Instant;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, header};
use tracing::{debug, error};

use crate::app::App;
use crate::edge::json_text;
use crate::emulation::dialect::{self, Writer};
use crate::error::{ApiError, Result};

pub struct Ticket {
    id: String,
    method: Method,
    path: String,
    began: Instant,
}

impl Ticket {
    pub fn of(request: &Request) -> Ticket {
        Ticket {
            id: request_id(request.headers()),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            began: Instant::now(),
        }
    }

    /// The answer, with what every answer has.
    pub fn close(self, app: &App, done: Result<Response>) -> Response {
        let mut response = done.unwrap_or_else(|problem| refusal(app, &problem, &self));
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            response.headers_mut().insert("x-request-id", id);
        }
        let took = self.began.elapsed();
        app.metrics.answered(&self.method, response.status(), took);
        debug!(request = self.id, method = %self.method, path = self.path,
               status = response.status().as_u16(), ms = took.as_secs_f64() * 1000.0, "answered");
        response
    }
}

/// The client's own request id if it is a sane one, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .filter(|id| {
            (1..=64).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        });
    given.map_or_else(
        || {
            let letters: String = (0..20).map(|_| fastrand::alphanumeric()).collect();
            format!("req-{}", letters.to_lowercase())
        },
        str::to_owned,
    )
}

fn refusal(app: &App, problem: &ApiError, ticket: &Ticket) -> Response {
    let status = problem.status();
    if status.is_server_error()
        && !matches!(
            problem,
            ApiError::Busy | ApiError::Stopping | ApiError::Gateway(_)
        )
    {
        error!(request = ticket.id, method = %ticket.method, path = ticket.path, error = %problem,
               "a request failed on the server's side");
    }
    let rules = app.setting.rules;
    if rules.controller && matches!(problem, ApiError::Busy) {
        return status.into_response();
    }
    let writer = dialect::writer(rules, &ticket.path);
    let body = dialect::refusal(writer, problem, &ticket.path, &ticket.id);
    let mut response = match writer {
        Writer::Keepstore => (status, body).into_response(),
        Writer::Rails | Writer::Controller => (status, json_text(body)).into_response(),
    };
    if let Some(seconds) = problem.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_request_id_is_replaced() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "req-abc".parse().unwrap());
        assert_eq!(request_id(&headers), "req-abc");
        headers.insert("x-request-id", "a b<script>".parse().unwrap());
        assert!(request_id(&headers).starts_with("req-"));
    }
}
