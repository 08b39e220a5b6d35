//! The check of the scheduler's queue: whether it answers, how fast, and whether a probe job runs.

use std::time::{Duration, Instant};

use preflight::Finding;

use super::probe_job::{self, ProbeOptions, ProbeScheduler};
use crate::scheduler::Scheduler;

/// Duration of a listing above which a warning says that it delays every poll.
const SLOW_LISTING: Duration = Duration::from_secs(5);

/// Remedies for problems with the listing of jobs.
#[derive(Debug, Clone, Copy)]
pub struct QueueRemedies {
    /// Remedy if the scheduler does not answer.
    pub silent: &'static str,
    /// Remedy if it takes long.
    pub slow: &'static str,
}

/// Lists the jobs, which runs `command`. If the answer gives no reason to act, and with `test`,
/// also runs a probe job.
pub async fn run<S: Scheduler + ProbeScheduler>(
    scheduler: &S,
    command: &str,
    remedies: QueueRemedies,
    test: Option<ProbeOptions>,
) -> Vec<Finding> {
    let began = Instant::now();
    let listing = scheduler.list_jobs().await;
    let took = began.elapsed();
    let milliseconds = took.as_millis();
    let listed = match listing {
        Err(error) => Finding::fail(command, error.to_string(), remedies.silent),
        Ok(_) if took > SLOW_LISTING => {
            Finding::warn(command, format!("took {milliseconds} ms"), remedies.slow)
        }
        Ok(jobs) => {
            let count = jobs.iter().filter(|job| !job.ended).count();
            let words = format!("answers in {milliseconds} ms, {count} jobs of this dispatcher");
            Finding::ok(command, words)
        }
    };
    let answers = listed.remedy.is_none();
    let mut findings = vec![listed];
    if let (true, Some(test), Some(directory)) = (answers, test, scheduler.state_dir()) {
        findings.extend(probe_job::run(scheduler, directory, &test).await);
    }
    findings
}
