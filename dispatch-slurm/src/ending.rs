//! How a job ended: from `squeue --states=all` while Slurm remembers it, from `sacct` where there is accounting, and from
//! `scontrol` for an exit status where there is none. Pure.

use arvados_client::TokenUuid;
use dispatch_core::exit_status;

use crate::squeue::{Meaning, meaning};

/// Job id, state, reason, nodes, comment.
pub const IN_SQUEUE: &str = "%i|%T|%r|%N|%k";
/// The fields of `sacct --parsable2`; the job's number without leading or trailing decoration first.
pub const IN_SACCT: &str = "JobID,State,ExitCode,NodeList,Comment";

/// A reason of Slurm's.
const NOT_LAUNCHED: &str = "JobLaunchFailure";

/// What is known of the job of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Its number.
    pub job: String,
    /// Its state in Slurm's words.
    pub state: String,
    /// The reason in Slurm's words.
    pub reason: String,
    /// The node it was on: one, a container runs on no more.
    pub node: Option<String>,
    /// What crunch-run ended with; 128 and the signal if it was killed.
    pub status: Option<i64>,
    /// The number of the user who cancelled it.
    pub cancelled_by: Option<u32>,
}

/// The newest line about the job of `attempt` in a listing in the format [`IN_SQUEUE`]: by its number where that is
/// known, else by its comment.
pub fn in_squeue(listing: &str, attempt: &TokenUuid, job: Option<&str>) -> Option<Ended> {
    let lines = listing
        .lines()
        .map(|line| line.splitn(5, '|').map(str::trim).collect::<Vec<_>>());
    // Slurm may have begun to count anew.
    let is_anothers = |fields: &[&str]| {
        let named = TokenUuid::parse(first_word(fields[4]));
        named.is_ok_and(|named| named != *attempt)
    };
    let is_ours = |fields: &Vec<&str>| {
        let numbered = || job == Some(fields[0]) && !is_anothers(fields);
        fields.len() == 5 && (is_of(fields, attempt) || numbered())
    };
    let fields = lines.rev().find(is_ours)?;
    Some(Ended {
        job: fields[0].to_owned(),
        state: fields[1].to_owned(),
        reason: fields[2].to_owned(),
        node: node(fields[3]),
        ..Ended::default()
    })
}

/// The job of `attempt` in what `sacct` knows of all jobs of its container: by its number where that is known, else by
/// its comment, which many sites do not keep.
pub fn in_sacct(answer: &str, attempt: &TokenUuid, job: Option<&str>) -> Option<Ended> {
    let lines = answer
        .lines()
        .map(|line| line.splitn(5, '|').map(str::trim).collect::<Vec<_>>());
    let is_ours = |fields: &Vec<&str>| {
        fields.first().copied() == job && job.is_some() || is_of(fields, attempt)
    };
    let fields = lines.rev().find(|f| f.len() == 5 && is_ours(f))?;
    // `CANCELLED by 1000`
    let (state, by) = fields[1].split_once(" by ").unwrap_or((fields[1], ""));
    Some(Ended {
        job: fields[0].to_owned(),
        state: state.to_owned(),
        reason: String::new(),
        node: node(fields[3]),
        status: status(fields[2]),
        cancelled_by: by.parse().ok(),
    })
}

fn is_of(fields: &[&str], attempt: &TokenUuid) -> bool {
    first_word(fields.get(4).copied().unwrap_or_default()) == attempt.as_str()
}

/// Of a comment, which begins with the attempt's name.
fn first_word(comment: &str) -> &str {
    comment.split([' ', ',']).next().unwrap_or_default()
}

fn node(list: &str) -> Option<String> {
    let none = ["", "None assigned", "(null)", "n/a"];
    (!none.contains(&list)).then(|| list.to_owned())
}

