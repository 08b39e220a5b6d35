//! Delivers results that an attempt left in its job directory, by `crunch-run resume`.
//!
//! Input: job directories with an undelivered record. A delivery that fails is retried after a
//! cool-down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use crunch_contract::ExitCode;
use crunch_contract::job_dir::UNDELIVERED_FILE;
use parking_lot::Mutex;

use crate::crunch_run::CrunchRun;
use crate::job_dir::{CrunchRunExit, JobDir, JobStatus};

/// Interval between the end of a delivery and the next try. A delivery itself waits minutes for the
/// API server.
const DELIVERY_COOLDOWN: Duration = Duration::from_secs(60);

/// Maximum number of concurrent deliveries. After a long outage there may be many, and each reads
/// the disk.
const MAX_CONCURRENT_DELIVERIES: usize = 4;

/// The state of deliveries, by container.
#[derive(Debug, Default)]
pub struct Redeliveries(Mutex<BTreeMap<ContainerUuid, DeliveryTry>>);

#[derive(Debug, Clone, Copy)]
enum DeliveryTry {
    Running,
    /// Failed at this moment; retried after the cool-down.
    Retry(Instant),
    /// `crunch-run resume` refused at this moment, because another process owned the directory.
    /// That process may have ended right after, so there is one more try.
    RetryOnce(Instant),
    /// Nothing can be delivered from here.
    GivenUp,
}

impl Redeliveries {
    /// Whether the directory of a job with this exit holds results that may still be delivered.
    pub fn is_deliverable(&self, dir: &JobDir, exit: CrunchRunExit) -> bool {
        has_undelivered_results(dir, exit)
            && !matches!(
                self.0.lock().get(&dir.container),
                Some(DeliveryTry::GivenUp)
            )
    }

    /// Starts a delivery if there are results and a try is due. Must be called within the tokio
    /// runtime.
    pub fn poll(self: &Arc<Self>, crunch_run: &CrunchRun, dir: &JobDir, exit: CrunchRunExit) {
        if !has_undelivered_results(dir, exit) {
            return;
        }
        let Some(was_refused) = self.begin(&dir.container) else {
            return;
        };
        let container = dir.container.clone();
        tracing::info!(%container, directory = %dir.path().display(), "delivering the results that were left on this machine");
        let (resuming, redeliveries, dir) = (crunch_run.resume(dir), self.clone(), dir.clone());
        tokio::spawn(async move {
            let next = match resuming.await {
                Ok(Some(0)) => {
                    tracing::info!(%container, "the results of the container are delivered");
                    redeliveries.0.lock().remove(&container);
                    return;
                }
                Ok(Some(code)) if is(code, ExitCode::Undelivered) => {
                    DeliveryTry::Retry(Instant::now())
                }
                Ok(None) => DeliveryTry::Retry(Instant::now()),
                // Another process works there. An earlier dispatcher may have started it.
                Ok(Some(_)) if matches!(dir.status(), Ok(JobStatus::Alive(_))) => {
                    DeliveryTry::Retry(Instant::now())
                }
                Ok(Some(code)) if is(code, ExitCode::NotOurs) && !was_refused => {
                    DeliveryTry::RetryOnce(Instant::now())
                }
                Ok(Some(code)) => {
                    tracing::warn!(%container, code, "crunch-run cannot deliver the results of the container from here; giving up");
                    DeliveryTry::GivenUp
                }
                Err(error) => {
                    tracing::warn!(%container, %error, "could not run crunch-run to deliver the results of the container; will retry");
                    DeliveryTry::Retry(Instant::now())
                }
            };
            redeliveries.0.lock().insert(container, next);
        });
    }

    /// Drops the state of a container whose directory is about to be removed. A running delivery
    /// keeps it.
    pub fn forget(&self, container: &ContainerUuid) {
        let mut tries = self.0.lock();
        if !matches!(tries.get(container), Some(DeliveryTry::Running)) {
            tries.remove(container);
        }
    }

