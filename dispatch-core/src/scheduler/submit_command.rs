//! Submits an attempt with the submit command of a scheduler.
//!
//! Input: a [`SubmitRequest`], its [`AttemptDir`] and the command. Output: the token file, and the
//! job's identifier or an error that says whether a job may exist.

use crate::model::world::JobId;
use crate::scheduler::attempt_dir::AttemptDir;
use crate::scheduler::command::{Command, CommandFailure, CommandOutput};
use crate::scheduler::submit_host;
use crate::scheduler::{SchedulerError, SubmitRequest};

/// Submits `order` with `command`. The job's number precedes `separator` on a line of the output.
pub async fn submit_with_token(
    scheduler: &'static str,
    order: &SubmitRequest,
    dir: &AttemptDir,
    command: Command,
    separator: &str,
) -> Result<JobId, SchedulerError> {
    write_token(order, dir).await?;
    let submitted = run_submit(command, separator, |_| false).await;
    submitted
        .map(JobId)
        .map_err(|failure| submit_error(scheduler, order, &failure))
}

/// Writes the credentials of the attempt to the token file of its job.
pub async fn write_token(order: &SubmitRequest, dir: &AttemptDir) -> Result<(), SchedulerError> {
    let (attempt, credentials) = (order.attempt.clone(), order.credentials.clone());
    dir.with_timeout(move |dir| dir.create_for(&attempt, &credentials))
        .await
        .map_err(|error| submit_host::job_directory_error(&order.container, dir.path(), &error))
}

/// Runs a submit command, and returns the number of its job. Lines of stderr that `means_nothing`
/// knows are not logged.
pub async fn run_submit(
    command: Command,
    separator: &str,
    means_nothing: fn(&str) -> bool,
) -> Result<String, CommandFailure> {
    let program = command.name();
    let answer = command.run_until_exit().await;
    fail_points::fail_point("dispatcher.command-answered");
    let answer = answer?;
    let job = parse_job_id(&answer, separator)?;
    answer.into_stdout_except(&program, means_nothing);
    Ok(job)
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

/// Parses the job's number from the answer of a submit command. Sites print greetings and warnings
/// beside it. Without a number the answer is taken for an error text: a site's own command may
/// refuse a job in this way, with exit status 0.
pub fn parse_job_id(answer: &CommandOutput, separator: &str) -> Result<String, CommandFailure> {
    let number = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("Submitted batch job ").unwrap_or(line);
        let id = line.split(separator).next()?.trim_end();
        let is_digit = |c: char| c.is_ascii_digit();
        let is_number = id.starts_with(is_digit) && id.chars().all(|c| is_digit(c) || c == '.');
        is_number.then(|| id.to_owned())
    };
    let found = answer.stdout.lines().rev().find_map(number);
    found.ok_or_else(|| {
        let texts = [answer.stdout.trim(), answer.stderr.trim()];
        let said = texts.into_iter().find(|text| !text.is_empty());
        let said = said.unwrap_or("it printed no job number, and nothing else");
        CommandFailure::Failed(said.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stdout: &str, stderr: &str) -> CommandOutput {
        CommandOutput {
            status: std::process::ExitStatus::default(),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn the_job_number_is_a_line_of_its_own() {
        for (output, separator, number) in [
            ("12\n", ";", "12"),
            ("12;cluster\n", ";", "12"),
            ("a site's greeting\n12\n\n", ";", "12"),
            ("12\n3 nodes are down today\n", ";", "12"),
            ("Submitted batch job 12\n", ";", "12"),
            ("12.0 - 12.0\n", " - ", "12.0"),
            ("WARNING: x\n3.0 - 3.0\nhave a nice day", " - ", "3.0"),
        ] {
            let parsed = parse_job_id(&answer(output, "error: x"), separator);
            assert_eq!(parsed.unwrap(), number, "{output:?}");
        }
    }

    #[test]
    fn an_output_without_a_number_is_an_error() {
        let refused = "Job not submitted: budget 7;8";
        let failed = "sbatch: error: Batch job submission failed: Socket timed out";
        for (stdout, stderr, error) in [
            (refused, "a warning", refused),
            ("12x\n", "", "12x"),
            ("\n", failed, failed),
            (" \n", "", "it printed no job number, and nothing else"),
        ] {
            let failure = parse_job_id(&answer(stdout, stderr), ";").unwrap_err();
            assert_eq!(failure.to_string(), error);
        }
    }
}