/// The exit status in a line of `scontrol --oneliner show job`: `ExitCode=STATUS:SIGNAL`.
pub fn exit_status(line: &str) -> Option<i64> {
    let mut words = line.split_whitespace();
    status(words.find_map(|word| word.strip_prefix("ExitCode="))?)
}

fn status(code: &str) -> Option<i64> {
    let (status, signal) = code.split_once(':')?;
    match signal.parse::<i64>().ok()? {
        0 => status.parse().ok(),
        signal => Some(128 + signal),
    }
}

impl Ended {
    /// It has not ended.
    pub fn is_alive(&self) -> bool {
        meaning(&self.state) != Meaning::Ended
    }

    /// It ended by itself, with an error: its exit status says more than its state.
    pub fn asks_for_status(&self) -> bool {
        let by_itself = matches!(
            self.reason.as_str(),
            "" | "None" | "NonZeroExitCode" | NOT_LAUNCHED
        ) || self.reason.starts_with("RaisedSignal");
        self.state == "FAILED" && by_itself
    }

    /// Slurm also says so of a job that ran, and was killed in its first seconds. Higher numbers than those of signals
    /// are slurmd's own, like 53 for an output file that cannot be made.
    fn was_not_launched(&self) -> bool {
        let killed = |status: i64| (129..160).contains(&status);
        self.reason == NOT_LAUNCHED && !self.status.is_some_and(killed)
    }

    /// It ended while it waited: no node was ever given to it.
    pub fn never_began(&self) -> bool {
        let waited = matches!(self.state.as_str(), "CANCELLED" | "DEADLINE");
        (waited && self.node.is_none()) || self.state == "REVOKED"
    }

    /// The container ran, and its results are on its node.
    pub fn is_undelivered(&self) -> bool {
        self.asks_for_status()
            && !self.was_not_launched()
            && self.status == Some(exit_status::UNDELIVERED)
    }

