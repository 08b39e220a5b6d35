//! Which failures may be tried again, and how long to wait: decided by what the call does, not by who calls.

use std::time::Duration;

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
        | Error::KeepService(_) => false,
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
