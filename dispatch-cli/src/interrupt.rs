//! Ctrl-C, for the commands that follow a job: it ends the command, with a sentence, and leaves the
//! job alone.
//!
//! Whoever sees the first line of a command may type Ctrl-C at once, so the signal is awaited
//! before the command does anything.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::CliError;

/// Does the work. If SIGINT comes meanwhile, the work is dropped and the error is what
/// `interrupted` says.
pub async fn until_interrupted<T>(
    work: impl Future<Output = Result<T, CliError>>,
    interrupted: impl FnOnce() -> CliError,
) -> Result<T, CliError> {
    let Ok(mut interrupts) = signal(SignalKind::interrupt()) else {
        // Then SIGINT ends the command without a sentence.
        return work.await;
    };
    tokio::select! {
        ended = work => ended,
        Some(()) = interrupts.recv() => Err(interrupted()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn a_signal_during_the_first_step_of_the_work_is_noticed() {
        let work = async {
            kill_process(getpid(), Signal::INT).unwrap();
            std::future::pending::<Result<(), CliError>>().await
        };
        let ended = until_interrupted(work, || CliError::ReportInterrupted).await;
        assert!(matches!(ended, Err(CliError::ReportInterrupted)));
    }

    #[tokio::test]
    async fn work_that_ends_is_not_interrupted() {
        let ended = until_interrupted(async { Ok(1) }, || CliError::ReportInterrupted).await;
        assert!(matches!(ended, Ok(1)));
    }
}
