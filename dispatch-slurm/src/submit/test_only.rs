//! Tests by `sbatch --test-only` whether Slurm would accept a job: sbatch(1).

use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::command::{Command, CommandFailure};
use dispatch_core::scheduler::test_submission::{TEST_TIMEOUT, TestResult, TestSubmission};

use crate::job_comment;
use crate::query::partition_times::PartitionTimes;
use crate::settings::Settings;
use crate::slurm::Slurm;
use crate::submit::sbatch::{ROOM_TO_RAISE, SbatchJob};

impl TestSubmission for Slurm {
    async fn test_submission(&self, needs: &ResourceRequest) -> TestResult {
        let times = self.capacity.times(needs);
        match test_command(&self.settings, needs, times) {
            Some(command) => run_test(command).await,
            None => TestResult::Unknown,
        }
    }
}

/// Tests whether Slurm would accept a small job with these arguments besides those of every job.
pub async fn test_arguments(settings: &Settings, arguments: &[String]) -> TestResult {
    let mut settings = settings.clone();
    settings.owner_map = None;
    settings.arguments.extend_from_slice(arguments);
    let needs = ResourceRequest {
        cpus: 1,
        ram: 64 << 20,
        ..ResourceRequest::default()
    };
    match test_command(&settings, &needs, PartitionTimes::default()) {
        Some(command) => run_test(command).await,
        None => TestResult::Unknown,
    }
}

async fn run_test(command: Command) -> TestResult {
    match command.timeout(TEST_TIMEOUT).run_checked().await {
        Ok(answer) => classify_answer(&answer.stdout, &answer.stderr),
        Err(failure) => classify_failure(&failure),
    }
}

/// Slurm says on stderr when the job would start. A site's own command may refuse it on stdout,
/// with exit status 0.
fn classify_answer(stdout: &str, stderr: &str) -> TestResult {
    match stdout.trim() {
        "" => TestResult::Accepted,
        _ if stderr.contains(" to start at ") => TestResult::Accepted,
        text => TestResult::Rejected(one_line(text)),
    }
}

fn test_command(
    settings: &Settings,
    needs: &ResourceRequest,
    times: PartitionTimes,
) -> Option<Command> {
    // No container has this name.
    let container = ContainerUuid::generate("check");
    // As that of a job, because a site's plugin may read it.
    let comment = job_comment::write(&TokenUuid::generate("check"), "test", needs.charged_owner());
    let job = SbatchJob {
        container: &container,
        needs,
        comment: &comment,
        output: Path::new("/dev/null"),
        avoid: &[],
        nice: ROOM_TO_RAISE,
        times,
    };
    let arguments = settings.sbatch_arguments(job).ok()?;
    let command = settings.sbatch_command(arguments, "#!/bin/sh\n".to_owned());
    Some(command.args(["--test-only"]))
}

fn classify_failure(failure: &CommandFailure) -> TestResult {
    let unreachable = ["contact slurm controller", "timed out"];
    match failure {
        CommandFailure::Failed(message)
            if !unreachable.iter().any(|words| message.contains(words)) =>
        {
            TestResult::Rejected(one_line(message))
        }
        _ => TestResult::Unknown,
    }
}

/// Joins the lines and removes the prefixes of sbatch.
pub fn one_line(message: &str) -> String {
    let lines = message.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("sbatch: error: ").unwrap_or(line);
        let line = line
            .strip_prefix("Batch job submission failed: ")
            .unwrap_or(line);
        line.strip_prefix("allocation failure: ").unwrap_or(line)
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_says_something_else_is_a_refusal() {
        let refused = "Job not submitted: the budget is spent";
        let starts = "sbatch: Job 7 to start at 2026-11-28T20:00:00 using 1 processors";
        for (stdout, stderr, expected) in [
            ("", "", TestResult::Accepted),
            ("a greeting", starts, TestResult::Accepted),
            (refused, "", TestResult::Rejected(refused.to_owned())),
        ] {
            assert_eq!(classify_answer(stdout, stderr), expected, "{stdout}");
        }
    }

    #[test]
    fn a_slurmctld_that_is_down_rejects_nothing() {
        let message = |text: &str| classify_failure(&CommandFailure::Failed(text.into()));
        let limit = "sbatch: error: AssocMaxSubmitJobLimit\nallocation failure: Job violates accounting/QOS policy";
        let words = "AssocMaxSubmitJobLimit; Job violates accounting/QOS policy";
        assert_eq!(message(limit), TestResult::Rejected(words.into()));
        for away in [
            "allocation failure: Unable to contact slurm controller (connect failure)",
            "allocation failure: Socket timed out on send/recv operation",
        ] {
            assert_eq!(message(away), TestResult::Unknown);
        }
    }
}
