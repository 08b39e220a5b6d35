//! Tests whether HTCondor would accept jobs: submits some that are on hold, and removes them.
//!
//! `condor_submit -dry-run` does not ask the schedd, whose limits and requirements decide.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use arvados_client::{ContainerUuid, Token, TokenUuid};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::scheduler::command::{Command, CommandFailure};
use dispatch_core::scheduler::submit_command::parse_job_id;
use dispatch_core::scheduler::test_submission::{TEST_TIMEOUT, TestResult, TestSubmission};

use crate::condor::Condor;
use crate::error::{SubmitFault, classify, summarize};
use crate::submit::description::{Item, Settings};

/// Maximum number of jobs of one test.
const MAX_TEST_JOBS: usize = 8;
/// Number of commands of a test.
const COMMANDS_PER_TEST: u32 = 2;
/// Seconds after which HTCondor itself removes a test job.
const MAX_TEST_JOB_SECONDS: u32 = 60;
/// Instance id of test jobs, which is no dispatcher's.
const INSTANCE_ID: &str = "test";

impl TestSubmission for Condor {
    /// A removed job counts for `MAX_JOBS_PER_OWNER` for some two seconds (HTCondor 23.9).
    const SETTLE_TIME: Duration = Duration::from_secs(4);

    fn max_test_jobs(&self) -> usize {
        MAX_TEST_JOBS
    }

    async fn test_submission(&self, needs: &ResourceRequest, jobs: usize) -> TestResult {
        // No container has this name.
        let container = ContainerUuid::generate("check");
        let dir = AttemptDir::of(&self.test_jobs_dir(), &container);
        let result = self.submit_test_jobs(&container, &dir, needs, jobs).await;
        dir.remove_logged().await;
        result
    }
}

impl Condor {
    /// The directory of the directories of test jobs.
    fn test_jobs_dir(&self) -> PathBuf {
        self.state_dir.path().join("test-jobs")
    }

    /// Removes what a dispatcher left that was killed during a test.
    pub(crate) fn remove_test_jobs_dir(&self) {
        let dir = self.test_jobs_dir();
        if let Err(error) = host_state::file::remove_tree(&dir) {
            tracing::warn!(directory = %dir.display(), %error, "could not remove what tests of submissions left");
        }
    }

    /// Whether a failure that may be an outage is a refusal: an outage would stop other commands
    /// too.
    pub(crate) async fn rejects(&self, failure: &CommandFailure) -> bool {
        matches!(failure, CommandFailure::Failed(_)) && self.answers().await
    }

    async fn submit_test_jobs(
        &self,
        container: &ContainerUuid,
        dir: &AttemptDir,
        needs: &ResourceRequest,
        jobs: usize,
    ) -> TestResult {
        let attempt = TokenUuid::generate("check");
        let create = {
            let attempt = attempt.clone();
            let home = self.test_jobs_dir();
            move |dir: &AttemptDir| {
                DirBuilder::new().recursive(true).mode(0o700).create(home)?;
                dir.create_for(&attempt, &Token::new("none").into())
            }
        };
        if dir.with_timeout(create).await.is_err() {
            return TestResult::Unknown;
        }
        let Some(description) = describe(&self.settings, container, &attempt, needs, dir, jobs)
        else {
            return TestResult::Unknown;
        };
        self.charge_commands(COMMANDS_PER_TEST);
        let submit = Command::new("condor_submit")
            .timeout(TEST_TIMEOUT)
            .args(["-terse", "-"])
            .input(description);
        let failure = match submit.run_checked().await {
            Ok(answer) => {
                let jobs = match parse_job_id(&answer, " - ") {
                    Ok(first) => first.split('.').next().unwrap_or_default().to_owned(),
                    Err(words) => return TestResult::Rejected(summarize(&words.to_string())),
                };
                let remove = Command::new("condor_rm").timeout(TEST_TIMEOUT).args([jobs]);
                if let Err(failure) = remove.run_checked().await {
                    tracing::debug!(%failure, "HTCondor removes a test job itself");
                }
                return TestResult::Accepted;
            }
            Err(failure) => failure,
        };
        match classify(&failure) {
            SubmitFault::Jobs | SubmitFault::Full => {
                TestResult::Rejected(summarize(&failure.to_string()))
            }
            SubmitFault::Schedd | SubmitFault::Unknown => match self.rejects(&failure).await {
                true => TestResult::Rejected(summarize(&failure.to_string())),
                false => TestResult::Unknown,
            },
        }
    }
}

/// The description of jobs that are on hold and never run. None if there is none for these needs.
pub(crate) fn describe(
    settings: &Settings,
    container: &ContainerUuid,
    attempt: &TokenUuid,
    needs: &ResourceRequest,
    dir: &AttemptDir,
    jobs: usize,
) -> Option<String> {
    let item = Item {
        container,
        attempt,
        needs,
        owner: needs.charged_owner(),
        dir: dir.path(),
    };
    let event_log = dir.path().join("events.log");
    let text = settings.describe_trial(INSTANCE_ID, &event_log, item, jobs);
    let text = text.ok()?;
    // The last line of a key counts.
    let (lines, jobs) = text.split_at(text.find("\nqueue ")?);
    Some(format!(
        "{lines}\nhold = true\nperiodic_remove = time() - QDate > {MAX_TEST_JOB_SECONDS}{jobs}"
    ))
}

#[cfg(test)]
mod tests {
    use dispatch_core::service::state_dir::StateDir;

    use super::*;

    #[test]
    fn a_service_removes_what_a_killed_one_left_of_its_tests() {
        let home = tempfile::tempdir().unwrap();
        let condor = || {
            let state_dir = StateDir::acquire(home.path()).unwrap();
            let timeout = TEST_TIMEOUT;
            Condor::new(Settings::default(), state_dir, "me".into(), timeout)
        };
        let left = home.path().join("test-jobs/check-dz642-000000000000000");
        std::fs::create_dir_all(&left).unwrap();
        drop(condor());
        assert!(left.exists());
        drop(condor().with_monitoring());
        assert!(!left.exists());
    }

    #[test]
    fn a_test_job_is_on_hold_and_removed_if_nobody_does() {
        let home = tempfile::tempdir().unwrap();
        let (container, attempt) = (
            ContainerUuid::generate("check"),
            TokenUuid::generate("check"),
        );
        let dir = AttemptDir::of(home.path(), &container);
        let settings = Settings {
            crunch_run: vec!["/opt/crunch-run".into()],
            ..Settings::default()
        };
        let needs = ResourceRequest::default();
        let text = describe(&settings, &container, &attempt, &needs, &dir, 1).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let position = |begin: &str| lines.iter().rposition(|line| line.starts_with(begin));
        let queue = position("queue ").unwrap();
        assert!(position("hold = true").unwrap() < queue, "{text}");
        assert!(position("periodic_remove = time() - QDate > 60").unwrap() < queue);
        assert_eq!(
            position("periodic_remove"),
            position("periodic_remove = time()")
        );
        assert!(lines.contains(&"+ContainerDispatcher = \"test\""), "{text}");
    }
}
