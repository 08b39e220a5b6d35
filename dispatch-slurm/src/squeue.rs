//! Reading `squeue`: complete or an error. Formats and states: squeue(1), sections FORMAT and JOB STATE CODES.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::world::{Job, JobId};

/// Job id, state, comment, nodes, name; the name comes last because only it may hold anything.
pub const LISTING: &str = "%i|%T|%k|%N|%j";
/// Job id, state, reason, nodes, comment.
pub const ENDING: &str = "%i|%T|%r|%N|%k";

/// What a state means to a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Waiting for its start.
    Pending,
    /// Started, or being put away.
    Active,
    /// It will never run again.
    Ended,
}

/// A line that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("squeue wrote a line that cannot be read: {0:?}")]
pub struct Unreadable(String);

/// One of our jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub id: String,
    /// What its state means.
    pub meaning: Meaning,
    /// From its name.
    pub container: ContainerUuid,
    /// From its comment.
    pub attempt: Option<TokenUuid>,
    /// Where it runs.
    pub node: Option<String>,
}

impl Row {
    /// As the engine sees it.
    pub fn job(&self) -> Job {
        Job {
            id: JobId(self.id.clone()),
            container: self.container.clone(),
            attempt: self.attempt.clone(),
            ended: self.meaning == Meaning::Ended,
            node: self.node.clone(),
        }
    }
}

/// What a job's comment says: which attempt, and which dispatcher of this user submitted it.
pub fn comment(attempt: &TokenUuid, label: &str) -> String {
    format!("{attempt} {label}")
}

/// All rows of the dispatcher `label` in a listing in the format [`LISTING`]. Other jobs, also those of another
/// dispatcher of the same user, are none of its business.
pub fn parse(listing: &str, label: &str) -> Result<Vec<Row>, Unreadable> {
    let mut rows = Vec::new();
    // A name that was cut would be nobody's.
    if !listing.is_empty() && !listing.ends_with('\n') {
        let last = listing.lines().last().unwrap_or_default();
        return Err(Unreadable(last.to_owned()));
    }
    for line in listing.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.splitn(5, '|').collect();
        let [id, state, comment, nodes, name] = fields[..] else {
            return Err(Unreadable(line.to_owned()));
        };
        let damaged = [id, state, comment].iter().any(|f| f.contains('\u{fffd}'));
        let id = id.trim();
        if damaged || !id.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(Unreadable(line.to_owned()));
        }
        let (attempt, by) = comment.trim().split_once(' ').unwrap_or_default();
        if by == label {
            // Our own rows are never odd; one that is was damaged on its way.
            let container =
                ContainerUuid::parse(name.trim()).map_err(|_| Unreadable(line.to_owned()))?;
            rows.push(Row {
                id: id.to_owned(),
                meaning: meaning(state.trim()),
                container,
                attempt: TokenUuid::parse(attempt).ok(),
                node: Some(nodes.trim().to_owned()).filter(|nodes| !nodes.is_empty()),
            });
        }
    }
    Ok(rows)
}

/// An unknown state is one that keeps us waiting.
pub fn meaning(state: &str) -> Meaning {
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => Meaning::Pending,
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" | "TIMEOUT" => Meaning::Ended,
        _ => Meaning::Active,
    }
}

/// What a listing in the format [`ENDING`] tells of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// How its job ended.
    pub reason: String,
    /// The number of the job, if it ended with a status other than 0, which this listing does not show.
    pub failed: Option<String>,
    /// The node it was on.
    pub node: Option<String>,
    /// It has not ended.
    pub alive: bool,
}

impl Ended {
    /// Nothing but this is known.
    pub fn unknown(reason: String) -> Self {
        Self {
            reason,
            ..Self::default()
        }
    }
}

/// How the job of `attempt` ended, by the newest line about it.
pub fn ending(listing: &str, attempt: &TokenUuid) -> Ended {
    let is_of_attempt = |fields: &Vec<&str>| {
        let comment = fields.get(4).copied().unwrap_or_default();
        comment.split(' ').next() == Some(attempt.as_str())
    };
    let lines = listing
        .lines()
        .map(|line| line.splitn(5, '|').map(str::trim).collect::<Vec<_>>());
    let Some(fields) = lines.rev().find(is_of_attempt) else {
        return Ended::unknown(
            "Slurm does not know its job any more (it forgets ended jobs after MinJobAge)".into(),
        );
    };
    let (id, state, reason, nodes) = (fields[0], fields[1], fields[2], fields[3]);
    let failed = state == "FAILED" && reason == "NonZeroExitCode";
    Ended {
        reason: verdict(id, state, reason),
        failed: failed.then(|| id.to_owned()),
        // One node: a container runs on no more.
        node: (!nodes.is_empty()).then(|| nodes.to_owned()),
        alive: meaning(state) != Meaning::Ended,
    }
}

/// The exit status in a line of `scontrol --oneliner show job`: `ExitCode=STATUS:SIGNAL`.
pub fn exit_status(line: &str) -> Option<i64> {
    let mut words = line.split_whitespace();
    let code = words.find_map(|word| word.strip_prefix("ExitCode="))?;
    let (status, signal) = code.split_once(':')?;
    match signal.parse::<i64>().ok()? {
        0 => status.parse().ok(),
        signal => Some(128 + signal),
    }
}

