//! Asks HTCondor which slots are in the partitions of containers that wait.
//!
//! Input: names of partitions. Output: whether a slot matches a job that asks for these and for
//! nothing else. The job is never submitted: `condor_submit -dry-run` makes its ad from the lines
//! of every job, and `condor_q -better-analyze` compares it with all slots.

use std::path::Path;
use std::time::Instant;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::test_submission::TEST_TIMEOUT;

use crate::condor::Condor;
use crate::query::better_analyze::{self, MatchVerdict};
use crate::submit::test_job::describe;

/// Number of commands of a question.
const COMMANDS_PER_QUESTION: u32 = 2;
/// What makes a slot match that runs other jobs now, and what the analysis cannot do without.
const NOTHING_ELSE: &str =
    "Owner=\"nobody\"\nRequestCpus=0\nRequestMemory=0\nRequestDisk=0\nRequestGPUs=undefined\n";
/// What `condor_submit` prints first, in some releases without an end of line.
const MESSAGE: &str = "Dry-Run job(s)";

impl Condor {
    /// Whether some slot may be in the partitions of a container.
    pub(crate) fn fit_partitions(&self, needs: &ResourceRequest) -> Admission {
        match self.settings.fit_partitions(needs) {
            Admission::Now if !needs.partitions.is_empty() && !self.settings.pool_grows => {
                self.partition_slots.fit(&needs.partitions, Instant::now())
            }
            admission => admission,
        }
    }

    /// Asks HTCondor about the partitions of containers that wait.
    pub(crate) async fn refresh_partitions(&self) {
        for partitions in self.partition_slots.due(Instant::now()) {
            let verdict = self.ask_for_slots(&partitions).await;
            let now = Instant::now();
            self.partition_slots.answered(&partitions, verdict, now);
        }
    }

    async fn ask_for_slots(&self, partitions: &[String]) -> MatchVerdict {
        self.charge_commands(COMMANDS_PER_QUESTION);
        let needs = ResourceRequest {
            cpus: 1,
            partitions: partitions.to_vec(),
            ..ResourceRequest::default()
        };
        // No container has this name, and nothing reads the directory.
        let container = ContainerUuid::generate("check");
        let attempt = TokenUuid::generate("check");
        let dir = AttemptDir::of(Path::new("/"), &container);
        let Some(description) = describe(&self.settings, &container, &attempt, &needs, &dir, 1)
        else {
            return MatchVerdict::Unknown;
        };
        let submit = Command::new("condor_submit")
            .timeout(TEST_TIMEOUT)
            .args(["-dry-run", "-", "-"])
            .input(description);
        let Ok(answer) = submit.run_checked().await else {
            return MatchVerdict::Unknown;
        };
        better_analyze::of_job_ad(job_ad(&answer.stdout), TEST_TIMEOUT).await
    }
}

/// The job ad that `condor_submit -dry-run` prints between its messages, asking for nothing but the
/// partitions.
fn job_ad(printed: &str) -> String {
    let lines = printed.lines();
    let attributes = lines.map(|line| line.strip_prefix(MESSAGE).unwrap_or(line));
    let attributes = attributes.filter(|line| line.contains('='));
    let mut ad: String = attributes.flat_map(|line| [line, "\n"]).collect();
    ad.push_str(NOTHING_ELSE);
    ad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ad_is_what_stands_between_the_messages() {
        for end in ["\n", ""] {
            let printed =
                format!("Dry-Run job(s){end}ClusterId=1\nA=1\n\n1 job(s) dry-run to cluster 1.\n");
            assert_eq!(
                job_ad(&printed),
                format!("ClusterId=1\nA=1\n{NOTHING_ELSE}")
            );
        }
    }
}
