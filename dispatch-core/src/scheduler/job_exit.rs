//! How a job ended, and whether the container or the site caused it.
//!
//! Input: what a scheduler reports of one job. Output: a [`JobExit`], from which the container's
//! record gets its final state and reason. `docs/evictions.md` has the rules. Where results are
//! left on the node (exit code 77), `act/record_undelivered.rs` keeps the record.

use std::path::PathBuf;

use crunch_contract::StatusLine;

use crate::model::exit_cause::ExitCause;

/// Why it is uncertain whether a job has ended, or how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uncertainty {
    /// The job is still running: the listings that lacked it were wrong.
    StillRunning,
    /// The scheduler did not answer a query for the job by name. Contains the reason.
    MayBeRunning(String),
    /// The job has ended, but a query for results on its node failed. Contains the reason. A
    /// container that never ran has no results to lose.
    ResultsUnknown(String),
}

/// The exit of a job, as far as the scheduler reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobExit {
    /// Reason of the exit, in one sentence.
    pub reason: String,
    /// End of the job's output as evidence, without status lines.
    pub detail: String,
    /// Last status line of crunch-run, which says why it ended.
    pub status_line: Option<StatusLine>,
    /// Node of the job, where the scheduler reports it.
    pub node: Option<String>,
    /// Who or what ended it.
    pub cause: ExitCause,
    /// Uncertainty that forbids acting on this exit. The scheduler is then queried again.
    pub uncertainty: Option<Uncertainty>,
    /// Whether the job certainly never started on any node, so that no executor ran.
    pub never_started: bool,
    /// Whether nothing shows that there was a job: neither the scheduler nor any output.
    pub without_trace: bool,
    /// Whether the container ran and its results are on the node, to be delivered later. This is
    /// crunch-run's exit status 77.
    pub undelivered: bool,
    /// Directory with the log of the container, if this host has it: nobody else saves it.
    pub log_dir: Option<PathBuf>,
}

impl JobExit {
    /// An exit that must not be acted on.
    pub fn uncertain(uncertainty: Uncertainty) -> Self {
        Self {
            uncertainty: Some(uncertainty),
            ..Self::default()
        }
    }

    /// The reason with the node, or a sentence that says the reason is unknown.
    pub fn reason_or_default(&self) -> String {
        let reason = match self.reason.as_str() {
            "" => {
                "crunch-run ended without recording a final state, and the scheduler does not report the reason"
            }
            reason => reason,
        };
        let is_part_of_name = |c: char| c.is_alphanumeric() || "-._".contains(c);
        let names = |node: &str| {
            reason
                .split(|c| !is_part_of_name(c))
                .any(|word| word == node)
        };
        match self.node.as_deref() {
            Some(node) if !names(node) => format!("{reason} (node {node})"),
            _ => reason.to_owned(),
        }
    }

    /// Why nothing ran, if crunch-run could store nothing either.
    pub fn storage_failure(&self) -> Option<&str> {
        match &self.status_line {
            Some(StatusLine::StorageFailed { reason }) => Some(reason),
            _ => None,
        }
    }

    /// The reason, followed by the reason in crunch-run's status line.
    pub fn summary(&self) -> String {
        match self.status_line.as_ref().and_then(StatusLine::reason) {
            Some(reason) => format!("{}: {}", self.reason_or_default(), reason.trim()),
            None => self.reason_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_node_once() {
        for (reason, node, expected) in [
            (
                "job 7 was preempted",
                Some("n1"),
                "job 7 was preempted (node n1)",
            ),
            (
                "it was lost with n1.",
                Some("n1"),
                "it was lost with n1. (node n1)",
            ),
            ("it left n1: vacated", Some("n1"), "it left n1: vacated"),
            ("it left n10", Some("n1"), "it left n10 (node n1)"),
            ("it is gone", None, "it is gone"),
        ] {
            let exit = JobExit {
                reason: reason.to_owned(),
                node: node.map(str::to_owned),
                ..JobExit::default()
            };
            assert_eq!(exit.reason_or_default(), expected);
        }
    }

    #[test]
    fn a_summary_contains_the_reason_of_a_crunch_run_that_ran_nothing() {
        let ended = "Slurm job 7 ended with exit code 75";
        let summary = |status_line| {
            let exit = JobExit {
                reason: ended.to_owned(),
                detail: "u fetching\nu its command ended with 0\n".to_owned(),
                status_line,
                ..JobExit::default()
            };
            exit.summary()
        };
        let reason = "GPU 0 cannot be given".to_owned();
        let never_ran = StatusLine::NeverRan { reason };
        assert_eq!(
            summary(Some(never_ran)),
            format!("{ended}: GPU 0 cannot be given")
        );
        let directory = "/x".into();
        assert_eq!(summary(Some(StatusLine::Undelivered { directory })), ended);
        assert_eq!(summary(None), ended);
    }
}
