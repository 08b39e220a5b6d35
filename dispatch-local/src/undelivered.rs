//! Results that an attempt left in its job directory: `crunch-run resume` delivers them, again and again, until it has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;

use crate::executor::Executor;
use crate::job_dir::{End, JobDir, Sign};

/// crunch-run's exit code for "ran, results are on this node and undelivered".
pub const UNDELIVERED: i32 = 77;
/// Its exit code for "not mine": another crunch-run is at it, or the record is another attempt's by now.
const NOT_OURS: i32 = 76;
/// Between the end of one try and the next. A try itself waits for the API server for minutes.
const REST: Duration = Duration::from_secs(60);

/// So many at once: after a long outage there may be many, and all of them read the disk.
const AT_ONCE: usize = 4;

/// How far the tries are, by container.
#[derive(Debug, Default)]
pub struct Deliveries(Mutex<BTreeMap<ContainerUuid, Try>>);

#[derive(Debug, Clone, Copy)]
enum Try {
    UnderWay,
    /// Ended without success at this moment.
    Later(Instant),
    /// It was told to keep out. Who was at it may have ended in the very moment after that, so it is tried once more.
    OnceMore(Instant),
    /// There is nothing that could be delivered, or not by us.
    Never,
}

impl Deliveries {
    /// Whether what is in the directory of a job that ended like this may still be delivered.
    pub fn may_be_delivered(&self, dir: &JobDir, end: End) -> bool {
        is_left(dir, end) && !matches!(self.tries().get(&dir.container), Some(Try::Never))
    }

    /// Starts a try where one is due. Must be called in the runtime.
    pub fn go_on(self: &Arc<Self>, executor: &Executor, dir: &JobDir, end: End) {
        if !is_left(dir, end) {
            return;
        }
        let Some(again) = self.begin(&dir.container) else {
            return;
        };
        let container = dir.container.clone();
        tracing::info!(%container, directory = %dir.path().display(), "delivering the results that were left on this machine");
        let (resuming, deliveries, dir) = (executor.resume(dir), self.clone(), dir.clone());
        tokio::spawn(async move {
            let next = match resuming.await {
                Ok(Some(0)) => {
                    tracing::info!(%container, "its results are delivered");
                    deliveries.tries().remove(&container);
                    return;
                }
                Ok(Some(77) | None) => Try::Later(Instant::now()),
                // It found another at work there, which a dispatcher before this one may have started.
                Ok(Some(_)) if matches!(dir.sign(), Ok(Sign::Alive(_))) => {
                    Try::Later(Instant::now())
                }
                Ok(Some(NOT_OURS)) if !again => Try::OnceMore(Instant::now()),
                Ok(Some(code)) => {
                    tracing::warn!(%container, code, "its results cannot be delivered from here");
                    Try::Never
                }
                Err(error) => {
                    tracing::warn!(%container, %error, "crunch-run could not be run to deliver its results");
                    Try::Later(Instant::now())
                }
            };
            deliveries.tries().insert(container, next);
        });
    }

    /// Nothing is left of this container's job.
    pub fn forget(&self, container: &ContainerUuid) {
        let mut tries = self.tries();
        if !matches!(tries.get(container), Some(Try::UnderWay)) {
            tries.remove(container);
        }
    }

    /// Whether a try is due, and is under way from now on; if so, whether the one before it was told to keep out.
    fn begin(&self, container: &ContainerUuid) -> Option<bool> {
        let mut tries = self.tries();
        let under_way = tries.values().filter(|t| matches!(t, Try::UnderWay));
        if under_way.count() >= AT_ONCE {
            return None;
        }
        let again = match tries.get(container) {
            None => false,
            Some(Try::Later(ended)) if ended.elapsed() >= REST => false,
            Some(Try::OnceMore(ended)) if ended.elapsed() >= REST => true,
            Some(_) => return None,
        };
        tries.insert(container.clone(), Try::UnderWay);
        Some(again)
    }

    fn tries(&self) -> MutexGuard<'_, BTreeMap<ContainerUuid, Try>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Also where crunch-run was killed when its command had ended already: it had noted what was to be delivered.
fn is_left(dir: &JobDir, end: End) -> bool {
    let may = matches!(end, End::Code(UNDELIVERED) | End::Killed | End::Restarted);
    may && dir.path().join("undelivered.json").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_what_is_left_is_what_counts() {
        let run = tempfile::tempdir().unwrap();
        let dir = JobDir::of(run.path(), &ContainerUuid::generate("zzzzz"));
        std::fs::create_dir(dir.path()).unwrap();
        let deliveries = Deliveries::default();
        for end in [End::Code(UNDELIVERED), End::Killed] {
            assert!(!deliveries.may_be_delivered(&dir, end));
        }
        std::fs::write(dir.path().join("undelivered.json"), "{}").unwrap();
        for (end, expected) in [
            (End::Code(UNDELIVERED), true),
            (End::Killed, true),
            (End::Restarted, true),
            (End::Code(0), false),
            (End::Code(76), false),
        ] {
            assert_eq!(deliveries.may_be_delivered(&dir, end), expected, "{end:?}");
        }
        deliveries.tries().insert(dir.container.clone(), Try::Never);
        assert!(!deliveries.may_be_delivered(&dir, End::Killed));
    }

    #[test]
    fn one_try_at_a_time_and_a_rest_between() {
        let deliveries = Deliveries::default();
        let container = ContainerUuid::generate("zzzzz");
        assert_eq!(deliveries.begin(&container), Some(false));
        assert_eq!(deliveries.begin(&container), None);
        let rested = Instant::now().checked_sub(REST).unwrap();
        for (ended, begun) in [
            (Try::Later(Instant::now()), None),
            (Try::Later(rested), Some(false)),
            (Try::OnceMore(Instant::now()), None),
            (Try::OnceMore(rested), Some(true)),
            (Try::Never, None),
            (Try::UnderWay, None),
        ] {
            deliveries.tries().insert(container.clone(), ended);
            assert_eq!(deliveries.begin(&container), begun, "{ended:?}");
        }
        deliveries.forget(&container);
        assert_eq!(deliveries.begin(&container), None, "it is under way");
        let others = || deliveries.begin(&ContainerUuid::generate("zzzzz"));
        assert_eq!((0..10).filter(|_| others().is_some()).count(), AT_ONCE - 1);
    }
}
