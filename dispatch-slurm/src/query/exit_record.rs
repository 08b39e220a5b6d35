//! Parses how a job ended, and describes it in a sentence. Pure.
//!
//! Input: lines of `squeue --states=all`, of `sacct`, and of `scontrol show job` for an exit
//! status. Output: an [`ExitRecord`].

use arvados_client::TokenUuid;
use crunch_contract::ExitCode;
use dispatch_core::scheduler::{Eviction, ExitCause};

use crate::query::squeue::{JobPhase, job_phase};

/// Job id, state, reason, nodes, comment.
pub const SQUEUE_FORMAT: &str = "%i|%T|%r|%N|%k";
/// Fields of `sacct --parsable2`.
pub const SACCT_FORMAT: &str = "JobID,State,ExitCode,NodeList,Comment";

/// Slurm's reason for a job whose script could not be started.
const LAUNCH_FAILURE: &str = "JobLaunchFailure";

/// What Slurm has on the end of an attempt's job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExitRecord {
    /// Job id.
    pub job: String,
    /// State, as Slurm names it.
    pub state: String,
    /// Reason, as Slurm names it.
    pub reason: String,
    /// Node of the job; a container runs on one node only.
    pub node: Option<String>,
    /// Exit status of crunch-run; 128 plus the signal if it was killed.
    pub status: Option<i64>,
    /// Uid of the user who cancelled the job.
    pub cancelled_by: Option<u32>,
}

/// The newest line on the job of `attempt` in a listing in [`SQUEUE_FORMAT`]: found by its id if
/// that is known, else by its comment.
pub fn parse_squeue(listing: &str, attempt: &TokenUuid, job: Option<&str>) -> Option<ExitRecord> {
    let lines = rows(listing);
    // Slurm may have reset its job counter and reused the id.
    let is_anothers = |fields: &[&str]| {
        let named = TokenUuid::parse(first_word(fields[4]));
        named.is_ok_and(|named| named != *attempt)
    };
    let is_ours = |fields: &Vec<&str>| {
        let numbered = || job == Some(fields[0]) && !is_anothers(fields);
        fields.len() == 5 && (comment_names(fields, attempt) || numbered())
    };
    let fields = lines.rev().find(is_ours)?;
    Some(ExitRecord {
        job: fields[0].to_owned(),
        state: fields[1].to_owned(),
        reason: fields[2].to_owned(),
        node: parse_nodes(fields[3]),
        ..ExitRecord::default()
    })
}

/// The job of `attempt` among all jobs of its container that `sacct` shows: found by its id if that
/// is known, else by its comment, which many sites do not store.
pub fn parse_sacct(answer: &str, attempt: &TokenUuid, job: Option<&str>) -> Option<ExitRecord> {
    let lines = rows(answer);
    let is_ours = |fields: &Vec<&str>| {
        fields.first().copied() == job && job.is_some() || comment_names(fields, attempt)
    };
    let fields = lines.rev().find(|f| f.len() == 5 && is_ours(f))?;
    // `CANCELLED by 1000`
    let (state, by) = fields[1].split_once(" by ").unwrap_or((fields[1], ""));
    Some(ExitRecord {
        job: fields[0].to_owned(),
        state: state.to_owned(),
        reason: String::new(),
        node: parse_nodes(fields[3]),
        status: parse_exit_code(fields[2]),
        cancelled_by: by.parse().ok(),
    })
}

/// The fields of each line; a comment is the fifth.
fn rows(answer: &str) -> impl DoubleEndedIterator<Item = Vec<&str>> {
    let lines = answer.lines();
    lines.map(|line| line.splitn(5, '|').map(str::trim).collect())
}

fn comment_names(fields: &[&str], attempt: &TokenUuid) -> bool {
    first_word(fields.get(4).copied().unwrap_or_default()) == attempt.as_str()
}

/// The first word of a comment is the attempt.
fn first_word(comment: &str) -> &str {
    comment.split([' ', ',']).next().unwrap_or_default()
}

fn parse_nodes(list: &str) -> Option<String> {
    let none = ["", "None assigned", "(null)", "n/a"];
    (!none.contains(&list)).then(|| list.to_owned())
}

