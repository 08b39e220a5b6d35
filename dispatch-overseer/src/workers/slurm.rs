//! Worker jobs in Slurm, found again by name and comment.
//!
//! One `sbatch` each, and no arrays: the waiting elements of an array are one record to Slurm, and `scancel --state=PENDING`
//! of one of them (22.05) takes them all.

use std::path::PathBuf;
use std::time::Duration;

use demand::Worker;
use dispatch_core::command::Command;

use super::{Size, StartError, Unknown, Workers, library_path, not_submitted};
use crate::job::{Job, State};

/// Slurm, by the commands in PATH.
#[derive(Debug)]
pub struct Slurm {
    /// Tells this overseer's jobs from all others; they are named by it.
    pub label: String,
    /// A directory for what workers say; the nodes should see it too.
    pub logs: PathBuf,
    /// How long a command may take.
    pub patience: Duration,
    /// What a worker takes.
    pub size: Size,
    /// Arguments of sbatch that the admin added.
    pub more: Vec<String>,
}

impl Slurm {
    fn name(&self) -> String {
        format!("dispatch-worker-{}", self.label)
    }

    fn arguments(&self, mark: &str) -> Vec<String> {
        let mut arguments = vec![
            "--parsable".to_owned(),
            // A worker that was lost is wanted again only if the file says so.
            "--no-requeue".to_owned(),
            format!("--cpus-per-task={}", self.size.cpus),
            format!("--mem={}M", self.size.memory_mib),
            "--chdir=/".to_owned(),
            // %j is sbatch's own pattern; any other is part of a name.
            format!(
                "--output={}/%j.log",
                self.logs.to_string_lossy().replace('%', "%%")
            ),
        ];
        arguments.extend(self.more.iter().cloned());
        // Last, so that they hold: by these it is found again.
        arguments.push(format!("--job-name={}", self.name()));
        arguments.push(format!("--comment={mark}"));
        arguments
    }
}

/// The worker takes the place of the shell, so that Slurm's signals reach it.
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

/// Rows of `squeue --format=%i|%T|%S|%k`, where only our own jobs are asked for.
fn parse(listing: &str) -> Result<Vec<Job>, Unknown> {
    let row = |line: &str| {
        let unreadable = || Unknown(format!("squeue wrote a line that cannot be read: {line:?}"));
        let mut fields = line.splitn(4, '|');
        let mut field = || fields.next().ok_or_else(unreadable);
        let (id, state, start, mark) = (field()?, field()?, field()?, field()?);
        if !id.starts_with(|c: char| c.is_ascii_digit()) || state.is_empty() {
            return Err(unreadable());
        }
        let Some(state) = meaning(state) else {
            return Ok(None);
        };
        Ok(Some(Job {
            id: id.to_owned(),
            // Of a job that waits it is a guess.
            started_at: start.parse().ok().filter(|_| state != State::Idle),
            state,
            mark: mark.to_owned(),
            held: None,
        }))
    };
    if !listing.is_empty() && !listing.ends_with('\n') {
        return Err(Unknown("squeue's answer was cut".to_owned()));
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

/// None for a job that is over. An unknown state is one that is not touched.
fn meaning(state: &str) -> Option<State> {
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => Some(State::Idle),
        "COMPLETING" | "STAGE_OUT" => Some(State::Leaving),
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" | "TIMEOUT" => None,
        _ => Some(State::Busy),
    }
}

impl Workers for Slurm {
    async fn list(&self) -> Result<Vec<Job>, Unknown> {
        let user = rustix::process::getuid().as_raw();
        let command = Command::new("squeue")
            .patience(self.patience)
            // Otherwise its times are local, and do not say where.
            .envs([("SLURM_TIME_FORMAT".into(), "%s".into())])
            .args(["--noheader", "--all", "--format=%i|%T|%S|%k"])
            .args([format!("--user={user}"), format!("--name={}", self.name())]);
        let answer = command
            .succeed()
            .await
            .map_err(|e| Unknown(e.to_string()))?;
        // It says some errors with exit status 0.
        match answer.complaint.contains("error") {
            true => Err(Unknown(answer.complaint)),
            false => parse(&answer.output),
        }
    }

    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError> {
        // A job gets the environment of its sbatch, and our TMPDIR is not a node's.
        let command = Command::new("sbatch")
            .patience(self.patience)
            .without("TMPDIR")
            .args(self.arguments(&worker.mark()))
            .input(script(worker)?);
        for _ in 0..count {
            command.clone().succeed().await.map_err(not_submitted)?;
        }
        Ok(())
    }

    async fn stop(&self, jobs: &[String]) -> Result<(), Unknown> {
        // One that has started since is left out.
        let command = Command::new("scancel")
            .patience(self.patience)
            .args(["--state=PENDING"])
            .args(jobs);
        let done = command.succeed().await;
        done.map(drop).map_err(|e| Unknown(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
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
    fn its_name_and_its_comment_are_ours_whatever_an_admin_adds() {
        let slurm = Slurm {
            label: "0123".into(),
            logs: "/shared/100%".into(),
            patience: Duration::from_secs(1),
            size: Size {
                cpus: 2,
                memory_mib: 512,
            },
            more: vec!["--partition=p".into(), "--job-name=x".into()],
        };
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
                    job.mark.as_str(),
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
