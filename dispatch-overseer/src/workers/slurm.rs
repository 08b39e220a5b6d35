//! Worker jobs in Slurm, found again by job name and comment.
//!
//! Each worker is one `sbatch`, not an element of an array: the pending elements of an array are
//! one record in Slurm, and `scancel --state=PENDING` of one element (22.05) cancels all of them.

use dispatch_core::scheduler::slurm_answer::squeue_rows;
use worker_demand::Worker;

use super::{BackendError, SchedulerJobs, StartError, WorkerBackend, library_path};
use crate::job::{Job, State};

/// Slurm, through its commands in PATH.
#[derive(Debug)]
pub struct Slurm(pub SchedulerJobs);

impl Slurm {
    fn name(&self) -> String {
        format!("dispatch-worker-{}", self.0.label)
    }

    fn arguments(&self, command_hash: &str) -> Vec<String> {
        let mut arguments = vec![
            "--parsable".to_owned(),
            // Only the demand file decides about a replacement of a lost worker.
            "--no-requeue".to_owned(),
            format!("--cpus-per-task={}", self.0.cpus),
            format!("--mem={}M", self.0.memory_mib),
            "--chdir=/".to_owned(),
            // %j is the pattern of sbatch for the job id; any other percent sign is part of the
            // path.
            format!(
                "--output={}/%j.log",
                self.0.logs.to_string_lossy().replace('%', "%%")
            ),
        ];
        arguments.extend(self.0.submit_options.iter().cloned());
        // Last, so that no extra argument overrides them: the job is found again by these.
        arguments.push(format!("--job-name={}", self.name()));
        arguments.push(format!("--comment={command_hash}"));
        arguments
    }
}

/// The job script. It ends in `exec`, so that signals of Slurm reach the worker.
fn script(worker: &Worker) -> Result<String, StartError> {
    let quoted = |words: Vec<&str>| {
        shlex::try_join(words).map_err(|error| StartError::Refused(error.to_string()))
    };
    let words = std::iter::once(&worker.program).chain(&worker.arguments);
    let command = quoted(words.map(String::as_str).collect())?;
    let libraries = match library_path(worker) {
        None => String::new(),
        Some(path) => format!(
            "export LD_LIBRARY_PATH={}\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n",
            quoted(vec![&path])?
        ),
    };
    Ok(format!("#!/bin/sh\n{libraries}exec {command}\n"))
}

/// Parses rows of `squeue --format=%i|%T|%S|%k`.
fn parse(listing: &str) -> Result<Vec<Job>, BackendError> {
    let row = |line: &str| {
        let unreadable =
            || BackendError(format!("squeue wrote a line that cannot be read: {line:?}"));
        let mut fields = line.splitn(4, '|');
        let mut field = || fields.next().ok_or_else(unreadable);
        let (id, state, start, command_hash) = (field()?, field()?, field()?, field()?);
        if !id.starts_with(|c: char| c.is_ascii_digit()) || state.is_empty() {
            return Err(unreadable());
        }
        let Some(state) = job_state(state) else {
            return Ok(None);
        };
        Ok(Some(Job {
            id: id.to_owned(),
            // For a pending job, squeue shows an expected start time.
            started_at: start.parse().ok().filter(|_| state != State::Idle),
            state,
            command_hash: command_hash.to_owned(),
            held: None,
        }))
    };
    if !listing.is_empty() && !listing.ends_with('\n') {
        return Err(BackendError("the output of squeue is cut off".to_owned()));
    }
    let mut jobs: Vec<Job> = listing
        .lines()
        .map(row)
        .filter_map(Result::transpose)
        .collect::<Result<_, _>>()?;
    // Oldest first.
    jobs.sort_by_key(|job| job.id.parse::<u64>().unwrap_or_default());
    Ok(jobs)
}

/// `None` for a job that has ended. An unknown state counts as busy, so the job is not stopped.
fn job_state(state: &str) -> Option<State> {
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => Some(State::Idle),
        "COMPLETING" | "STAGE_OUT" => Some(State::Leaving),
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" | "TIMEOUT" => None,
        _ => Some(State::Busy),
    }
}

