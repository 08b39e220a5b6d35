//! The last resort: a thread that kills the container's control group when nothing else ended it in
//! time. It needs neither the runtime nor the network nor the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cgroup::Cgroup;

/// Timeout of killing the control group.
const KILL_TIMEOUT: Duration = Duration::from_secs(600);

/// A running watchdog. Dropping it cancels it.
#[derive(Debug)]
pub struct Watchdog {
    _called_off: mpsc::Sender<()>,
    has_fired: Arc<AtomicBool>,
}

impl Watchdog {
    /// Time after the start at which the container is killed: well after every regular way to end
    /// it.
    pub fn deadline(max_run_time: Duration, grace: Duration, slack: Duration) -> Duration {
        (max_run_time + grace + slack).mul_f64(1.2)
    }

    /// Whether the watchdog killed the container.
    pub fn has_fired(&self) -> bool {
        self.has_fired.load(Ordering::Acquire)
    }

    /// Starts the thread. Returns `None` if it cannot be started.
    pub fn start(
        group: Cgroup,
        after: Duration,
        say: impl Fn(String) + Send + 'static,
    ) -> Option<Self> {
        let (call_off, called_off) = mpsc::channel();
        let has_fired = Arc::new(AtomicBool::new(false));
        let fired = has_fired.clone();
        let waiting = thread::Builder::new().name("watchdog".to_owned());
        let started = waiting.spawn(move || {
            if called_off.recv_timeout(after) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            fired.store(true, Ordering::Release);
            // Kill first: logging writes to files, which may hang.
            let killed = group.kill(KILL_TIMEOUT);
            say(match killed {
                Ok(()) => format!(
                    "The container still ran {} s after its start and was killed",
                    after.as_secs()
                ),
                Err(error) => format!(
                    "The container exceeded its maximum run time and could not be killed: {error}"
                ),
            });
        });
        started.ok().map(|_| Self {
            _called_off: call_off,
            has_fired,
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
    fn watchdog_fires_at_its_deadline_unless_it_was_called_off() {
        let dog = |after| {
            let (tell, hear) = mpsc::channel();
            let say = move |_| tell.send(()).unwrap();
            (Watchdog::start(empty(), after, say).unwrap(), hear)
        };
        let (called_off, hear) = dog(Duration::from_secs(3600));
        drop(called_off);
        // The thread has ended without a message.
        let received = hear.recv_timeout(Duration::from_secs(300));
        assert_eq!(received, Err(RecvTimeoutError::Disconnected));

        let (began, after) = (Instant::now(), Duration::from_millis(400));
        let (overdue, hear) = dog(after);
        let has_fired = overdue.has_fired();
        assert!(!has_fired || began.elapsed() >= after);
        assert_eq!(hear.recv_timeout(Duration::from_secs(300)), Ok(()));
        assert!(overdue.has_fired());
    }

    #[test]
    fn watchdog_waits_longer_than_all_others() {
        let grace = Duration::from_secs(10);
        let slack = Duration::from_secs(300);
        let short = Watchdog::deadline(Duration::from_secs(1), grace, slack);
        assert_eq!(short.as_millis(), 373_200);
        let day = Duration::from_secs(86_400);
        assert!(Watchdog::deadline(day, grace, slack) > day + grace + slack);
    }
}
