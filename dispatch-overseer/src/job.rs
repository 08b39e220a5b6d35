//! A worker job as its scheduler shows it.

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has not started, or is held: nobody works there.
    Idle,
    /// It has started.
    Busy,
    /// It is on its way out.
    Leaving,
}

/// One worker job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The scheduler's name for it.
    pub id: String,
    /// What it is doing.
    pub state: State,
    /// When it started, in seconds since 1970, where that is known.
    pub started_at: Option<u64>,
    /// The mark of the command it was submitted with.
    pub mark: String,
    /// Why it will not start by itself, where that is so.
    pub held: Option<String>,
}
