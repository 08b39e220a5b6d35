//! What a failed condor_submit says: whose fault it is. Pure. Its sentences as of 23.9 and 25.
//!
//! condor_submit makes all its jobs in one transaction, so what it gave up while it read its description, or what the
//! schedd answered with an error, made none.

use dispatch_core::command::{CommandError, Failure};

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No job of these was made, for certain: there is something in them that is not taken.
    OfJobs,
    /// The schedd is away, busy or full; what the jobs are has nothing to do with it.
    OfSchedd,
    /// It is not known.
    Unknown,
}

/// The schedd cannot be reached, does not answer in time, or takes no more from this user.
const SCHEDD: [&str; 13] = [
    "address of schedd",
    "address of local schedd",
    "queue manager",
    "ailed to connect",
    "connection refused",
    "connection reset",
    "broken pipe",
    "timed out",
    "timeout",
    "CEDAR:",
    "SECMAN:",
    "AUTHENTICATE:",
    "would exceed MAX_JOBS_",
];
/// It stopped at the description.
const DESCRIPTION: [&str; 3] = [
    "Parse error in expression",
    "Failed to parse command file",
    "ERROR at Queue statement",
];
/// Behind it comes what the schedd answered; nothing, if it did not.
const COMMIT: &str = "ERROR: Failed to commit job submission into the queue.";

/// What its programs complain of, without their advice, on one line.
pub fn brief(said: &str) -> String {
    let told = said.split("\nExtra Info:").next().unwrap_or_default();
    let told = if told.trim().is_empty() { said } else { told };
    told.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whose fault a failure is.
pub fn fault(failure: &Failure) -> Fault {
    let said = match failure {
        Failure::NoAnswer(CommandError::NotStarted { .. }) => return Fault::OfSchedd,
        Failure::NoAnswer(CommandError::TimedOut { .. }) => return Fault::OfSchedd,
        Failure::NoAnswer(_) => return Fault::Unknown,
        Failure::Said(said) => said,
    };
    let lower = said.to_lowercase();
    let answered = said.split_once(COMMIT).map(|(_, rest)| rest);
    match () {
        () if SCHEDD
            .iter()
            .any(|word| lower.contains(&word.to_lowercase())) =>
        {
            Fault::OfSchedd
        }
        () if answered.is_some_and(|rest| rest.contains("ERROR: ")) => Fault::OfJobs,
        () if answered.is_some() => Fault::Unknown,
        () if DESCRIPTION.iter().any(|word| said.contains(word)) => Fault::OfJobs,
        () => Fault::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_left_out() {
        let said = "\nError: Can't find address\n  of local schedd\n\nExtra Info: You probably saw this error because\nthe condor_schedd\n";
        assert_eq!(brief(said), "Error: Can't find address of local schedd");
        assert_eq!(brief("\nExtra Info: this\n"), "Extra Info: this");
        assert_eq!(brief(""), "");
    }

    #[test]
    fn only_what_the_jobs_are_is_their_fault() {
        #[rustfmt::skip]
        let rows = [
            // As 23.9.6 says it.
            ("ERROR: Parse error in expression: \n\tX = a b c\n\t", Fault::OfJobs),
            ("ERROR: on Line 7 of submit file: \n\nERROR: Failed to parse command file (line 7).", Fault::OfJobs),
            ("ERROR at Queue statement on Line 13: $INT() macro: x does not evaluate to an integer!", Fault::OfJobs),
            ("ERROR: Failed to commit job submission into the queue.\nERROR: too much memory", Fault::OfJobs),
            ("ERROR: Failed to commit job submission into the queue.", Fault::Unknown),
            ("ERROR: Failed to connect to local queue manager\nCEDAR:6001:Failed to connect to <127.0.0.1:34107>", Fault::OfSchedd),
            ("ERROR: Can't find address of local schedd", Fault::OfSchedd),
            ("ERROR: Can't find address of schedd n1", Fault::OfSchedd),
            ("ERROR: Failed to create proc\nNumber of submitted jobs would exceed MAX_JOBS_PER_OWNER", Fault::OfSchedd),
            ("ERROR: Failed to commit job submission into the queue.\nERROR: SECMAN:2004:Failed to connect", Fault::OfSchedd),
            ("ERROR: Failed to create proc", Fault::Unknown),
            ("ended by signal 9 and said nothing", Fault::Unknown),
        ];
        for (said, expected) in rows {
            assert_eq!(fault(&Failure::Said(said.into())), expected, "{said}");
        }
        let late = CommandError::TimedOut {
            program: "condor_submit".into(),
            patience: std::time::Duration::from_secs(60),
        };
        assert_eq!(fault(&Failure::NoAnswer(late)), Fault::OfSchedd);
    }
}
