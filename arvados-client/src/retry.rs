//! Which failures may be tried again, and how long to wait: decided by what the call does, not by who calls.

use std::time::{Duration, Instant};

use backon::ExponentialBuilder;
use http::StatusCode;

use crate::error::Error;

/// What repeating a call could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It only reads, or writing the same again changes nothing.
    Repeatable,
    /// Twice is not once (create, lock): repeated only when the first surely did nothing.
    Once,
}

/// Whether the same call may be sent again after `error`.
pub fn may_retry(effect: Effect, error: &Error) -> bool {
    match error {
        // Never connected, so nothing happened.
        Error::Connect { .. } => true,
        Error::Interrupted { .. } => effect == Effect::Repeatable,
        Error::Api(api) => match api.status {
            // Refused at the door: "later".
            StatusCode::TOO_MANY_REQUESTS => true,
            // Said by the server itself it means the same; said by a gateway it may have been heard all the same.
            StatusCode::SERVICE_UNAVAILABLE => {
                effect == Effect::Repeatable || api.retry_after.is_some()
            }
            StatusCode::NOT_IMPLEMENTED | StatusCode::INSUFFICIENT_STORAGE => false,
            status if status.is_server_error() => effect == Effect::Repeatable,
            _ => false,
        },
        Error::Undecodable { .. }
        | Error::Endpoint(_)
        | Error::Tls(_)
        | Error::Events { .. }
        | Error::Tunnel { .. }
        | Error::KeepService(_) => false,
    }
}

/// Time for which a refusal of what worked before is asked again before it is believed. A real server refuses valid
/// tokens while its processes hold stale database connections; a revoked token is still revoked a minute later.
pub const REFUSAL_WINDOW: Duration = Duration::from_secs(60);

/// Whether `error` refuses a token or record that may only seem to be gone: 401 once the server has accepted the
/// token before (`accepted`), 403 and 404 where the caller knows that the record was there (`known_record`).
pub fn may_pass(error: &Error, accepted: bool, known_record: bool) -> bool {
    match error.status() {
        Some(StatusCode::UNAUTHORIZED) => accepted,
        Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => known_record,
        _ => false,
    }
}

/// Decides when a refusal (401, 403, 404) that a poll meets again and again is believed.
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
    /// A timer that believes refusals which lasted for `window`.
    pub fn new(window: Duration) -> Self {
        Self {
            window,
            refused_since: None,
        }
    }

    /// Takes the newest answer. True if it is a refusal, and refusals began `window` ago with no success since.
    /// Other failures (no connection, an overloaded server) neither begin nor end the time.
    pub fn is_over<T>(&mut self, answer: &Result<T, Error>, now: Instant) -> bool {
        match answer {
            Ok(_) => {
                self.accepted();
                false
            }
            Err(error) => self.has_failed(error, now),
        }
    }

    /// The same for an answer that is known to be a failure.
    pub fn has_failed(&mut self, error: &Error, now: Instant) -> bool {
        (error.is_denied() || error.is_not_found()) && self.refused(now)
    }

    /// The same for a refusal that is no [`Error`], such as one by a Keep service.
    pub fn refused(&mut self, now: Instant) -> bool {
        let since = *self.refused_since.get_or_insert(now);
        now.duration_since(since) >= self.window
    }

    /// Takes a success.
    pub fn accepted(&mut self) {
        self.refused_since = None;
    }
}

/// The waits: from 100 ms, doubling, with jitter, at most a tenth of the budget each.
pub fn waits(budget: Duration) -> ExponentialBuilder {
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
            assert_eq!(timer.is_over(&answer, now), believed, "{second} {status}");
        }
    }

    #[test]
    fn only_what_worked_before_may_pass() {
        // status, token accepted before, record known, asked again
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
            assert_eq!(may_pass(&api(status), accepted, known), again, "{status}");
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
                may_retry(Effect::Repeatable, &api(status)),
                repeatable,
                "{status}"
            );
            assert_eq!(may_retry(Effect::Once, &api(status)), once, "{status}");
        }
    }
}