impl WorkerBackend for Slurm {
    async fn list(&self) -> Result<Vec<Job>, BackendError> {
        let user = rustix::process::getuid().as_raw();
        let command = self
            .0
            .command("squeue")
            // Default times are local without a time zone.
            .envs([("SLURM_TIME_FORMAT".into(), "%s".into())])
            .args(["--all", "--format=%i|%T|%S|%k"])
            .args([format!("--user={user}"), format!("--name={}", self.name())]);
        let answer = command.run_checked().await?;
        let Some(jobs) = squeue_rows(&answer).map(parse) else {
            return Err(BackendError(answer.stderr));
        };
        answer.into_stdout("squeue");
        jobs
    }

    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError> {
        // A job inherits the environment of sbatch, and TMPDIR of this machine may not exist on the
        // node.
        let command = self
            .0
            .command("sbatch")
            .without("TMPDIR")
            .args(self.arguments(&worker.command_hash()))
            .input(script(worker)?);
        for _ in 0..count {
            command.clone().run_checked().await?;
        }
        Ok(())
    }

    async fn stop(&self, jobs: &[String]) -> Result<(), BackendError> {
        // A job that has started since the listing is left alone.
        let command = self.0.command("scancel").args(["--state=PENDING"]);
        command.args(jobs).run_checked().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn worker() -> Worker {
        Worker {
            program: "/opt/it's mine".into(),
            libraries: vec!["/l/a.so".into(), "/l/b.so".into(), "/m n/c.so".into()],
            arguments: vec!["$(reboot)".into(), String::new(), "a\"b".into()],
        }
    }

    #[test]
    fn a_script_runs_the_command_and_nothing_else() {
        let script = script(&worker()).unwrap();
        let command = script
            .lines()
            .last()
            .unwrap()
            .strip_prefix("exec ")
            .unwrap();
        let words = shlex::split(command).unwrap();
        assert_eq!(words, ["/opt/it's mine", "$(reboot)", "", "a\"b"]);
        assert!(!command.contains(" $("), "{command}");
        assert!(
            script.contains("\nexport LD_LIBRARY_PATH='/l:/m n'\"${"),
            "{script}"
        );
    }

    #[test]
    fn name_and_comment_are_ours_whatever_an_admin_adds() {
        let slurm = Slurm(SchedulerJobs {
            label: "0123".into(),
            logs: "/shared/100%".into(),
            command_timeout: Duration::from_secs(1),
            cpus: 2,
            memory_mib: 512,
            submit_options: vec!["--partition=p".into(), "--job-name=x".into()],
        });
        let arguments = slurm.arguments("mark").join(" ");
        assert_eq!(
            arguments,
            "--parsable --no-requeue --cpus-per-task=2 --mem=512M --chdir=/ --output=/shared/100%%/%j.log \
             --partition=p --job-name=x --job-name=dispatch-worker-0123 --comment=mark"
        );
    }

    #[test]
    fn a_listing_is_read_whole_or_not() {
        let listing = "12|PENDING|1700000099|m\n11|RUNNING|1700000000|m\n9|COMPLETING|1700000001|o\n\
                       10|CONFIGURING|N/A|m|x\n8|FAILED|1|m\n";
        let jobs = parse(listing).unwrap();
        let short: Vec<_> = jobs
            .iter()
            .map(|job| {
                (
                    job.id.as_str(),
                    job.state,
                    job.started_at,
                    job.command_hash.as_str(),
                )
            })
            .collect();
        assert_eq!(
            short,
            [
                ("9", State::Leaving, Some(1_700_000_001), "o"),
                ("10", State::Busy, None, "m|x"),
                ("11", State::Busy, Some(1_700_000_000), "m"),
                ("12", State::Idle, None, "m"),
            ]
        );
        assert_eq!(parse("").unwrap(), []);
        for bad in [
            "12|PENDING|1|m",
            "12|PENDING|1\n",
            "x|PENDING|1|m\n",
            "1||1|m\n",
        ] {
            parse(bad).unwrap_err();
        }
    }
}