/// Parses the exit status in a line of `scontrol --oneliner show job`: `ExitCode=STATUS:SIGNAL`.
pub fn parse_exit_status(line: &str) -> Option<i64> {
    let mut words = line.split_whitespace();
    parse_exit_code(words.find_map(|word| word.strip_prefix("ExitCode="))?)
}

fn parse_exit_code(code: &str) -> Option<i64> {
    let (status, signal) = code.split_once(':')?;
    match signal.parse::<i64>().ok()? {
        0 => status.parse().ok(),
        signal => Some(128 + signal),
    }
}

impl ExitRecord {
    /// Whether the job has not ended.
    pub fn is_alive(&self) -> bool {
        job_phase(&self.state) != JobPhase::Ended
    }

    /// Whether crunch-run failed by itself: its exit status is more precise than the state of the
    /// job.
    pub fn needs_exit_status(&self) -> bool {
        let by_itself = matches!(
            self.reason.as_str(),
            "" | "None" | "NonZeroExitCode" | LAUNCH_FAILURE
        ) || self.reason.starts_with("RaisedSignal");
        self.state == "FAILED" && by_itself
    }

    /// Whether the node could not start the script. Slurm gives the same reason if a running job is
    /// killed in its first seconds. Statuses above those of signals are slurmd's own, like 53 for
    /// an output file that it cannot create.
    fn is_launch_failure(&self) -> bool {
        let killed = |status: i64| (129..160).contains(&status);
        self.reason == LAUNCH_FAILURE && !self.status.is_some_and(killed)
    }

    /// Whether the job ended while pending, without a node.
    pub fn was_never_started(&self) -> bool {
        let waited = matches!(self.state.as_str(), "CANCELLED" | "DEADLINE");
        (waited && self.node.is_none()) || self.state == "REVOKED"
    }

    /// Whether the container ran and its results are still on its node.
    pub fn is_undelivered(&self) -> bool {
        self.needs_exit_status()
            && !self.is_launch_failure()
            && self.status == Some(ExitCode::Undelivered.code().into())
    }

    /// Who or what ended the job.
    pub fn cause(&self) -> ExitCause {
        match self.state.as_str() {
            "PREEMPTED" => ExitCause::Evicted(Eviction::Preempted),
            "NODE_FAIL" | "BOOT_FAIL" => ExitCause::Evicted(Eviction::NodeLost),
            "CANCELLED" => ExitCause::Evicted(Eviction::Cancelled),
            "TIMEOUT" | "OUT_OF_MEMORY" => ExitCause::Limit,
            _ if self.needs_exit_status() && !self.is_launch_failure() => {
                self.status.map_or(ExitCause::Unknown, ExitCause::of_status)
            }
            _ => ExitCause::Unknown,
        }
    }