    /// One sentence; `user` is the name of who cancelled it.
    pub fn sentence(&self, user: Option<&str>) -> String {
        let (job, state) = (&self.job, self.state.as_str());
        let by_itself = self.asks_for_status() && !self.was_not_launched();
        if let (true, Some(status @ 1..)) = (by_itself, self.status) {
            let said = exit_status::sentence(status);
            return format!("Slurm job {job} ended with exit code {status}: {said}");
        }
        if let ("CANCELLED", Some(user)) = (state, user) {
            return format!("Slurm job {job} was cancelled in Slurm by {user}");
        }
        let said = match state {
            "TIMEOUT" => "reached its time limit in Slurm",
            "OUT_OF_MEMORY" => "was killed by Slurm for using more memory than it was given",
            "NODE_FAIL" => "was lost with its node",
            "PREEMPTED" => "was preempted by another job",
            "CANCELLED" => "was cancelled in Slurm",
            "BOOT_FAIL" => "could not start: its node did not boot",
            "DEADLINE" => "reached its deadline in Slurm",
            "REVOKED" => "was started by another cluster of the federation instead",
            "FAILED" if self.was_not_launched() => {
                "could not be started by its node: look for its number in the log of slurmd there, and whether that node sees --shared-dir"
            }
            "FAILED" if self.asks_for_status() => "failed: crunch-run ended with an error",
            "FAILED" => "failed in Slurm",
            "COMPLETED" => "ended without recording a final state",
            _ => return format!("Slurm shows job {job} as {state} ({})", self.reason),
        };
        match self.reason.as_str() {
            "" | "None" => format!("Slurm job {job} {said}"),
            reason => format!("Slurm job {job} {said} ({reason})"),
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

    fn from_squeue(state: &str, reason: &str) -> Ended {
        in_squeue(
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
            ("FAILED", "JobLaunchFailure", "could not be started by its node: look for its number in the log of slurmd there, and whether that node sees --shared-dir (JobLaunchFailure)"),
            ("COMPLETED", "None", "ended without recording a final state"),
        ];
        for (state, reason, expected) in rows {
            let ended = from_squeue(state, reason);
            assert_eq!(ended.sentence(None), format!("Slurm job 9 {expected}"));
            assert!(!ended.is_alive());
        }
        for (status, killed) in [(137, true), (143, true), (181, false), (1, false)] {
            let mut ended = from_squeue("FAILED", NOT_LAUNCHED);
            ended.status = Some(status);
            assert_eq!(
                ended.sentence(None).contains("was killed"),
                killed,
                "{status}"
            );
        }
        let cancelled = from_squeue("CANCELLED", "None").sentence(Some("ada"));
        assert_eq!(cancelled, "Slurm job 9 was cancelled in Slurm by ada");
    }

    #[test]
    fn a_verdict_is_about_the_attempts_own_job() {
        let other = "zzzzz-gj3su-111111111111111 me";
        let listing = format!(
            "7|FAILED|NonZeroExitCode|n1|{ATTEMPT} me\n9|TIMEOUT|TimeLimit|n2|{ATTEMPT} me\n10|PENDING|None||{other}\n"
        );
        let ended = in_squeue(&listing, &attempt(), None).unwrap();
        assert_eq!(
            (ended.job.as_str(), ended.node.as_deref()),
            ("9", Some("n2"))
        );
        let waits = from_squeue("PENDING", "Resources");
        assert!(waits.is_alive());
        assert_eq!(in_squeue("\n", &attempt(), None), None);
        // Somebody changed its comment.
        let odd = "9|RUNNING|None|n1|see ticket 7\n";
        assert_eq!(in_squeue(odd, &attempt(), None), None);
        assert!(in_squeue(odd, &attempt(), Some("9")).unwrap().is_alive());
        assert_eq!(in_squeue(odd, &attempt(), Some("99")), None);
    }

    #[test]
    fn accounting_knows_who_and_with_what() {
        let answer = format!(
            "7|TIMEOUT|0:0|n1|\n8|CANCELLED by 1000|0:0|None assigned|{ATTEMPT} me\n9_3|FAILED|77:0|n2|\n10|FAILED|0:9|n2|\n"
        );
        let told = |job| in_sacct(&answer, &attempt(), job);
        let by_comment = told(None).unwrap();
        assert_eq!(
            (by_comment.job.as_str(), by_comment.cancelled_by),
            ("8", Some(1000))
        );
        assert_eq!(by_comment.node, None);
        let undelivered = told(Some("9_3")).unwrap();
        assert!(undelivered.is_undelivered() && undelivered.node.as_deref() == Some("n2"));
        assert_eq!(told(Some("10")).unwrap().status, Some(137));
        // Another attempt's end says nothing of this one's.
        let other = TokenUuid::parse("zzzzz-gj3su-111111111111111").unwrap();
        assert_eq!(in_sacct(&answer, &other, None), None);
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
            let ended = in_squeue(&line, &attempt(), None).unwrap();
            assert_eq!(ended.never_began(), never_began, "{line}");
        }
    }

    #[test]
    fn an_exit_status_says_more_than_failed() {
        let line =
            "JobId=9 JobName=x Reason=NonZeroExitCode Requeue=0 ExitCode=77:0 DerivedExitCode=0:0";
        assert_eq!(exit_status(line), Some(77));
        assert_eq!(exit_status("ExitCode=0:9"), Some(137));
        assert_eq!(exit_status("JobId=9"), None);
        for (reason, status, expected) in [
            ("NonZeroExitCode", 75, "could not start the container there"),
            ("RaisedSignal:9(Killed)", 137, "crunch-run was killed"),
        ] {
            let mut ended = from_squeue("FAILED", reason);
            assert!(ended.asks_for_status());
            ended.status = Some(status);
            let sentence = ended.sentence(None);
            assert!(sentence.contains(expected), "{sentence}");
        }
        let mut not_launched = from_squeue("FAILED", "JobLaunchFailure");
        not_launched.status = Some(77);
        assert!(!not_launched.is_undelivered());
    }
}
