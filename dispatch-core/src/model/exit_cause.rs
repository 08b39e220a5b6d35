//! Whether a container or the site caused the end of its job. `docs/evictions.md` has the rules.

use crunch_contract::{ExitCode, StatusLine};

/// Who or what ended a job, as far as it decides what becomes of its container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExitCause {
    /// crunch-run ended or was killed, and it is not known that the site did it.
    #[default]
    Unknown,
    /// The site took the job away. The container is not at fault.
    Evicted(Eviction),
    /// The job reached its limit of time or memory. Another job with the same limits would, too.
    Limit,
}

/// How the site took a job away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// Another job got its node, or the node's owner did.
    Preempted,
    /// The node was lost, or restarted.
    NodeLost,
    /// Somebody cancelled the job in the scheduler.
    Cancelled,
    /// Somebody put the running job on hold.
    Held,
    /// The scheduler started the job again.
    Requeued,
    /// A signal that the scheduler does not explain, for example while the node shuts down.
    Signalled,
}

impl Eviction {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Preempted,
        Self::NodeLost,
        Self::Cancelled,
        Self::Held,
        Self::Requeued,
        Self::Signalled,
    ];

    /// The word in `runtime_status`, in metrics and in the audit file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Preempted => "preempted",
            Self::NodeLost => "node-lost",
            Self::Cancelled => "cancelled",
            Self::Held => "held",
            Self::Requeued => "requeued",
            Self::Signalled => "signalled",
        }
    }
}

impl ExitCause {
    /// The cause that crunch-run's exit status shows, where the scheduler does not tell more, and
    /// the record does not say that the container cannot succeed.
    /// `NotOurs` is asked about only while this attempt holds the record: then an earlier start of
    /// the same job had it.
    pub fn of_status(status: i64) -> Self {
        match ExitCode::from_status(status) {
            Some(ExitCode::LeftToDispatcher) => Self::Evicted(Eviction::Signalled),
            Some(ExitCode::NotOurs) => Self::Evicted(Eviction::Requeued),
            _ => Self::Unknown,
        }
    }

    /// The cause that the end of the job's output shows, where the scheduler knows nothing.
    pub fn of_status_line(line: Option<&StatusLine>) -> Self {
        match line {
            Some(StatusLine::Stopped { .. }) => Self::Evicted(Eviction::Signalled),
            _ => Self::Unknown,
        }
    }

    /// How the site took the job away, if it did.
    pub fn eviction(self) -> Option<Eviction> {
        match self {
            Self::Evicted(eviction) => Some(eviction),
            Self::Unknown | Self::Limit => None,
        }
    }
}
