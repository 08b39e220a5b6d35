//! Decides which failed calls are retried, and when. In: the error and whether the call is
//! idempotent.

use std::time::{Duration, Instant};

use backon::ExponentialBuilder;
use http::StatusCode;

use crate::endpoint::REFUSAL_WINDOW;
use crate::error::Error;

/// Whether a call can be repeated without harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idempotency {
    /// The call only reads, or writes the same again.
    Idempotent,
    /// A second call has another effect (create, lock): repeated only if the first certainly had
    /// none.
    Once,
}

/// Whether the same call may be sent again after `error`.
pub fn may_retry(idempotency: Idempotency, error: &Error) -> bool {
    match error {
        // Never connected, so the call had no effect.
        Error::Connect { .. } => true,
        Error::Interrupted { .. } => idempotency == Idempotency::Idempotent,
        Error::Api(api) => match api.status {
            // Rate limit: the call had no effect.
            StatusCode::TOO_MANY_REQUESTS => true,
            // From the server itself, the call had no effect. From a gateway, the server may have
            // received it.
            StatusCode::SERVICE_UNAVAILABLE => {
                idempotency == Idempotency::Idempotent || api.retry_after.is_some()
            }
            StatusCode::NOT_IMPLEMENTED | StatusCode::INSUFFICIENT_STORAGE => false,
            status if status.is_server_error() => idempotency == Idempotency::Idempotent,
            _ => false,
        },
        Error::Undecodable { .. }
        | Error::IncompleteList { .. }
        | Error::Endpoint(_)
        | Error::Tls(_)
        | Error::Events { .. }
        | Error::Tunnel { .. }
        | Error::KeepService(_) => false,
    }
}

/// Whether a refusal may be transient: 401 if the server accepted the token before (`accepted`),
/// 403 and 404 if the caller knows that the record existed (`known_record`).
pub fn may_be_transient(error: &Error, accepted: bool, known_record: bool) -> bool {
    match error.status() {
        Some(StatusCode::UNAUTHORIZED) => accepted,
        Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => known_record,
        _ => false,
    }
}

/// Decides when repeated refusals (401, 403, 404) of a poll count as permanent.
#[derive(Debug, Clone, Copy)]
pub struct RefusalTimer {
    window: Duration,
    refused_since: Option<Instant>,
}

impl Default for RefusalTimer {
    fn default() -> Self {
        Self::new(REFUSAL_WINDOW)
    }
}

impl RefusalTimer {
    /// A timer for which refusals are permanent after `window`.
    pub fn new(window: Duration) -> Self {
        Self {
            window,
            refused_since: None,
        }
    }

    /// Records a result. True if it is a refusal, and refusals began `window` ago with no success
    /// since. Other failures (no connection, an overloaded server) neither start nor reset the
    /// timer.
    pub fn record<T>(&mut self, answer: &Result<T, Error>, now: Instant) -> bool {
        match answer {
            Ok(_) => {
                self.record_success();
                false
            }
            Err(error) => self.record_failure(error, now),
        }
    }

    /// Records a failed call; the result is that of [`record`](Self::record).
    pub fn record_failure(&mut self, error: &Error, now: Instant) -> bool {
        (error.is_denied() || error.is_not_found()) && self.record_refusal(now)
    }

    /// Records a refusal that is not an [`Error`], such as one of a Keep service.
    pub fn record_refusal(&mut self, now: Instant) -> bool {
        let since = *self.refused_since.get_or_insert(now);
        now.duration_since(since) >= self.window
    }

    /// Records a success, which resets the timer.
    pub fn record_success(&mut self) {
        self.refused_since = None;
    }
}

/// Retry delays: from 100 ms, doubling, with jitter, at most a tenth of the budget each.
pub fn backoff(budget: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay((budget / 10).max(Duration::from_millis(100)))
        .with_factor(2.0)
        .with_max_times(64)
        .with_jitter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    fn api(status: u16) -> Error {
        Error::Api(ApiError {
            status: StatusCode::from_u16(status).unwrap(),
            messages: vec![],
            request_id: "req-x".into(),
            retry_after: None,
        })
    }

    #[test]
    fn a_refusal_is_believed_after_a_minute_of_nothing_else() {
        let mut timer = RefusalTimer::default();
        let start = Instant::now();
        // seconds, status (200 is a success), believed
        let rows = [
            (0, 401, false),
            (59, 401, false),
            (60, 503, false),
            (61, 401, true),
            (62, 200, false),
            (63, 404, false),
            (122, 403, false),
            (123, 403, true),
        ];
        for (second, status, believed) in rows {
            let answer = match status {
                200 => Ok(()),
                status => Err(api(status)),
            };
            let now = start + Duration::from_secs(second);
            assert_eq!(timer.record(&answer, now), believed, "{second} {status}");
        }
    }

    #[test]
    fn only_what_worked_before_may_pass() {
        // status, token accepted before, record known, retried
        let rows = [
            (401, false, false, false),
            (401, true, false, true),
            (403, true, false, false),
            (403, true, true, true),
            (404, true, false, false),
            (404, false, true, true),
            (422, true, true, false),
        ];
        for (status, accepted, known, again) in rows {
            assert_eq!(
                may_be_transient(&api(status), accepted, known),
                again,
                "{status}"
            );
        }
    }

    #[test]
    fn what_may_have_taken_effect_is_never_blindly_repeated() {
        // status, repeatable call, once-only call
        let rows = [
            (400, false, false),
            (401, false, false),
            (403, false, false),
            (404, false, false),
            (412, false, false),
            (422, false, false),
            (429, true, true),
            (500, true, false),
            (501, false, false),
            (502, true, false),
            (503, true, false),
            (504, true, false),
            (507, false, false),
        ];
        for (status, repeatable, once) in rows {
            assert_eq!(
                may_retry(Idempotency::Idempotent, &api(status)),
                repeatable,
                "{status}"
            );
            assert_eq!(may_retry(Idempotency::Once, &api(status)), once, "{status}");
        }
    }
}
