//! The [`Reason`] of an action: input of log, metrics and audit, with its text for the user.

/// The reason of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The container's priority is 0.
    PriorityZero,
    /// The record is Complete or Cancelled.
    ContainerFinal,
    /// The record does not exist any more.
    ContainerDeleted,
    /// The record is Queued again, or another dispatcher holds it.
    LockLost,
    /// Another job runs the same container.
    DuplicateJob,
    /// Two complete listings do not show the job.
    JobGone,
    /// The job could not start by itself and reached the start timeout.
    StartTimeout,
    /// The results stayed on the node and were not delivered in time.
    Undelivered,
    /// The scheduler refused the job.
    Refused,
    /// The dispatcher is shutting down before it could submit the container.
    Draining,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::PriorityZero => "its priority is 0",
            Reason::ContainerFinal => "the container has ended",
            Reason::ContainerDeleted => "the container does not exist any more",
            Reason::LockLost => "this attempt does not hold the container's lock",
            Reason::DuplicateJob => "another job runs the same container",
            Reason::JobGone => "its job is gone",
            Reason::StartTimeout => "its job did not start before the start timeout",
            Reason::Undelivered => "its results were not delivered from the node in time",
            Reason::Refused => "the scheduler refused its job",
            Reason::Draining => "the dispatcher is shutting down before submitting it",
        })
    }
}
