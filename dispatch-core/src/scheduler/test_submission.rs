//! A test of whether the scheduler would accept jobs now, which a scheduler offers that can tell.
//! `rejections` uses it.

use std::time::Duration;

use crate::model::resources::ResourceRequest;

/// Timeout of the command of a test; short, because it delays a submission or the listing.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Tests whether the scheduler would accept jobs with these needs now, without leaving one.
pub trait TestSubmission: Sync {
    /// Time for which the job of an accepted test may still count for the scheduler's limits. Until
    /// then, a job in its place may be rejected.
    const SETTLE_TIME: Duration = Duration::ZERO;

    /// Maximum number of jobs of one test.
    fn max_test_jobs(&self) -> usize;

    /// Tests whether the scheduler would accept this number of jobs, all of them.
    fn test_submission(
        &self,
        needs: &ResourceRequest,
        jobs: usize,
    ) -> impl Future<Output = TestResult> + Send;
}

/// Result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestResult {
    /// The scheduler would accept the jobs.
    Accepted,
    /// The scheduler would reject one of the jobs, and this is why.
    Rejected(String),
    /// The scheduler did not answer.
    Unknown,
}
