//! Handing attempts to a scheduler by its submit command: the token into its file, the command, and what its answer
//! proves.

use crate::attempt_dir::AttemptDir;
use crate::command::{Command, Failure};
use crate::scheduler::{Order, SchedulerError};
use crate::world::JobId;

/// Submits `order` with `command`. The job's id is what stands before `separator` on the last line of its answer.
pub async fn hand_over(
    scheduler: &'static str,
    order: &Order,
    dir: &AttemptDir,
    command: Command,
    separator: &str,
) -> Result<JobId, SchedulerError> {
    prepare(scheduler, order, dir).await?;
    let submitted = submit(command).await;
    submitted
        .map(|output| JobId(job_number(&output, separator)))
        .map_err(|failure| failed(scheduler, order, &failure))
}

/// Writes the attempt's credentials where its job finds them.
pub async fn prepare(
    scheduler: &'static str,
    order: &Order,
    dir: &AttemptDir,
) -> Result<(), SchedulerError> {
    let (attempt, credentials) = (order.attempt.clone(), order.credentials.clone());
    dir.in_time(move |dir| dir.create_for(&attempt, &credentials))
        .await
        .map_err(|error| SchedulerError::Refused {
            scheduler,
            container: order.container.clone(),
            detail: format!("cannot write {}: {error}", dir.path().display()),
        })
}

/// Runs a submit command; what it answered.
pub async fn submit(command: Command) -> Result<String, Failure> {
    let answer = command.succeed().await;
    fail_points::fail_point("dispatcher.command-answered");
    Ok(answer?.output)
}

/// What the failure of a submit command says of one of its orders.
pub fn failed(scheduler: &'static str, order: &Order, failure: &Failure) -> SchedulerError {
    let (container, detail) = (order.container.clone(), failure.to_string());
    match failure.is_not_started() {
        true => SchedulerError::Refused {
            scheduler,
            container,
            detail,
        },
        // Whatever it says, a job may have been made: the next listings tell.
        false => SchedulerError::Ambiguous {
            scheduler,
            container,
            detail,
        },
    }
}

/// The job's id in a submit command's answer. Sites print greetings and warnings before it.
pub fn job_number(output: &str, separator: &str) -> String {
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
            assert_eq!(job_number(output, separator), number, "{output:?}");
        }
    }
}
