//! The error of a Slurm command that did not answer.
//!
//! Input: what the command wrote or why it failed. Output: a [`SchedulerError`] with Slurm's name.

use dispatch_core::scheduler::SchedulerError;

/// Name of this scheduler in errors and logs.
pub const NAME: &str = "slurm";

/// Slurm did not answer completely, so its state is unknown; `detail` is the cause.
pub fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}
