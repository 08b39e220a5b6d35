//! Saves the log now and then while the container runs, so that people can look and a lost node costs little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::{Client, ContainerUuid};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Journal, Saver};
use crate::own_record;

/// In one period the log is looked at this often.
const LOOKS: u32 = 360;
/// No more often than this, however short the period is.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
/// A failed save is not repeated before this.
const PAUSE: Duration = Duration::from_secs(60);

/// When an unfinished log is worth a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub period: Duration,
    /// Bytes.
    pub growth: u64,
}

impl Pace {
    fn look(self) -> Duration {
        (self.period / LOOKS).max(SHORTEST_LOOK)
    }

    /// Whether it is time for another save. An unchanged log is never saved again.
    fn is_due(self, size: u64, saved_size: u64, since: Duration) -> bool {
        size != saved_size
            && (since >= self.period || size.saturating_sub(saved_size) >= self.growth)
    }
}

/// Longest wait for a save that is under way at the end; the last save does it again.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until it is ended or dropped.
#[derive(Debug)]
pub struct Checkpoints {
    over: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Checkpoints {
    /// From now on, while the record is Running. `asked` asks for a save at once.
    pub fn start(
        saver: Arc<Saver>,
        client: Client,
        uuid: ContainerUuid,
        asked: Arc<Notify>,
        pace: Pace,
        journal: Journal,
    ) -> Self {
        let over = CancellationToken::new();
        let is_over = over.clone();
        let task = tokio::spawn(async move {
            let mut size = saver.dir().size();
            let mut saved = Instant::now();
            loop {
                let asked = tokio::select! {
                    biased;
                    () = is_over.cancelled() => return,
                    () = asked.notified() => true,
                    () = tokio::time::sleep(pace.look()) => false,
                };
                let now = saver.dir().size();
                if !asked && !pace.is_due(now, size, saved.elapsed()) {
                    continue;
                }
                fail_points::fail_point("run.before-checkpoint");
                let told = async {
                    let log = saver.save().await?;
                    let update = own_record::update(&uuid, &json!({"log": log}));
                    client.send::<Value>(update).await?;
                    Ok::<_, super::SaveError>(())
                };
                match told.await {
                    Ok(()) => (size, saved) = (now, Instant::now()),
                    Err(error) => {
                        journal.say(format!("The log is not saved now: {error}"));
                        tokio::select! {
                            () = tokio::time::sleep(PAUSE) => {}
                            () = is_over.cancelled() => return,
                        }
                    }
                }
            }
        });
        Self {
            over,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// No further save. One that is under way is finished, so that the last one needs to send only what is new, and
    /// so that no older log is told after the last.
    pub async fn end(self) {
        self.over.cancel();
        // Dropped, it is aborted.
        let _ = tokio::time::timeout(END_TIMEOUT, self.task).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_due_after_half_an_hour_or_much_growth() {
        let (soon, late) = (Duration::from_secs(60), Duration::from_secs(1800));
        let growth = 32 << 20;
        let pace = Pace {
            period: late,
            growth,
        };
        assert_eq!(pace.look(), Duration::from_secs(5));
        let cases = [
            (100, 100, late, false),
            (101, 100, soon, false),
            (101, 100, late, true),
            (growth + 99, 100, soon, false),
            (growth + 100, 100, soon, true),
        ];
        for (size, saved, since, expected) in cases {
            assert_eq!(pace.is_due(size, saved, since), expected, "{size} {saved}");
        }
    }
}
