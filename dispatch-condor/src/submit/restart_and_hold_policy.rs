//! Which restarts HTCondor may do by itself, and what it does with a job that it put on hold: lines
//! of a submit description, based on crunch-run's exit status. Pure.
//!
//! Attributes: HTCondor manual, "Job ClassAd Attributes".
//!
//! A start that exited with 75 ran nothing, so HTCondor may start the job on another machine, a few
//! times. After any other end (evicted, lost, held, killed) the job is not started again: it leaves
//! the queue, a job that a person holds when that person releases it. The dispatcher and the API
//! server decide whether the container is retried (docs/evictions.md). If HTCondor starts such a
//! job nevertheless, crunch-run finds the record Running and exits with 76.

use crunch_contract::ExitCode;

use crate::query::pending_reason::HOLD_BY_USER;

/// HTCondor starts the job on another machine after this exit code.
const NEVER_RAN: u8 = ExitCode::NeverRan.code();
/// Time that a restarted job may wait for another machine; then the container returns to the queue.
const REMATCH_TIMEOUT_SECONDS: u64 = 300;
/// Maximum number of shadow starts that do not lead to a start of the job.
const MAX_SHADOW_STARTS: u32 = 10;
/// Time that a running job continues while its submit machine is down.
const JOB_LEASE_SECONDS: u32 = 2400;

/// Condition: a start of the job was not followed by an exit of its own. An exit with 75 is one.
const MAY_HAVE_RUN: &str = "(NumJobStarts ?: 0) > (NumJobCompletions ?: 0)";

/// Maximum number of starts of a job, the first one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxStarts(pub u32);

impl MaxStarts {
    /// The lines except `requirements`. `grace` is the number of seconds between TERM and KILL, in
    /// which crunch-run saves results.
    pub fn lines(self, grace: u64) -> Vec<String> {
        let starts = self.0.max(1);
        // Somebody who holds a running job keeps its container away until the release.
        let waits_or_held =
            format!("(JobStatus == 1 || JobStatus == 5 && HoldReasonCode =!= {HOLD_BY_USER})");
        let moves = format!(
            "JobStatus == 1 && (NumJobStarts ?: 0) > 0 && time() - EnteredCurrentStatus > {REMATCH_TIMEOUT_SECONDS}"
        );
        let tries =
            format!("(NumJobStarts ?: 0) == 0 && (NumShadowStarts ?: 0) > {MAX_SHADOW_STARTS}");
        vec![
            format!(
                "on_exit_remove = ExitBySignal =!= false || ExitCode =!= {NEVER_RAN} || NumJobStarts >= {starts}"
            ),
            format!("periodic_remove = {waits_or_held} && {MAY_HAVE_RUN} || {moves} || {tries}"),
            format!("job_lease_duration = {JOB_LEASE_SECONDS}"),
            "kill_sig = SIGTERM".to_owned(),
            "want_graceful_removal = true".to_owned(),
            format!("job_max_vacate_time = {grace}"),
        ]
    }
}

/// The requirements of a job: not after a start that may have run the container, not on the last
/// node, and not on the nodes in `avoid`. An admin's requirements are combined with these.
pub fn requirements(avoid: &[String]) -> String {
    let machines = avoid.iter().map(|node| {
        let node = node.replace(['"', '\\'], "");
        format!("TARGET.Machine =!= \"{node}\"")
    });
    let all: Vec<String> = [
        // Not `!(…)`: HTCondor's analysis misreads it.
        "(NumJobStarts ?: 0) <= (NumJobCompletions ?: 0)".to_owned(),
        // LastRemoteHost is like `slot1_2@machine`.
        "stringListIMember(TARGET.Machine, LastRemoteHost ?: \"\", \"@\") =!= true".to_owned(),
    ]
    .into_iter()
    .chain(machines)
    .collect();
    format!("requirements = {}", all.join(" && "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_never_ran_stays_in_the_queue() {
        let lines = MaxStarts(3).lines(60);
        let exit =
            "on_exit_remove = ExitBySignal =!= false || ExitCode =!= 75 || NumJobStarts >= 3";
        assert!(lines.iter().any(|line| line == exit), "{lines:?}");
        assert!(MaxStarts(0).lines(60)[0].ends_with("NumJobStarts >= 1"));
    }

    #[test]
    fn machines_to_avoid_are_no_place_for_it() {
        let line = requirements(&["n1.example".into(), "n\"2".into()]);
        let end = r#" && TARGET.Machine =!= "n1.example" && TARGET.Machine =!= "n2""#;
        assert!(line.ends_with(end), "{line}");
        assert!(
            line.starts_with("requirements = (NumJobStarts ?: 0) <= (NumJobCompletions ?: 0) && "),
            "{line}"
        );
    }
}
