//! The last resort: a thread that only sleeps, and kills the container's control group when everything else that
//! should have ended it by now did not. It needs neither the runtime nor the network nor the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::cgroup::Cgroup;

/// How long the killing is tried.
const PATIENCE: Duration = Duration::from_secs(600);

/// Dropping it calls it off.
#[derive(Debug)]
pub struct Watchdog {
    _called_off: mpsc::Sender<()>,
    has_bitten: Arc<AtomicBool>,
}

impl Watchdog {
    /// When a container with this limit is surely overdue: late enough never to meet those who end it in time.
    pub fn patience(max_run_time: Duration, grace: Duration, slack: Duration) -> Duration {
        (max_run_time + grace + slack).mul_f64(1.2)
    }

    /// The end of the container is its work.
    pub fn has_bitten(&self) -> bool {
        self.has_bitten.load(Ordering::Acquire)
    }

    /// Starts to wait. Without a thread there is one safeguard less, and that is said.
    pub fn start(
        group: Cgroup,
        after: Duration,
        say: impl Fn(String) + Send + 'static,
    ) -> Option<Self> {
        let (call_off, called_off) = mpsc::channel();
        let has_bitten = Arc::new(AtomicBool::new(false));
        let bites = has_bitten.clone();
        let waiting = thread::Builder::new().name("watchdog".to_owned());
        let started = waiting.spawn(move || {
            if called_off.recv_timeout(after) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            bites.store(true, Ordering::Release);
            // First the deed: saying so writes to files, which may hang.
            let killed = group.kill(PATIENCE);
            say(match killed {
                Ok(()) => format!(
                    "The container was still there {} s after its start and is killed",
                    after.as_secs()
                ),
                Err(error) => format!("The container is overdue and cannot be killed: {error}"),
            });
        });
        started.ok().map(|_| Self {
            _called_off: call_off,
            has_bitten,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn empty() -> Cgroup {
        Cgroup::default()
    }

    #[test]
    fn it_bites_when_the_time_is_over_and_not_when_it_was_called_off() {
        let dog = |after| {
            let (tell, hear) = mpsc::channel();
            let say = move |_| tell.send(()).unwrap();
            (Watchdog::start(empty(), after, say).unwrap(), hear)
        };
        let (called_off, hear) = dog(Duration::from_secs(3600));
        drop(called_off);
        // Its thread has ended, without a word.
        let heard = hear.recv_timeout(Duration::from_secs(300));
        assert_eq!(heard, Err(RecvTimeoutError::Disconnected));

        let (began, after) = (Instant::now(), Duration::from_millis(400));
        let (overdue, hear) = dog(after);
        let has_bitten = overdue.has_bitten();
        assert!(!has_bitten || began.elapsed() >= after);
        assert_eq!(hear.recv_timeout(Duration::from_secs(300)), Ok(()));
        assert!(overdue.has_bitten());
    }

    #[test]
    fn it_waits_longer_than_all_others() {
        let grace = Duration::from_secs(10);
        let slack = Duration::from_secs(300);
        let short = Watchdog::patience(Duration::from_secs(1), grace, slack);
        assert_eq!(short.as_millis(), 373_200);
        let day = Duration::from_secs(86_400);
        assert!(Watchdog::patience(day, grace, slack) > day + grace + slack);
    }
}
