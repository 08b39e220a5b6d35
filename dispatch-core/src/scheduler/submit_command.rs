//! Submits an attempt with the submit command of a scheduler.
//!
//! Input: a [`SubmitRequest`], its [`AttemptDir`] and the command. Output: the token file, and the
//! job's identifier or an error that says whether a job may exist.

use crate::model::world::JobId;
use crate::scheduler::attempt_dir::AttemptDir;
use crate::scheduler::command::{Command, CommandFailure, CommandOutput};
use crate::scheduler::submit_host;
use crate::scheduler::{SchedulerError, SubmitRequest};

/// Submits `order` with `command`. The job's identifier precedes `separator` on the last line of
/// the output.
pub async fn submit_with_token(
    scheduler: &'static str,
    order: &SubmitRequest,
    dir: &AttemptDir,
    command: Command,
    separator: &str,
) -> Result<JobId, SchedulerError> {
    write_token(order, dir).await?;
    let program = command.name();
    let submitted = run_submit(command).await;
    submitted
        .map(|answer| JobId(parse_job_id(&answer.into_stdout(&program), separator)))
        .map_err(|failure| submit_error(scheduler, order, &failure))
}

/// Writes the credentials of the attempt to the token file of its job.
pub async fn write_token(order: &SubmitRequest, dir: &AttemptDir) -> Result<(), SchedulerError> {
    let (attempt, credentials) = (order.attempt.clone(), order.credentials.clone());
    dir.with_timeout(move |dir| dir.create_for(&attempt, &credentials))
        .await
        .map_err(|error| submit_host::job_directory_error(&order.container, dir.path(), &error))
}

/// Runs a submit command.
pub async fn run_submit(command: Command) -> Result<CommandOutput, CommandFailure> {
    let answer = command.run_checked().await;
    fail_points::fail_point("dispatcher.command-answered");
    answer
}

/// Converts the failure of a submit command into the error for one of its orders.
pub fn submit_error(
    scheduler: &'static str,
    order: &SubmitRequest,
    failure: &CommandFailure,
) -> SchedulerError {
    let (container, detail) = (order.container.clone(), failure.to_string());
    match failure.is_not_started() {
        true => SchedulerError::HostFault { container, detail },
        // The failed command may still have created a job. The next listings show it.
        false => SchedulerError::Ambiguous {
            scheduler,
            container,
            detail,
        },
    }
}

/// Parses the job's identifier from the output of a submit command. Sites print greetings and
/// warnings before it.
pub fn parse_job_id(output: &str, separator: &str) -> String {
    let last = output.lines().rfind(|line| !line.trim().is_empty());
    let id = last.and_then(|line| line.split(separator).next());
    id.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_number_is_on_the_last_line() {
        for (output, separator, number) in [
            ("12\n", ";", "12"),
            ("12;cluster\n", ";", "12"),
            ("a site's greeting\n12\n\n", ";", "12"),
            ("12.0 - 12.0\n", " - ", "12.0"),
            ("WARNING: x\n3.0 - 3.0\n", " - ", "3.0"),
            ("", ";", ""),
        ] {
            assert_eq!(parse_job_id(output, separator), number, "{output:?}");
        }
    }
}
