//! Tests by `sbatch --test-only` whether Slurm would accept a job: sbatch(1).

use std::path::Path;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::command::{Command, CommandFailure};
use dispatch_core::scheduler::test_submission::{TEST_TIMEOUT, TestResult, TestSubmission};

use crate::job_comment;
use crate::query::partition_times::PartitionTimes;
use crate::settings::Settings;
use crate::slurm::Slurm;
use crate::submit::job_array::ArrayLimit;
use crate::submit::sbatch::{ROOM_TO_RAISE, SbatchJob};

/// What a test says if no node can ever run the job, or none can now: all are down or drained, or
/// have not registered since slurmctld started.
pub const NO_NODE_NOW: &str = "Requested node configuration is not available";
/// States of nodes that can run jobs, as sinfo(1) shows them.
const USABLE_STATES: [&str; 4] = ["idle", "mixed", "allocated", "completing"];
/// Maximum number of jobs of one test.
const MAX_TEST_JOBS: usize = 32;

impl TestSubmission for Slurm {
    /// An array counts as its elements.
    fn max_test_jobs(&self) -> usize {
        match *self.array_limit.lock() {
            ArrayLimit::AtMost(elements) => elements.min(MAX_TEST_JOBS),
            ArrayLimit::Unused | ArrayLimit::Unknown => MAX_TEST_JOBS,
        }
    }

    async fn test_submission(&self, needs: &ResourceRequest, jobs: usize) -> TestResult {
        let times = self.capacity.times(needs);
        match run_test(&self.settings, needs, times, jobs).await {
            // A job is accepted nevertheless, and waits for the nodes.
            TestResult::Rejected(words)
                if words.contains(NO_NODE_NOW)
                    && !self
                        .has_usable_node(&self.capacity.partitions_of(needs))
                        .await =>
            {
                TestResult::Accepted
            }
            answer => answer,
        }
    }
}

impl Slurm {
    /// Whether a node of these partitions, or of any if none is named, could run a job now. If that
    /// is not known, there is one.
    async fn has_usable_node(&self, partitions: &[String]) -> bool {
        let sinfo = self.settings.client("sinfo").timeout(TEST_TIMEOUT);
        let mut sinfo = sinfo.args(["--noheader", "--format=%T"]);
        if !partitions.is_empty() {
            sinfo = sinfo.args([format!("--partition={}", partitions.join(","))]);
        }
        match sinfo.run_checked().await {
            Ok(answer) => answer.stdout.lines().any(is_usable),
            Err(_) => true,
        }
    }
}

/// Whether a node in this state can run jobs: "*" is appended if it does not respond.
fn is_usable(state: &str) -> bool {
    let state = state.trim();
    !state.ends_with('*') && USABLE_STATES.iter().any(|usable| state.starts_with(usable))
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
    run_test(&settings, &needs, PartitionTimes::default(), 1).await
}

async fn run_test(
    settings: &Settings,
    needs: &ResourceRequest,
    times: PartitionTimes,
    jobs: usize,
) -> TestResult {
    let Some(mut command) = test_command(settings, needs, times) else {
        return TestResult::Unknown;
    };
    if jobs > 1 {
        command = command.args([format!("--array=0-{}", jobs - 1)]);
    }
    match command.timeout(TEST_TIMEOUT).run_checked().await {
        Ok(answer) => classify_answer(&answer.stdout, &answer.stderr),
        // A site's rule may use the words of an outage. The outage would stop other commands too.
        Err(CommandFailure::Failed(words))
            if !is_like_outage(&words) || answers(settings, TEST_TIMEOUT).await =>
        {
            TestResult::Rejected(one_line(&words))
        }
        Err(_) => TestResult::Unknown,
    }
}

/// Whether slurmctld answers within this time.
pub async fn answers(settings: &Settings, timeout: Duration) -> bool {
    let user = rustix::process::getuid().as_raw().to_string();
    let squeue = settings.client("squeue").timeout(timeout);
    let squeue = squeue.args(["--noheader", "--format=%i", "--user", &user]);
    squeue.run_checked().await.is_ok()
}

/// Slurm says on stderr when the job would start, unless it is told to be quiet. A site's own
/// command may refuse it on stdout, or by an error on stderr, with exit status 0.
fn classify_answer(stdout: &str, stderr: &str) -> TestResult {
    match (stdout.trim(), stderr.trim()) {
        (_, says) if says.contains(" to start at ") => TestResult::Accepted,
        ("", says) if !says.contains("error: ") => TestResult::Accepted,
        ("", error) => TestResult::Rejected(one_line(error)),
        (text, _) => TestResult::Rejected(one_line(text)),
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

/// Whether these may be the words of a client that slurmctld does not answer.
pub fn is_like_outage(words: &str) -> bool {
    ["contact slurm controller", "timed out"]
        .iter()
        .any(|phrase| words.contains(phrase))
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
            ("", "sbatch: warning: quiet", TestResult::Accepted),
            (refused, "", TestResult::Rejected(refused.to_owned())),
            (
                "",
                "sbatch: error: no budget",
                TestResult::Rejected("no budget".to_owned()),
            ),
        ] {
            assert_eq!(classify_answer(stdout, stderr), expected, "{stdout}");
        }
    }

    #[test]
    fn nodes_that_are_drained_or_do_not_respond_run_no_job() {
        let usable = ["idle", "mixed-", "allocated ", "idle~", "completing"];
        let others = [
            "idle*", "drained", "draining", "down", "unknown*", "maint", "",
        ];
        assert!(usable.into_iter().all(is_usable));
        assert!(!others.into_iter().any(is_usable));
    }

    #[test]
    fn what_a_slurmctld_says_is_told_from_what_its_clients_say_without_it() {
        let limit = "sbatch: error: AssocMaxSubmitJobLimit\nallocation failure: Job violates accounting/QOS policy";
        let words = "AssocMaxSubmitJobLimit; Job violates accounting/QOS policy";
        assert_eq!(one_line(limit), words);
        for (words, expected) in [
            (limit, false),
            (
                "allocation failure: Unable to contact slurm controller (connect failure)",
                true,
            ),
            (
                "allocation failure: Socket timed out on send/recv operation",
                true,
            ),
        ] {
            assert_eq!(is_like_outage(words), expected, "{words}");
        }
    }
}
