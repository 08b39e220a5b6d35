//! The error of a Slurm command that did not answer.
//!
//! Input: what the command wrote or why it failed. Output: a [`SchedulerError`] with Slurm's name.

use dispatch_core::scheduler::{SchedulerError, SubmitRequest};

/// Name of this scheduler in errors and logs.
pub const NAME: &str = "slurm";

/// Slurm did not answer completely, so its state is unknown; `detail` is the cause.
pub fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}

/// The container of this order cannot be submitted; `error` is the cause.
pub fn refused(order: &SubmitRequest, error: impl ToString) -> SchedulerError {
    SchedulerError::Refused {
        scheduler: NAME,
        container: order.container.clone(),
        detail: error.to_string(),
    }
}