fn verdict(id: &str, state: &str, reason: &str) -> String {
    let said = match state {
        "TIMEOUT" => "reached its time limit in Slurm",
        "OUT_OF_MEMORY" => "was killed by Slurm for using more memory than it was given",
        "NODE_FAIL" => "was lost with its node",
        "PREEMPTED" => "was preempted by another job",
        "CANCELLED" => "was cancelled in Slurm",
        "BOOT_FAIL" => "could not start: its node did not boot",
        "DEADLINE" => "reached its deadline in Slurm",
        "FAILED" if reason == "NonZeroExitCode" => "failed: crunch-run ended with an error",
        "FAILED" => "failed in Slurm",
        "COMPLETED" => "ended without recording a final state",
        _ => return format!("Slurm shows job {id} as {state} ({reason})"),
    };
    match reason {
        "" | "None" => format!("Slurm job {id} {said}"),
        reason => format!("Slurm job {id} {said} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "zzzzz-dz642-queuedcontainer";
    const ATTEMPT: &str = "zzzzz-gj3su-000000000000000";

    #[test]
    fn a_listing_is_ours_by_name_and_foreign_names_may_be_anything() {
        let listing = format!(
            "12|RUNNING|{ATTEMPT} me|n1|{UUID}\n13|PENDING|(null)||my job | with a pipe\n14_[1-3]|PENDING|(null)||array\n15|COMPLETED|odd me||{UUID}\n16|RUNNING|{ATTEMPT} other|n1|{UUID}\n17|RUNNING|(null)|n1|{UUID}\n"
        );
        let rows = parse(&listing, "me").unwrap();
        let seen: Vec<_> = rows
            .iter()
            .map(|r| (r.id.as_str(), r.meaning, r.attempt.is_some()))
            .collect();
        assert_eq!(
            seen,
            [("12", Meaning::Active, true), ("15", Meaning::Ended, false)]
        );
        assert!(rows[1].job().ended && !rows[0].job().ended);
        assert_eq!(rows[0].job().node.as_deref(), Some("n1"));
        assert_eq!(rows[1].job().node, None);
        assert!(parse("", "me").unwrap().is_empty());
    }

    #[test]
    fn a_cut_line_is_no_listing() {
        for listing in [
            "12|RUNNING|zzz",
            "12|RUNNING|zzzzz-gj3su-000000000000000 me|n1|zzzzz-dz642-queuedcont\u{fffd}iner\n",
            "12|RUN\u{fffd}ING|a b||c\n",
            "slurm_load_jobs error: Unable to contact\n",
            "x|a|b|c\n",
            "11|RUNNING|(null)|whole\n12|RUNNING|(null)|zzzzz-dz642-que",
        ] {
            assert!(parse(listing, "me").is_err(), "{listing}");
        }
    }

    #[test]
    fn an_invented_state_keeps_us_waiting() {
        assert_eq!(meaning("HIBERNATING"), Meaning::Active);
        assert_eq!(meaning("COMPLETING"), Meaning::Active);
        assert_eq!(meaning("NODE_FAIL"), Meaning::Ended);
    }

    #[test]
    fn verdicts_are_sentences_about_the_attempts_own_job() {
        let attempt = TokenUuid::parse(ATTEMPT).unwrap();
        let other = "zzzzz-gj3su-111111111111111 me";
        let told = ending(
            &format!(
                "7|FAILED|NonZeroExitCode|n1|{ATTEMPT} me\n9|TIMEOUT|TimeLimit|n2|{ATTEMPT} me\n10|PENDING|None||{other}\n"
            ),
            &attempt,
        );
        assert_eq!(
            told.reason,
            "Slurm job 9 reached its time limit in Slurm (TimeLimit)"
        );
        assert_eq!((told.node.as_deref(), told.alive), (Some("n2"), false));
        let lost = ending(&format!("9|NODE_FAIL|None|n1|{ATTEMPT} me"), &attempt);
        assert_eq!(lost.reason, "Slurm job 9 was lost with its node");
        let waits = ending(&format!("9|PENDING|Resources||{ATTEMPT} me"), &attempt);
        assert!(waits.alive && waits.node.is_none());
        let failed = ending(
            &format!("9|FAILED|NonZeroExitCode|n1|{ATTEMPT} me"),
            &attempt,
        );
        assert_eq!(failed.failed.as_deref(), Some("9"));
        assert!(ending("\n", &attempt).reason.contains("MinJobAge"));
    }

    #[test]
    fn an_exit_status_is_told_by_scontrol() {
        let line =
            "JobId=9 JobName=x Reason=NonZeroExitCode Requeue=0 ExitCode=77:0 DerivedExitCode=0:0";
        assert_eq!(exit_status(line), Some(77));
        assert_eq!(exit_status("ExitCode=0:9"), Some(137));
        assert_eq!(exit_status("JobId=9"), None);
    }
}
