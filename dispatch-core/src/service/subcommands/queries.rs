//! Queries to the scheduler for a user who waits. Input: the scheduler. Output: its answer, or that
//! there was none in time.

use std::future::Future;
use std::time::Duration;

use crate::model::world::Job;
use crate::scheduler::{Scheduler, SchedulerError};

/// Timeout of one query to the scheduler, because a user waits for the answer.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Lists the jobs, and lets the scheduler find out what admission and pending reasons need. `None`
/// after [`QUESTION_TIMEOUT`].
pub(super) async fn list_jobs(
    scheduler: &impl Scheduler,
) -> Option<Result<Vec<Job>, SchedulerError>> {
    with_timeout(async {
        let jobs = scheduler.list_jobs().await?;
        scheduler.run_upkeep().await;
        Ok(jobs)
    })
    .await
}

/// Why this host cannot submit jobs, if that is so.
pub(super) async fn host_fault(scheduler: &impl Scheduler) -> Option<String> {
    let host = scheduler.submit_host()?;
    with_timeout(host.check(true)).await;
    host.fault()
}

/// The answer to one query, or `None` after [`QUESTION_TIMEOUT`].
pub(super) async fn with_timeout<T>(asked: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(QUESTION_TIMEOUT, asked).await.ok()
}

/// Text for a scheduler that did not answer in time.
pub(super) fn no_reply_text(scheduler: &str) -> String {
    let seconds = QUESTION_TIMEOUT.as_secs();
    format!("{scheduler} did not answer within {seconds} s")
}
