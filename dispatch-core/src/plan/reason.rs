//! Why something is done, in words.

/// Why an action is taken, for the log, the metrics and the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its priority is 0.
    PriorityZero,
    /// Its record is Complete or Cancelled.
    ContainerFinal,
    /// Its record is gone.
    ContainerDeleted,
    /// Its record is Queued again, or another dispatcher holds it.
    LockLost,
    /// Another job runs the same container.
    SecondJob,
    /// Two complete listings do not show its job.
    JobGone,
    /// Its job waited for too long for something that does not come by itself.
    InVain,
    /// Its results were on its node, and nobody delivered them in time.
    Undelivered,
    /// The scheduler refused its job.
    Refused,
    /// The dispatcher ends before it could submit it.
    Draining,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::PriorityZero => "its priority is 0",
            Reason::ContainerFinal => "the container has ended",
            Reason::ContainerDeleted => "the container does not exist any more",
            Reason::LockLost => "this attempt does not hold the container's lock",
            Reason::SecondJob => "another job runs the same container",
            Reason::JobGone => "its job is gone",
            Reason::InVain => "its job cannot start as things are, and has waited long enough",
            Reason::Undelivered => "its results were not delivered from its node",
            Reason::Refused => "the scheduler refused its job",
            Reason::Draining => "the dispatcher ends before it could submit it",
        })
    }
}
