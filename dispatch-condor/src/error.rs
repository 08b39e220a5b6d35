//! Errors of HTCondor's commands: as errors of the scheduler, and what a failed `condor_submit`
//! says about its jobs.
//!
//! `condor_submit` creates all jobs of a description in one transaction. It creates none if it
//! fails while it reads the description, or if the schedd answers with an error. The sentences are
//! those of versions 23.9 and 25.

use dispatch_core::scheduler::SchedulerError;
use dispatch_core::scheduler::command::{CommandError, CommandFailure};

/// Name of this scheduler in errors, logs and labels.
pub const NAME: &str = "condor";

/// HTCondor did not answer completely; `detail` is what its command wrote or why it failed.
pub fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail: summarize(&detail),
    }
}

/// What a failed `condor_submit` says about its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitFault {
    /// HTCondor rejected the jobs, and created none of them.
    Jobs,
    /// The schedd takes no more jobs of this user now, and created none of them.
    Full,
    /// The schedd is unreachable or busy; the jobs are not the cause.
    Schedd,
    /// The cause is unknown, and so is whether jobs were created.
    Unknown,
}

/// Phrase for a schedd that has as many jobs as it takes, of this user or in all
/// (MAX_JOBS_PER_OWNER, MAX_JOBS_SUBMITTED), or that takes fewer at once (MAX_JOBS_PER_SUBMISSION).
/// The transaction of the submission is then undone.
const FULL: &str = "would exceed max_jobs_";
/// Phrases for a schedd that is unreachable or does not answer in time.
const SCHEDD_ERRORS: [&str; 9] = [
    "address of schedd",
    "address of local schedd",
    "queue manager",
    "ailed to connect",
    "connection refused",
    "connection reset",
    "broken pipe",
    "timed out",
    "timeout",
];
/// Phrases for a schedd to which there is no connection, so that it was not asked.
const UNREACHED: [&str; 4] = [
    "find address of schedd",
    "find address of local schedd",
    "connect to local queue manager",
    "connect to queue manager",
];
/// Sources of errors of the network between condor_submit and the schedd.
const NETWORK: [&str; 3] = ["CEDAR:", "SECMAN:", "AUTHENTICATE:"];
/// Phrases for a description that condor_submit cannot read.
const DESCRIPTION_ERRORS: [&str; 3] = [
    "Parse error in expression",
    "Failed to parse command file",
    "ERROR at Queue statement",
];
/// The answer of the schedd follows this phrase; nothing follows if the schedd did not answer.
const COMMIT_FAILED: &str = "ERROR: Failed to commit job submission into the queue.";

/// An error message of HTCondor on one line, without the advice after it.
pub fn summarize(message: &str) -> String {
    let error = message.split("\nExtra Info:").next().unwrap_or_default();
    let error = if error.trim().is_empty() {
        message
    } else {
        error
    };
    error.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the schedd was certainly not asked, as far as the words tell: a rule of the site may use
/// them too.
pub fn is_unreached(failure: &CommandFailure) -> bool {
    let text = failure.to_string();
    UNREACHED.iter().any(|phrase| text.contains(phrase))
}

/// Classifies a failed `condor_submit`.
pub fn classify(failure: &CommandFailure) -> SubmitFault {
    let message = match failure {
        CommandFailure::NotCompleted(CommandError::NotStarted { .. }) => {
            return SubmitFault::Schedd;
        }
        CommandFailure::NotCompleted(CommandError::TimedOut { .. }) => return SubmitFault::Schedd,
        CommandFailure::NotCompleted(_) => return SubmitFault::Unknown,
        CommandFailure::Failed(message) => message,
    };
    let lower = message.to_lowercase();
    let answered = message.split_once(COMMIT_FAILED).map(|(_, rest)| rest);
    // The words of a rule are the site's own. Those of HTCondor's network begin with their source.
    let is_of_schedd = |rest: &str| {
        let words = rest.trim_start().strip_prefix("ERROR: ");
        words.is_some_and(|words| !NETWORK.iter().any(|source| words.starts_with(source)))
    };
    match () {
        () if lower.contains(FULL) => SubmitFault::Full,
        () if answered.is_some_and(is_of_schedd) => SubmitFault::Jobs,
        () if NETWORK
            .iter()
            .chain(&SCHEDD_ERRORS)
            .any(|word| lower.contains(&word.to_lowercase())) =>
        {
            SubmitFault::Schedd
        }
        () if answered.is_some() => SubmitFault::Unknown,
        () if DESCRIPTION_ERRORS.iter().any(|word| message.contains(word)) => SubmitFault::Jobs,
        () => SubmitFault::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_left_out() {
        let message = "\nError: Can't find address\n  of local schedd\n\nExtra Info: You probably saw this error because\nthe condor_schedd\n";
        assert_eq!(
            summarize(message),
            "Error: Can't find address of local schedd"
        );
        assert_eq!(summarize("\nExtra Info: this\n"), "Extra Info: this");
        assert_eq!(summarize(""), "");
    }

    #[test]
    fn only_what_the_jobs_are_is_their_fault() {
        #[rustfmt::skip]
        let rows = [
            // Messages of 23.9.6.
            ("ERROR: Parse error in expression: \n\tX = a b c\n\t", SubmitFault::Jobs),
            ("ERROR: on Line 7 of submit file: \n\nERROR: Failed to parse command file (line 7).", SubmitFault::Jobs),
            ("ERROR at Queue statement on Line 13: $INT() macro: x does not evaluate to an integer!", SubmitFault::Jobs),
            ("ERROR: Failed to commit job submission into the queue.\nERROR: too much memory", SubmitFault::Jobs),
            ("ERROR: Failed to commit job submission into the queue.\nERROR: try again later (connection refused)", SubmitFault::Jobs),
            ("ERROR: Failed to commit job submission into the queue.", SubmitFault::Unknown),
            ("ERROR: Failed to connect to local queue manager\nCEDAR:6001:Failed to connect to <127.0.0.1:34107>", SubmitFault::Schedd),
            ("ERROR: Can't find address of local schedd", SubmitFault::Schedd),
            ("ERROR: Can't find address of schedd n1", SubmitFault::Schedd),
            ("ERROR: Failed to create proc\nNumber of submitted jobs would exceed MAX_JOBS_PER_OWNER", SubmitFault::Full),
            ("ERROR: Failed to commit job submission into the queue.\nERROR: SECMAN:2004:Failed to connect", SubmitFault::Schedd),
            ("ERROR: Failed to create proc", SubmitFault::Unknown),
            ("ended by signal 9 and said nothing", SubmitFault::Unknown),
        ];
        for (message, expected) in rows {
            assert_eq!(
                classify(&CommandFailure::Failed(message.into())),
                expected,
                "{message}"
            );
        }
        let late = CommandError::TimedOut {
            program: "condor_submit".into(),
            timeout: std::time::Duration::from_secs(60),
        };
        assert_eq!(
            classify(&CommandFailure::NotCompleted(late)),
            SubmitFault::Schedd
        );
    }
}
