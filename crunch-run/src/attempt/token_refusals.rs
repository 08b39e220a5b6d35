//! Decides when a refusal (401, 403, 404) of the attempt token is believed during delivery.

use std::time::{Duration, Instant};

use arvados_client::Error;
use arvados_client::retry::RefusalTimer;
use parking_lot::Mutex;

use super::retried_operation::RetryError;
use crate::node::signals::Stop;

/// Time for which refused calls are retried after a stop request. Slurm kills 30 s after that, and
/// then the dispatcher records the end.
const STOPPING_WINDOW: Duration = Duration::from_secs(7);

/// Refusals of one token. The duration counts, not the number of calls.
#[derive(Debug)]
pub struct TokenRefusals {
    timers: Mutex<Timers>,
    stop: Stop,
}

#[derive(Debug)]
struct Timers {
    usual: RefusalTimer,
    stopping: RefusalTimer,
}

impl TokenRefusals {
    /// TokenRefusals are believed after `window`, or earlier after a stop request.
    pub fn new(window: Duration, stop: &Stop) -> Self {
        Self {
            timers: Mutex::new(Timers {
                usual: RefusalTimer::new(window),
                stopping: RefusalTimer::new(window.min(STOPPING_WINDOW)),
            }),
            stop: stop.clone(),
        }
    }

    /// Records a refusal. Returns whether it is believed.
    pub fn are_believed(&self) -> bool {
        let now = Instant::now();
        let mut timers = self.timers.lock();
        let (usual, stopping) = (
            timers.usual.record_refusal(now),
            timers.stopping.record_refusal(now),
        );
        usual || (stopping && self.stop.is_requested())
    }

    /// Records a success.
    pub fn accepted(&self) {
        let mut timers = self.timers.lock();
        timers.usual.record_success();
        timers.stopping.record_success();
    }

    /// Classifies the result of a call with this token.
    pub fn classify<T>(&self, answer: Result<T, Error>) -> Result<T, RetryError<Error>> {
        match answer {
            Ok(answer) => {
                self.accepted();
                Ok(answer)
            }
            Err(error) if is_refusal(&error) && !self.are_believed() => {
                Err(RetryError::Transient(error))
            }
            Err(error) if is_final(&error) => Err(RetryError::Final(error)),
            Err(error) => Err(RetryError::Transient(error)),
        }
    }
}

/// Whether the token or the record seems to be gone, perhaps only temporarily.
pub fn is_refusal(error: &Error) -> bool {
    error.is_denied() || error.is_not_found()
}

/// Whether the request itself is refused and would be refused again.
pub fn is_final(error: &Error) -> bool {
    is_refusal(error) || error.is_refused() || error.is_stale()
}

#[cfg(test)]
mod tests {
    use arvados_client::error::{ApiError, StatusCode};

    use super::*;
    use crate::node::signals::StopRequests;

    fn answer(status: u16) -> Result<(), Error> {
        Err(Error::Api(ApiError {
            status: StatusCode::from_u16(status).unwrap(),
            messages: vec![],
            request_id: String::new(),
            retry_after: None,
        }))
    }

    fn is_final(refusals: &TokenRefusals, status: u16) -> bool {
        matches!(refusals.classify(answer(status)), Err(RetryError::Final(_)))
    }

    #[test]
    fn a_refusal_is_final_only_when_it_has_lasted() {
        let (tell, stop) = Stop::channel();
        let long = TokenRefusals::new(Duration::from_secs(3600), &stop);
        let over = TokenRefusals::new(Duration::ZERO, &stop);
        // status, final at once, final after the window
        for (status, at_once, at_last) in [
            (401, false, true),
            (403, false, true),
            (404, false, true),
            (412, true, true),
            (422, true, true),
            (502, false, false),
        ] {
            assert_eq!(is_final(&long, status), at_once, "{status}");
            assert_eq!(is_final(&over, status), at_last, "{status}");
        }
        assert!(!stop.is_requested());
        let _ = tell.send(StopRequests {
            count: 1,
            by: "TERM",
        });
        assert!(!is_final(&long, 401), "asked to stop, it is asked again");
    }

    #[test]
    fn a_request_to_stop_shortens_the_wait() {
        let (tell, stop) = Stop::channel();
        let refusals = TokenRefusals {
            timers: Mutex::new(Timers {
                usual: RefusalTimer::new(Duration::from_secs(3600)),
                stopping: RefusalTimer::new(Duration::ZERO),
            }),
            stop,
        };
        assert!(!is_final(&refusals, 401));
        let _ = tell.send(StopRequests {
            count: 1,
            by: "TERM",
        });
        assert!(is_final(&refusals, 401));
    }
}
