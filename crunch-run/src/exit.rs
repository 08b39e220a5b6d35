//! The exit status of crunch-run: its contract with every scheduler.

/// What a finished crunch-run says about the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The record has its final state.
    Recorded = 0,
    /// The command never ran; the container may be tried elsewhere.
    NeverRan = 75,
    /// The record is not this attempt's any more; nothing was written to it.
    NotOurs = 76,
    /// The command ran, and its results are on this node and undelivered.
    Undelivered = 77,
    /// The flags or the environment are wrong.
    Configuration = 78,
}

impl ExitCode {
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        code.code().into()
    }
}
