//! A worker job as listed by its scheduler.

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Pending or on hold.
    Idle,
    /// Started.
    Busy,
    /// Completing or being removed.
    Leaving,
}

/// One worker job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Id in the scheduler.
    pub id: String,
    pub state: State,
    /// When it started, in seconds since 1970, if known.
    pub started_at: Option<u64>,
    /// Hash of the worker command it was submitted with.
    pub command_hash: String,
    /// Reason of the hold, for a job on hold.
    pub held: Option<String>,
}
