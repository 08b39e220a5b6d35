//! The last steps of a controller that stops.
//!
//! Input: the tasks under way. Output: their results, as far as they come soon, and unlocked
//! containers. Whatever is left undone is found by the next start, as after a crash.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;

use super::Controller;
use super::running_tasks::RunningTasks;
use crate::api::Api;
use crate::api::log_writer::ApiLog;
use crate::observe::change_feed::ChangeFeed;
use crate::scheduler::Scheduler;

/// Time limit for the tasks under way at shutdown. This and the next ones together are less than
/// the 30 seconds after which systemd kills the service.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(12);
/// Time limit for unlocking unsubmitted containers at shutdown.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of concurrent unlocks at shutdown.
const MAX_CONCURRENT_UNLOCKS: usize = 8;

impl<A: Api, S: Scheduler> Controller<A, S> {
    /// Waits a short time for running tasks, then unlocks what was locked and not submitted. The
    /// next start finds out how the other tasks ended.
    pub(super) async fn drain(
        &mut self,
        mut tasks: RunningTasks,
        changes: &ChangeFeed,
        api_log: &ApiLog,
    ) {
        self.draining = true;
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while let Ok(Some(done)) = tokio::time::timeout_at(deadline, tasks.next()).await {
            self.on_task_done(done, changes, api_log);
        }
        if !tasks.is_empty() {
            tracing::warn!(
                event = "drain_incomplete",
                "the API server or the scheduler has not answered; the next start finds out what came of it"
            );
        }
        let unlocked = self.release_unsubmitted(api_log);
        let _ = tokio::time::timeout(UNLOCK_TIMEOUT, unlocked).await;
    }

    async fn release_unsubmitted(&mut self, api_log: &ApiLog) {
        let runner = self.runner.clone();
        let tasks = self.reconciler.drain_tasks().into_iter();
        let mut unlocked =
            stream::iter(tasks.map(|task| runner.run(task))).buffered(MAX_CONCURRENT_UNLOCKS);
        while let Some(results) = unlocked.next().await {
            for (_, result) in results {
                self.emit(result.events, api_log);
            }
        }
    }
}
