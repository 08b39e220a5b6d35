//! When a refusal (401, 403, 404) of the attempt's own token is believed while its results are
//! delivered.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::Error;
use arvados_client::keep::{Cause, KeepError};
use arvados_client::retry::RefusalTimer;

use super::insist::Trouble;
use crate::signals::Stop;

/// Time for which a refusal is asked again after a request to stop. Slurm kills 30 s after that,
/// and the dispatcher tells the end of an attempt that could not.
const STOPPING_WINDOW: Duration = Duration::from_secs(7);

/// Shared by all calls with one token: how long it is refused counts, not by how many calls.
#[derive(Debug)]
pub struct Refusals {
    timers: Mutex<Timers>,
    stop: Stop,
}

#[derive(Debug)]
struct Timers {
    usual: RefusalTimer,
    stopping: RefusalTimer,
}

impl Refusals {
    /// Refusals are believed after `window`, or sooner once we were asked to stop.
    pub fn new(window: Duration, stop: &Stop) -> Self {
        Self {
            timers: Mutex::new(Timers {
                usual: RefusalTimer::new(window),
                stopping: RefusalTimer::new(window.min(STOPPING_WINDOW)),
            }),
            stop: stop.clone(),
        }
    }

    /// Takes a refusal; whether it is believed.
    pub fn are_believed(&self) -> bool {
        let now = Instant::now();
        let mut timers = self.lock();
        let (usual, stopping) = (timers.usual.refused(now), timers.stopping.refused(now));
        usual || (stopping && self.stop.is_asked())
    }

    /// Takes a success.
    pub fn accepted(&self) {
        let mut timers = self.lock();
        timers.usual.accepted();
        timers.stopping.accepted();
    }

    /// Whether another try may help, of a call with this token.
    pub fn sorted<T>(&self, answer: Result<T, Error>) -> Result<T, Trouble<Error>> {
        match answer {
            Ok(answer) => {
                self.accepted();
                Ok(answer)
            }
            Err(error) if is_refusal(&error) && !self.are_believed() => Err(Trouble::Later(error)),
            Err(error) if is_final(&error) => Err(Trouble::Final(error)),
            Err(error) => Err(Trouble::Later(error)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Timers> {
        // Timers are whole whenever the lock is free.
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token or the record seems to be gone. It may only seem so for a while.
pub fn is_refusal(error: &Error) -> bool {
    error.is_denied() || error.is_not_found()
}

/// The same of a Keep service.
pub fn is_keep_refusal(error: &KeepError) -> bool {
    match error {
        KeepError::Refused { failure, .. } => matches!(
            failure.cause,
            Cause::Status {
                status: 401 | 403,
                ..
            }
        ),
        _ => false,
    }
}

/// A refusal of what was asked; it would be refused again.
pub fn is_final(error: &Error) -> bool {
    is_refusal(error) || error.is_refused() || error.is_stale()
}

#[cfg(test)]
mod tests {
    use arvados_client::error::{ApiError, StatusCode};

    use super::*;
    use crate::signals::Asked;

    fn answer(status: u16) -> Result<(), Error> {
        Err(Error::Api(ApiError {
            status: StatusCode::from_u16(status).unwrap(),
            messages: vec![],
            request_id: String::new(),
            retry_after: None,
        }))
    }

    fn is_final(refusals: &Refusals, status: u16) -> bool {
        matches!(refusals.sorted(answer(status)), Err(Trouble::Final(_)))
    }

    #[test]
    fn a_refusal_is_final_only_when_it_has_lasted() {
        let (tell, stop) = Stop::channel();
        let long = Refusals::new(Duration::from_secs(3600), &stop);
        let over = Refusals::new(Duration::ZERO, &stop);
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
        assert!(!stop.is_asked());
        let _ = tell.send(Asked {
            times: 1,
            by: "TERM",
        });
        assert!(!is_final(&long, 401), "asked to stop, it is asked again");
    }

    #[test]
    fn a_request_to_stop_shortens_the_wait() {
        let (tell, stop) = Stop::channel();
        let refusals = Refusals {
            timers: Mutex::new(Timers {
                usual: RefusalTimer::new(Duration::from_secs(3600)),
                stopping: RefusalTimer::new(Duration::ZERO),
            }),
            stop,
        };
        assert!(!is_final(&refusals, 401));
        let _ = tell.send(Asked {
            times: 1,
            by: "TERM",
        });
        assert!(is_final(&refusals, 401));
    }
}
