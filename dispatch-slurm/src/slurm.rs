//! Slurm as a scheduler: sbatch, squeue, scancel.

use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::command::{Command, Failure};
use dispatch_core::exit_status;
use dispatch_core::handover::hand_over;
use dispatch_core::home::Home;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{
    Candidate, Ending, JOB_ENVIRONMENT, Order, Scheduler, SchedulerError, StillInUse, Urgency,
};
use dispatch_core::world::{Job, JobId};

use crate::squeue::{self, ENDING, LISTING};
use crate::submission::Settings;
use crate::template::Values;

const NAME: &str = "slurm";

/// The scheduler.
#[derive(Debug)]
pub struct Slurm {
    settings: Settings,
    /// On a file system that every node sees.
    shared: Home,
    /// Tells our jobs from those of another dispatcher of the same user.
    label: String,
    /// How long a command may take.
    patience: Duration,
}

fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}

impl Slurm {
    /// Slurm as the commands in PATH know it.
    pub fn new(settings: Settings, shared: Home, label: String, patience: Duration) -> Self {
        Self {
            patience,
            settings,
            shared,
            label,
        }
    }

    /// Whether squeue answers; the error is for the admin, at the start.
    pub async fn check(&self) -> Result<(), SchedulerError> {
        self.list().await.map(drop)
    }

    fn dir(&self, container: &ContainerUuid) -> AttemptDir {
        AttemptDir::of(self.shared.path(), container)
    }

    async fn squeue(&self, more: &[&str]) -> Result<String, SchedulerError> {
        let user = rustix::process::getuid().as_raw().to_string();
        let arguments = ["--noheader", "--all", "--user", &user];
        let command = Command::new("squeue").patience(self.patience);
        let command = command.args(arguments).args(more);
        let answer = command
            .succeed()
            .await
            .map_err(|e| no_answer(e.to_string()))?;
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
            .sbatch(
                values,
                &squeue::comment(&order.attempt, &self.label),
                &dir.output_file(),
                &order.avoid,
            )
            .map_err(|error| refused(error.to_string()))?;
        let script = self
            .settings
            .script(&container, &dir.token_file_of(&order.attempt))
            .map_err(|error| refused(error.to_string()))?;
        let environment = JOB_ENVIRONMENT
            .iter()
            .chain(fail_points::ENVIRONMENT)
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let command = Command::new("sbatch")
            .patience(self.patience)
            .args(arguments)
            .envs(environment)
            .input(script);
        hand_over(NAME, order, &dir, command, ";").await
    }

    /// The exit status of a job that failed, while Slurm remembers it.
    async fn exit_status(&self, job: &str) -> Option<i64> {
        let command = Command::new("scontrol").patience(self.patience);
        let arguments = ["--oneliner", "show", "job", job];
        let answer = command.args(arguments).succeed().await.ok()?;
        squeue::exit_status(&answer.output)
    }

    async fn scancel(&self, arguments: &[&str]) -> Result<(), SchedulerError> {
        let command = Command::new("scancel").patience(self.patience);
        match command.args(arguments).succeed().await {
            Ok(_) => Ok(()),
            // Gone already.
            Err(Failure::Said(said))
                if said.contains("Invalid job id") || said.contains("already complet") =>
            {
                Ok(())
            }
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }
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
        let rows =
            squeue::parse(&listing, &self.label).map_err(|error| no_answer(error.to_string()))?;
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

    async fn ending(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Ending {
        let name = format!("--name={container}");
        let listing = self
            .squeue(&["--states=all", "--sort=i", &name, "--format", ENDING])
            .await;
        let mut ended = match listing {
            Ok(listing) => squeue::ending(&listing, attempt),
            Err(error) => {
                squeue::Ended::unknown(format!("it cannot be told how its job ended: {error}"))
            }
        };
        let mut undelivered = false;
        if let Some(job) = &ended.failed
            && let Some(status) = self.exit_status(job).await
        {
            let said = exit_status::sentence(status);
            ended.reason = format!("Slurm job {job} ended with exit code {status}: {said}");
            undelivered = status == exit_status::UNDELIVERED;
        }
        Ending {
            reason: ended.reason,
            detail: self.dir(container).last_words_in_time().await,
            node: ended.node,
            alive: ended.alive,
            undelivered,
        }
    }

    async fn forget(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        self.dir(container).forget().await;
        Ok(())
    }

    /// Only squeue tells.
    async fn wake(&self) {
        std::future::pending().await
    }
}