    /// Describes the end in one sentence; `user` is the name of who cancelled the job.
    pub fn describe(&self, user: Option<&str>) -> String {
        let (job, state) = (&self.job, self.state.as_str());
        let by_itself = self.needs_exit_status() && !self.is_launch_failure();
        if let (true, Some(status @ 1..)) = (by_itself, self.status) {
            let described = crunch_contract::describe(status);
            return format!("Slurm job {job} ended with exit code {status}: {described}");
        }
        if let ("CANCELLED", Some(user)) = (state, user) {
            // Slurm itself acts as root, such as after a prolog that failed.
            let or_slurm = if user == "root" {
                ", or by Slurm itself"
            } else {
                ""
            };
            return format!("Slurm job {job} was cancelled in Slurm by {user}{or_slurm}");
        }
        let described = match state {
            "TIMEOUT" => "reached its time limit in Slurm",
            "OUT_OF_MEMORY" => "was killed by Slurm for using more memory than it was given",
            "NODE_FAIL" => "was lost with its node",
            "PREEMPTED" => "was preempted by another job",
            "CANCELLED" => "was cancelled in Slurm",
            "BOOT_FAIL" => "could not start: its node did not boot",
            "DEADLINE" => "reached its deadline in Slurm",
            "REVOKED" => "was started by another cluster of the federation instead",
            "FAILED" if self.is_launch_failure() => {
                "could not be started by its node: look for its id in the log of slurmd there, and check that the node mounts --state-dir"
            }
            "FAILED" if self.needs_exit_status() => "failed: crunch-run ended with an error",
            "FAILED" => "failed in Slurm",
            "COMPLETED" => "ended without recording a final state",
            _ => return format!("Slurm shows job {job} as {state} ({})", self.reason),
        };
        match self.reason.as_str() {
            "" | "None" => format!("Slurm job {job} {described}"),
            reason => format!("Slurm job {job} {described} ({reason})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: &str = "zzzzz-gj3su-000000000000000";

    fn attempt() -> TokenUuid {
        TokenUuid::parse(ATTEMPT).unwrap()
    }

    fn from_squeue(state: &str, reason: &str) -> ExitRecord {
        parse_squeue(
            &format!("9|{state}|{reason}|n1|{ATTEMPT} me\n"),
            &attempt(),
            None,
        )
        .unwrap()
    }

    #[test]
    fn verdicts_are_sentences() {
        #[rustfmt::skip]
        let rows = [
            ("TIMEOUT", "TimeLimit", "reached its time limit in Slurm (TimeLimit)"),
            ("OUT_OF_MEMORY", "OutOfMemory", "was killed by Slurm for using more memory than it was given (OutOfMemory)"),
            ("NODE_FAIL", "None", "was lost with its node"),
            ("PREEMPTED", "None", "was preempted by another job"),
            ("CANCELLED", "None", "was cancelled in Slurm"),
            ("BOOT_FAIL", "None", "could not start: its node did not boot"),
            ("DEADLINE", "DeadLine", "reached its deadline in Slurm (DeadLine)"),
            ("FAILED", "NonZeroExitCode", "failed: crunch-run ended with an error (NonZeroExitCode)"),
            ("FAILED", "JobLaunchFailure", "could not be started by its node: look for its id in the log of slurmd there, and check that the node mounts --state-dir (JobLaunchFailure)"),
            ("COMPLETED", "None", "ended without recording a final state"),
        ];
        for (state, reason, expected) in rows {
            let ended = from_squeue(state, reason);
            assert_eq!(ended.describe(None), format!("Slurm job 9 {expected}"));
            assert!(!ended.is_alive());
        }
        for (status, killed) in [(137, true), (143, true), (181, false), (1, false)] {
            let mut ended = from_squeue("FAILED", LAUNCH_FAILURE);
            ended.status = Some(status);
            assert_eq!(
                ended.describe(None).contains("was killed"),
                killed,
                "{status}"
            );
        }
        let cancelled = from_squeue("CANCELLED", "None").describe(Some("ada"));
        assert_eq!(cancelled, "Slurm job 9 was cancelled in Slurm by ada");
    }

    #[test]
    fn what_the_site_did_is_told_from_what_the_container_did() {
        use Eviction::{Cancelled, NodeLost, Preempted, Requeued, Signalled};
        #[rustfmt::skip]
        let rows = [
            ("PREEMPTED", "None", None, ExitCause::Evicted(Preempted)),
            ("NODE_FAIL", "NodeDown", None, ExitCause::Evicted(NodeLost)),
            ("BOOT_FAIL", "None", None, ExitCause::Evicted(NodeLost)),
            ("CANCELLED", "None", None, ExitCause::Evicted(Cancelled)),
            ("TIMEOUT", "TimeLimit", None, ExitCause::Limit),
            ("OUT_OF_MEMORY", "OutOfMemory", None, ExitCause::Limit),
            ("FAILED", "NonZeroExitCode", Some(79), ExitCause::Evicted(Signalled)),
            ("FAILED", "NonZeroExitCode", Some(76), ExitCause::Evicted(Requeued)),
            ("FAILED", "NonZeroExitCode", Some(1), ExitCause::Unknown),
            ("FAILED", "RaisedSignal:9(Killed)", Some(137), ExitCause::Unknown),
            ("FAILED", "JobLaunchFailure", Some(76), ExitCause::Unknown),
            ("FAILED", "NonZeroExitCode", None, ExitCause::Unknown),
            ("COMPLETED", "None", Some(0), ExitCause::Unknown),
            ("NEWSTATE", "None", None, ExitCause::Unknown),
        ];
        for (state, reason, status, expected) in rows {
            let mut ended = from_squeue(state, reason);
            ended.status = status;
            assert_eq!(ended.cause(), expected, "{state} {reason} {status:?}");
        }
    }

    #[test]
    fn a_verdict_is_about_the_attempts_own_job() {
        let other = "zzzzz-gj3su-111111111111111 me";
        let listing = format!(
            "7|FAILED|NonZeroExitCode|n1|{ATTEMPT} me\n9|TIMEOUT|TimeLimit|n2|{ATTEMPT} me\n10|PENDING|None||{other}\n"
        );
        let ended = parse_squeue(&listing, &attempt(), None).unwrap();
        assert_eq!(
            (ended.job.as_str(), ended.node.as_deref()),
            ("9", Some("n2"))
        );
        let waits = from_squeue("PENDING", "Resources");
        assert!(waits.is_alive());
        assert_eq!(parse_squeue("\n", &attempt(), None), None);
        // Somebody changed the comment of the job.
        let odd = "9|RUNNING|None|n1|see ticket 7\n";
        assert_eq!(parse_squeue(odd, &attempt(), None), None);
        assert!(parse_squeue(odd, &attempt(), Some("9")).unwrap().is_alive());
        assert_eq!(parse_squeue(odd, &attempt(), Some("99")), None);
    }

    #[test]
    fn accounting_knows_who_and_with_what() {
        let answer = format!(
            "7|TIMEOUT|0:0|n1|\n8|CANCELLED by 1000|0:0|None assigned|{ATTEMPT} me\n9_3|FAILED|77:0|n2|\n10|FAILED|0:9|n2|\n"
        );
        let parsed = |job| parse_sacct(&answer, &attempt(), job);
        let by_comment = parsed(None).unwrap();
        assert_eq!(
            (by_comment.job.as_str(), by_comment.cancelled_by),
            ("8", Some(1000))
        );
        assert_eq!(by_comment.node, None);
        let undelivered = parsed(Some("9_3")).unwrap();
        assert!(undelivered.is_undelivered() && undelivered.node.as_deref() == Some("n2"));
        assert_eq!(parsed(Some("10")).unwrap().status, Some(137));
        // The end of another attempt is not the end of this one.
        let other = TokenUuid::parse("zzzzz-gj3su-111111111111111").unwrap();
        assert_eq!(parse_sacct(&answer, &other, None), None);
    }

    #[test]
    fn a_job_that_was_cancelled_while_it_waited_never_began() {
        for (state, nodes, never_began) in [
            ("CANCELLED", "", true),
            ("CANCELLED", "n1", false),
            ("DEADLINE", "", true),
            ("REVOKED", "", true),
            ("FAILED", "n1", false),
            ("PENDING", "", false),
        ] {
            let line = format!("9|{state}|None|{nodes}|{ATTEMPT} me\n");
            let ended = parse_squeue(&line, &attempt(), None).unwrap();
            assert_eq!(ended.was_never_started(), never_began, "{line}");
        }
    }

    #[test]
    fn an_exit_status_says_more_than_failed() {
        let line =
            "JobId=9 JobName=x Reason=NonZeroExitCode Requeue=0 ExitCode=77:0 DerivedExitCode=0:0";
        assert_eq!(parse_exit_status(line), Some(77));
        assert_eq!(parse_exit_status("ExitCode=0:9"), Some(137));
        assert_eq!(parse_exit_status("JobId=9"), None);
        for (reason, status, expected) in [
            ("NonZeroExitCode", 75, "could not start the container there"),
            ("RaisedSignal:9(Killed)", 137, "crunch-run was killed"),
        ] {
            let mut ended = from_squeue("FAILED", reason);
            assert!(ended.needs_exit_status());
            ended.status = Some(status);
            let sentence = ended.describe(None);
            assert!(sentence.contains(expected), "{sentence}");
        }
        let mut not_launched = from_squeue("FAILED", "JobLaunchFailure");
        not_launched.status = Some(77);
        assert!(!not_launched.is_undelivered());
    }
}
