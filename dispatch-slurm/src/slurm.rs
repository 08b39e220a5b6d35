//! Slurm as a scheduler: sbatch, squeue, scancel.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use arvados_client::{ContainerUuid, Token};
use dispatch_core::command::{Answer, Command, CommandError};
use dispatch_core::home::Home;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{Candidate, Ending, Order, Scheduler, SchedulerError, Urgency};
use dispatch_core::world::{Job, JobId};

use crate::squeue::{self, ENDING, LISTING};
use crate::submission::Settings;
use crate::template::Values;

const NAME: &str = "slurm";
/// What of our environment the job gets, besides what sbatch itself needs. No token: that is in a file.
const JOB_ENVIRONMENT: [&str; 4] = [
    "ARVADOS_API_HOST",
    "ARVADOS_API_HOST_INSECURE",
    "ARVADOS_KEEP_SERVICES",
    "SSL_CERT_FILE",
];
/// How much of the job's output is quoted.
const LAST_WORDS: usize = 2000;

/// The scheduler.
#[derive(Debug)]
pub struct Slurm {
    settings: Settings,
    /// On a file system that every node sees.
    shared: Home,
}

/// A command that did not do what it should: an answer with a failure, or no answer.
fn failure(answer: Result<Answer, CommandError>) -> Result<Answer, String> {
    match answer {
        Ok(answer) if answer.status.success() => Ok(answer),
        Ok(answer) => Err(answer.failure()),
        Err(error) => Err(error.to_string()),
    }
}

fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}

impl Slurm {
    /// Slurm as the commands in PATH know it.
    pub fn new(settings: Settings, shared: Home) -> Self {
        Self { settings, shared }
    }

    /// Whether squeue answers; the error is for the admin, at the start.
    pub async fn check(&self) -> Result<(), SchedulerError> {
        self.list().await.map(drop)
    }

    fn dir(&self, container: &ContainerUuid) -> PathBuf {
        self.shared.path().join(container.as_str())
    }

    async fn squeue(&self, more: &[&str]) -> Result<String, SchedulerError> {
        let user = rustix::process::getuid().as_raw().to_string();
        let arguments = ["--noheader", "--all", "--user", &user];
        let command = Command::new("squeue").args(arguments).args(more);
        let answer = failure(command.run().await).map_err(no_answer)?;
        // It says some errors with exit status 0.
        match answer.complaint.contains("error") {
            true => Err(no_answer(answer.complaint)),
            false => Ok(answer.output),
        }
    }

    async fn sbatch(&self, order: &Order) -> Result<JobId, SchedulerError> {
        let container = order.container.clone();
        let refused = |detail: String| SchedulerError::Refused {
            scheduler: NAME,
            container: container.clone(),
            detail,
        };
        let dir = self.dir(&container);
        let values = Values {
            container: &container,
            needs: &order.needs,
        };
        let arguments = self
            .settings
            .sbatch(values, &order.attempt, &dir.join("output.log"))
            .map_err(|error| refused(error.to_string()))?;
        let token_file = dir.join("token");
        let script = self
            .settings
            .script(&container, &token_file)
            .map_err(|error| refused(error.to_string()))?;
        write_token(&dir, &token_file, &order.token)
            .map_err(|error| refused(format!("cannot write {}: {error}", token_file.display())))?;
        let environment = JOB_ENVIRONMENT
            .iter()
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let command = Command::new("sbatch")
            .args(arguments)
            .envs(environment)
            .input(script);
        match command.run().await {
            Err(error @ CommandError::NotStarted { .. }) => Err(refused(error.to_string())),
            // Whatever it says, a job may have been made: the next listings tell.
            answer => match failure(answer) {
                Ok(answer) => Ok(JobId(job_number(&answer.output))),
                Err(detail) => Err(SchedulerError::Ambiguous {
                    scheduler: NAME,
                    container,
                    detail,
                }),
            },
        }
    }

    async fn scancel(&self, arguments: &[&str]) -> Result<(), SchedulerError> {
        let answer = Command::new("scancel").args(arguments).run().await;
        match failure(answer) {
            Ok(_) => Ok(()),
            // Gone already.
            Err(said) if said.contains("Invalid job id") || said.contains("already complet") => {
                Ok(())
            }
            Err(said) => Err(no_answer(said)),
        }
    }
}

/// `123` or `123;cluster`, the last line: warnings come before it.
fn job_number(output: &str) -> String {
    let last = output.lines().rfind(|line| !line.trim().is_empty());
    let id = last.and_then(|line| line.split(';').next());
    id.unwrap_or_default().trim().to_owned()
}

/// A fresh directory for this attempt, for nobody else to read.
fn write_token(dir: &Path, file: &Path, token: &Token) -> std::io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => fs::DirBuilder::new().mode(0o700).create(dir)?,
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(token.expose().as_bytes())?;
    file.sync_all()
}

impl Scheduler for Slurm {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Slurm queues what does not fit now, and says why; how much it is given at once is `max_pending`'s matter.
    fn admit(&self, candidates: &[Candidate], _started: &[Candidate]) -> Vec<Fit> {
        candidates.iter().map(|_| Fit::Now).collect()
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
        let listing = self.squeue(&["--format", LISTING]).await?;
        let rows = squeue::parse(&listing).map_err(|error| no_answer(error.to_string()))?;
        Ok(rows.iter().map(squeue::Row::job).collect())
    }

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        self.sbatch(&order).await
    }

    async fn stop(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        match urgency {
            Urgency::Force => self.scancel(&[&job.0]).await,
            Urgency::Ask => {
                // A pending job has no process to ask. If it starts between the two, the signal finds it.
                self.scancel(&["--state=PENDING", &job.0]).await?;
                self.scancel(&["--batch", "--signal=TERM", &job.0]).await
            }
        }
    }

    async fn ending(&self, container: &ContainerUuid) -> Ending {
        let name = format!("--name={container}");
        let reason = match self
            .squeue(&["--states=all", "--sort=i", &name, "--format", ENDING])
            .await
        {
            Ok(listing) => squeue::verdict(&listing).unwrap_or_else(|| {
                "Slurm does not know its job any more (it forgets ended jobs after MinJobAge)"
                    .into()
            }),
            Err(error) => format!("it cannot be told how its job ended: {error}"),
        };
        let words = fs::read(self.dir(container).join("output.log")).unwrap_or_default();
        let from = words.len().saturating_sub(LAST_WORDS);
        Ending {
            reason,
            detail: String::from_utf8_lossy(&words[from..]).into_owned(),
        }
    }

    async fn forget(&self, container: &ContainerUuid) {
        if let Err(error) = fs::remove_dir_all(self.dir(container))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%container, %error, "could not remove the job's directory");
        }
    }

    /// Only squeue tells.
    async fn wake(&self) {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_number_is_on_the_last_line() {
        for (output, number) in [
            ("12\n", "12"),
            ("12;cluster\n", "12"),
            ("a site's greeting\n12\n\n", "12"),
            ("", ""),
        ] {
            assert_eq!(job_number(output), number, "{output:?}");
        }
    }
}
