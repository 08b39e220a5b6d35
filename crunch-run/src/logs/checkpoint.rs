//! Saves the log periodically while the container runs, so that users can read it and a lost node
//! costs little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::{Client, ContainerUuid};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{LogUploader, RunLog};
use crate::own_record;

/// Number of size checks in one save period.
const POLLS_PER_PERIOD: u32 = 360;
/// Minimum interval between two size checks.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between a failed save and the next one.
const FAILED_SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// When the log of a running container is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavePolicy {
    pub period: Duration,
    /// Bytes.
    pub growth: u64,
}

impl SavePolicy {
    fn poll_interval(self) -> Duration {
        (self.period / POLLS_PER_PERIOD).max(MIN_POLL_INTERVAL)
    }

    /// Whether a save is due. An unchanged log is never saved again.
    fn is_due(self, size: u64, saved_size: u64, since: Duration) -> bool {
        size != saved_size
            && (since >= self.period || size.saturating_sub(saved_size) >= self.growth)
    }
}

/// Timeout of a save in progress when the command ends; the last save repeats it.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Periodic saves in the background. They end when this is stopped or dropped.
#[derive(Debug)]
pub struct Checkpoints {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Checkpoints {
    /// Starts periodic saves while the record is Running. `save_requested` requests a save at once.
    pub fn start(
        uploader: Arc<LogUploader>,
        client: Client,
        uuid: ContainerUuid,
        save_requested: Arc<Notify>,
        policy: SavePolicy,
        run_log: RunLog,
    ) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut size = uploader.dir().size();
            let mut saved = Instant::now();
            loop {
                let save_requested = tokio::select! {
                    biased;
                    () = stopped.cancelled() => return,
                    () = save_requested.notified() => true,
                    () = tokio::time::sleep(policy.poll_interval()) => false,
                };
                let now = uploader.dir().size();
                if !save_requested && !policy.is_due(now, size, saved.elapsed()) {
                    continue;
                }
                fail_points::fail_point("run.before-checkpoint");
                let save = async {
                    let log = uploader.save().await?;
                    let update = own_record::update(&uuid, &json!({"log": log}));
                    client.send::<Value>(update).await?;
                    Ok::<_, super::SaveError>(())
                };
                match save.await {
                    Ok(()) => (size, saved) = (now, Instant::now()),
                    Err(error) => {
                        run_log.write(format!(
                            "Could not save the log of the running container: {error}"
                        ));
                        tokio::select! {
                            () = tokio::time::sleep(FAILED_SAVE_INTERVAL) => {}
                            () = stopped.cancelled() => return,
                        }
                    }
                }
            }
        });
        Self {
            stop,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Stops periodic saves. A save in progress is completed, so that no older log is recorded
    /// after the last one.
    pub async fn stop(self) {
        self.stop.cancel();
        // Dropping the handle aborts the task.
        let _ = tokio::time::timeout(STOP_TIMEOUT, self.task).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_due_after_half_an_hour_or_much_growth() {
        let (soon, late) = (Duration::from_secs(60), Duration::from_secs(1800));
        let growth = 32 << 20;
        let policy = SavePolicy {
            period: late,
            growth,
        };
        assert_eq!(policy.poll_interval(), Duration::from_secs(5));
        let cases = [
            (100, 100, late, false),
            (101, 100, soon, false),
            (101, 100, late, true),
            (growth + 99, 100, soon, false),
            (growth + 100, 100, soon, true),
        ];
        for (size, saved, since, expected) in cases {
            assert_eq!(
                policy.is_due(size, saved, since),
                expected,
                "{size} {saved}"
            );
        }
    }
}
