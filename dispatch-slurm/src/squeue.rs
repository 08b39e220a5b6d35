//! Reading `squeue`: complete or an error. Formats and states: squeue(1), sections FORMAT and JOB STATE CODES.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::world::{Job, JobId};

/// Job id, state, comment, name; the name comes last because only it may hold anything.
pub const LISTING: &str = "%i|%T|%k|%j";
/// Job id, state, reason.
pub const ENDING: &str = "%i|%T|%r";

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
}

impl Row {
    /// As the engine sees it.
    pub fn job(&self) -> Job {
        Job {
            id: JobId(self.id.clone()),
            container: self.container.clone(),
            attempt: self.attempt.clone(),
            ended: self.meaning == Meaning::Ended,
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
        let mut fields = line.splitn(4, '|');
        let (Some(id), Some(state), Some(comment), Some(name)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(Unreadable(line.to_owned()));
        };
        let id = id.trim();
        if !id.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(Unreadable(line.to_owned()));
        }
        let (attempt, by) = comment.trim().split_once(' ').unwrap_or_default();
        if by == label
            && let Ok(container) = ContainerUuid::parse(name.trim())
        {
            rows.push(Row {
                id: id.to_owned(),
                meaning: meaning(state.trim()),
                container,
                attempt: TokenUuid::parse(attempt).ok(),
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

/// Why a job ended, from the newest line of a listing in the format [`ENDING`].
pub fn verdict(listing: &str) -> Option<String> {
    let line = listing.lines().rfind(|line| !line.trim().is_empty())?;
    let mut fields = line.splitn(3, '|').map(str::trim);
    let (id, state, reason) = (fields.next()?, fields.next()?, fields.next()?);
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
        _ => return Some(format!("Slurm shows job {id} as {state} ({reason})")),
    };
    Some(match reason {
        "" | "None" => format!("Slurm job {id} {said}"),
        reason => format!("Slurm job {id} {said} ({reason})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "zzzzz-dz642-queuedcontainer";
    const ATTEMPT: &str = "zzzzz-gj3su-000000000000000";

    #[test]
    fn a_listing_is_ours_by_name_and_foreign_names_may_be_anything() {
        let listing = format!(
            "12|RUNNING|{ATTEMPT} me|{UUID}\n13|PENDING|(null)|my job | with a pipe\n14_[1-3]|PENDING|(null)|array\n15|COMPLETED|odd me|{UUID}\n16|RUNNING|{ATTEMPT} other|{UUID}\n17|RUNNING|(null)|{UUID}\n"
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
        assert!(parse("", "me").unwrap().is_empty());
    }

    #[test]
    fn a_cut_line_is_no_listing() {
        for listing in [
            "12|RUNNING|zzz",
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
    fn verdicts_are_sentences_about_the_newest_job() {
        assert_eq!(
            verdict("7|FAILED|NonZeroExitCode\n9|TIMEOUT|TimeLimit\n").as_deref(),
            Some("Slurm job 9 reached its time limit in Slurm (TimeLimit)")
        );
        assert_eq!(
            verdict("9|NODE_FAIL|None").as_deref(),
            Some("Slurm job 9 was lost with its node")
        );
        assert_eq!(verdict("\n"), None);
    }
}
