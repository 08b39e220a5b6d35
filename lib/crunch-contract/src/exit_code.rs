//! Exit codes of crunch-run. Numbers and meanings are stable: job scripts, HTCondor policies and
//! dispatchers use them.
//!
//! What usually follows in a dispatcher, and where in dispatch-core. The state of the record
//! decides; the code gives the reason.
//!
//! | code | what follows | where |
//! |---|---|---|
//! | 0 | the attempt is cleaned up | `act/end_attempt.rs` |
//! | 75, 78 | the container is unlocked, and tried again after a pause | `act/unlock.rs` |
//! | 76 | as after an eviction, if no other attempt goes on | `model/exit_cause.rs` |
//! | 77 | the record stays Running until its results are delivered | `act/record_undelivered.rs`, called in `act/cancel_record.rs` |
//! | 79, a signal | the record is cancelled, as after an eviction | `act/cancel_record.rs` |
//! | 79, no other attempt can succeed | its requests end | `act/permanent_failure.rs` |
//!
//! The code reaches the dispatcher by `query/exit_record.rs` of dispatch-slurm and dispatch-condor,
//! and by `scheduler.rs` of dispatch-local: there 77 becomes `undelivered` of the job's exit.
//!
//! After 77, `undelivered/` in crunch-run keeps the results, and `crunch-run resume` delivers them;
//! dispatch-local does so by itself (`redelivery.rs`).

/// The exit codes of crunch-run.
///
/// 75 and 78 are `EX_TEMPFAIL` and `EX_CONFIG` of sysexits.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The container record has its final state.
    Recorded = 0,
    /// The command never ran. The container may be tried on another node.
    NeverRan = 75,
    /// Another attempt holds the container, so nothing was written to its record.
    NotOurs = 76,
    /// The command ran. Its results are on this node and are not delivered yet: `crunch-run resume`
    /// delivers them.
    Undelivered = 77,
    /// The flags or the environment of crunch-run are wrong.
    Misconfigured = 78,
    /// The dispatcher gives the record its final state: a signal stopped the command, or the record
    /// says that no other attempt can succeed.
    LeftToDispatcher = 79,
}

impl ExitCode {
    const ALL: [Self; 6] = [
        Self::Recorded,
        Self::NeverRan,
        Self::NotOurs,
        Self::Undelivered,
        Self::Misconfigured,
        Self::LeftToDispatcher,
    ];

    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The exit code of this number. `None` for any other number, a signal (128 and more) included.
    pub fn from_status(status: i64) -> Option<Self> {
        let is_code = |code: &Self| i64::from(code.code()) == status;
        Self::ALL.into_iter().find(is_code)
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        code.code().into()
    }
}

/// What an exit status of crunch-run means, as a sentence for admins and users. `status` is what
/// the scheduler reports: 128 and more stands for a signal.
pub fn describe(status: i64) -> &'static str {
    match (ExitCode::from_status(status), status) {
        (Some(ExitCode::Recorded), _) => "crunch-run ended without recording a final state",
        (Some(ExitCode::NeverRan), _) => "crunch-run could not start the container there",
        (Some(ExitCode::NotOurs), _) => {
            "the container belonged to another attempt, or to an earlier start of the same job"
        }
        (Some(ExitCode::Undelivered), _) => {
            "the container ran, but its results could not be delivered and are kept on the node"
        }
        (Some(ExitCode::Misconfigured), _) => "crunch-run is misconfigured on that node",
        (Some(ExitCode::LeftToDispatcher), _) => "a signal stopped the container",
        // As a shell says it.
        (None, 126) => "crunch-run cannot be executed on that node",
        (None, 127) => "crunch-run is not on that node, under the name that the dispatcher gives",
        (None, 128..) => "crunch-run was killed",
        (None, _) => "crunch-run failed without recording a final state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_read_as_the_code_that_wrote_it() {
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_status(code.code().into()), Some(code));
        }
        for other in [-1, 1, 74, 80, 137, 256 + 77] {
            assert_eq!(ExitCode::from_status(other), None);
        }
        let numbers = ExitCode::ALL.map(ExitCode::code);
        assert_eq!(
            numbers,
            [0, 75, 76, 77, 78, 79],
            "job scripts depend on these"
        );
    }

    #[test]
    fn a_signal_is_told_from_a_failure() {
        assert!(describe(137).contains("killed"));
        assert!(describe(1).contains("failed"));
        assert!(describe(127).contains("is not on that node"));
    }
}
