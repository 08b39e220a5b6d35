//! Saves the log now and then while the container runs, so that people can look and a lost node costs little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::{Client, ContainerUuid};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{Journal, Saver};

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

/// Runs until it is dropped.
#[derive(Debug)]
pub struct Checkpoints {
    _task: AbortOnDropHandle<()>,
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
        let task = tokio::spawn(async move {
            let mut size = saver.dir().size();
            let mut saved = Instant::now();
            loop {
                let asked = tokio::select! {
                    () = asked.notified() => true,
                    () = tokio::time::sleep(pace.look()) => false,
                };
                let now = saver.dir().size();
                if !asked && !pace.is_due(now, size, saved.elapsed()) {
                    continue;
                }
                fail_points::fail_point("run.before-checkpoint");
                let told = async {
                    let log = saver.save(false).await?;
                    client.update_container(&uuid, json!({"log": log})).await?;
                    Ok::<_, super::SaveError>(())
                };
                match told.await {
                    Ok(()) => (size, saved) = (now, Instant::now()),
                    Err(error) => {
                        journal.say(format!("The log is not saved now: {error}"));
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
        Self {
            _task: AbortOnDropHandle::new(task),
        }
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