    /// Marks a try as running if one is due. Then returns whether the try before it was refused.
    fn begin(&self, container: &ContainerUuid) -> Option<bool> {
        let mut tries = self.0.lock();
        let running = tries.values().filter(|t| matches!(t, DeliveryTry::Running));
        if running.count() >= MAX_CONCURRENT_DELIVERIES {
            return None;
        }
        let was_refused = match tries.get(container) {
            None => false,
            Some(DeliveryTry::Retry(ended)) if ended.elapsed() >= DELIVERY_COOLDOWN => false,
            Some(DeliveryTry::RetryOnce(ended)) if ended.elapsed() >= DELIVERY_COOLDOWN => true,
            Some(_) => return None,
        };
        tries.insert(container.clone(), DeliveryTry::Running);
        Some(was_refused)
    }
}

fn is(code: i32, expected: ExitCode) -> bool {
    ExitCode::from_status(code.into()) == Some(expected)
}

/// Whether the directory holds an undelivered record. A killed crunch-run counts, too: it may have
/// written the record after its command ended.
fn has_undelivered_results(dir: &JobDir, exit: CrunchRunExit) -> bool {
    let may_have = exit.is(ExitCode::Undelivered)
        || matches!(
            exit,
            CrunchRunExit::Killed | CrunchRunExit::MachineRestarted
        );
    may_have && dir.path().join(UNDELIVERED_FILE).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_what_is_left_is_what_counts() {
        let run = tempfile::tempdir().unwrap();
        let dir = JobDir::of(run.path(), &ContainerUuid::generate("zzzzz"));
        std::fs::create_dir(dir.path()).unwrap();
        let redeliveries = Redeliveries::default();
        for end in [CrunchRunExit::Code(77), CrunchRunExit::Killed] {
            assert!(!redeliveries.is_deliverable(&dir, end));
        }
        std::fs::write(dir.path().join(UNDELIVERED_FILE), "{}").unwrap();
        for (end, expected) in [
            (CrunchRunExit::Code(77), true),
            (CrunchRunExit::Killed, true),
            (CrunchRunExit::MachineRestarted, true),
            (CrunchRunExit::Code(0), false),
            (CrunchRunExit::Code(76), false),
        ] {
            assert_eq!(redeliveries.is_deliverable(&dir, end), expected, "{end:?}");
        }
        redeliveries
            .0
            .lock()
            .insert(dir.container.clone(), DeliveryTry::GivenUp);
        assert!(!redeliveries.is_deliverable(&dir, CrunchRunExit::Killed));
    }

    #[test]
    fn one_try_at_a_time_and_a_rest_between() {
        let redeliveries = Redeliveries::default();
        let container = ContainerUuid::generate("zzzzz");
        assert_eq!(redeliveries.begin(&container), Some(false));
        assert_eq!(redeliveries.begin(&container), None);
        let rested = Instant::now().checked_sub(DELIVERY_COOLDOWN).unwrap();
        for (ended, begun) in [
            (DeliveryTry::Retry(Instant::now()), None),
            (DeliveryTry::Retry(rested), Some(false)),
            (DeliveryTry::RetryOnce(Instant::now()), None),
            (DeliveryTry::RetryOnce(rested), Some(true)),
            (DeliveryTry::GivenUp, None),
            (DeliveryTry::Running, None),
        ] {
            redeliveries.0.lock().insert(container.clone(), ended);
            assert_eq!(redeliveries.begin(&container), begun, "{ended:?}");
        }
        redeliveries.forget(&container);
        assert_eq!(redeliveries.begin(&container), None, "it is under way");
        let others = || redeliveries.begin(&ContainerUuid::generate("zzzzz"));
        assert_eq!(
            (0..10).filter(|_| others().is_some()).count(),
            MAX_CONCURRENT_DELIVERIES - 1
        );
    }
}
