//! Runs tasks: calls to API server and scheduler. [`runner`] has the entry point.

pub mod attempt_tokens;
mod cancel_record;
pub mod crash_log;
pub mod end_attempt;
mod grant_extra_attempt;
mod holder;
pub mod lock;
mod permanent_failure;
mod record_undelivered;
pub mod runner;
mod stop;
mod submit;
pub mod unlock;

pub(crate) use lock::is_unsupported_call;
pub use runner::{TaskResult, TaskRunner};
