//! Queries how the job of an attempt ended: `squeue` first, then `sacct`, then `scontrol` for an
//! exit status.
//!
//! Input: a container and its attempt. Output: an [`JobExit`] with the reason, the last output of
//! the job, and whether anything about it is uncertain.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::scheduler::attempt_dir::OutputTail;
use dispatch_core::scheduler::command::CommandFailure;
use dispatch_core::scheduler::{ExitCause, JobExit, SchedulerError, Uncertainty};

use crate::query::accounting::{AccountingState, user_name};
use crate::query::ended_job::is_unknown_job;
use crate::query::exit_record::{self, ExitRecord, SQUEUE_FORMAT};
use crate::slurm::Slurm;

/// Reason of an exit of which Slurm has no record, though there was a job.
const JOB_FORGOTTEN: &str = "Slurm has no record of its job any more (it drops ended jobs after MinJobAge, and a restart of \
     slurmctld may lose jobs)";
/// The same if nothing shows that there was one.
const NO_JOB: &str =
    "Slurm has no job of this attempt: it was not submitted, or slurmctld has lost it";

impl Slurm {
    /// Determines how the job ended, with the last lines of its output.
    pub(crate) async fn fetch_job_exit(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> JobExit {
        let (record, status_unknown) = match self.query_exit(container, attempt).await {
            Ok(exit) => exit,
            Err(error) => return JobExit::uncertain(Uncertainty::MayBeRunning(error.to_string())),
        };
        let output = self.attempt_dir(container).output_tail_with_timeout().await;
        let has_output = !output.as_ref().is_ok_and(OutputTail::is_empty);
        let was_known = self.job_id_of(container, attempt).is_some();
        let rejection = self.rejections.message_for(container, attempt);
        let is_unrejected = rejection.is_none();
        let reason = match &record {
            Some(record) => {
                let user = match record.cancelled_by {
                    Some(uid) => Some(user_name(uid).await),
                    None if self.cancelled_by_us(record) => Some("this dispatcher".to_owned()),
                    None => None,
                };
                record.describe(user.as_deref())
            }
            None => rejection.unwrap_or_else(|| match was_known || has_output {
                true => JOB_FORGOTTEN.to_owned(),
                false => NO_JOB.to_owned(),
            }),
        };
        // Slurm may have forgotten the job while the API server was down. Then only the job's
        // output tells.
        let forgotten = record
            .as_ref()
            .is_none_or(|record| record.status.is_none() && record.needs_exit_status());
        let unread = output.as_ref().err().filter(|_| forgotten);
        let status_unknown = status_unknown.or(unread.map(ToString::to_string));
        let output = output.unwrap_or_default();
        let says_undelivered = forgotten && output.is_undelivered();
        let is_alive = record.as_ref().is_some_and(ExitRecord::is_alive);
        let uncertain = status_unknown
            .filter(|_| !says_undelivered)
            .map(Uncertainty::ResultsUnknown);
        let cause = match &record {
            Some(record) => record.cause(),
            None => ExitCause::of_status_line(output.status_line.as_ref()),
        };
        JobExit {
            without_trace: record.is_none() && is_unrejected && output.is_empty(),
            reason,
            cause,
            detail: output.text,
            status_line: output.status_line,
            uncertainty: is_alive.then_some(Uncertainty::StillRunning).or(uncertain),
            undelivered: says_undelivered
                || record.as_ref().is_some_and(ExitRecord::is_undelivered),
            never_started: record.as_ref().is_some_and(ExitRecord::was_never_started),
            node: record.and_then(|record| record.node),
            log_dir: None,
        }
    }

    /// Queries what Slurm has on the end of an attempt's job. The second value tells why the exit
    /// status is unknown, where it matters.
    async fn query_exit(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Result<(Option<ExitRecord>, Option<String>), SchedulerError> {
        let job = self.job_id_of(container, attempt);
        // A query by id covers the given jobs only; a query by name searches all jobs of the user.
        let listing = match &job {
            Some(job) => {
                let command = |jobs| self.query_squeue_each("--jobs", jobs);
                self.by_id.query(job, command).await
            }
            None => {
                let command = |names| self.query_squeue_each("--name", names);
                self.by_name.query(container.as_str(), command).await
            }
        };
        let from_squeue = listing.as_deref().ok();
        let from_squeue = from_squeue
            .and_then(|listing| exit_record::parse_squeue(listing, attempt, job.as_deref()));
        let is_enough = |record: &ExitRecord| record.is_alive() || self.cancelled_by_us(record);
        if from_squeue.as_ref().is_some_and(is_enough) {
            return Ok((from_squeue, None));
        }
        let (from_sacct, sacct_failure) = self
            .query_accounting(container, attempt, from_squeue.as_ref())
            .await;
        let Some(mut record) = from_squeue.or(from_sacct.clone()) else {
            return listing.map(|_| (None, sacct_failure));
        };
        if let Some(from_sacct) = from_sacct {
            record.status = from_sacct.status;
            record.cancelled_by = from_sacct.cancelled_by;
        }
        let mut status_unknown = None;
        if record.needs_exit_status() && record.status.is_none() {
            match self.query_exit_status(&record.job).await {
                Ok(Some(status)) => record.status = Some(status),
                Ok(None) => status_unknown = sacct_failure,
                Err(failure) => status_unknown = Some(failure.to_string()),
            }
        }
        Ok((Some(record), status_unknown))
    }

    /// Queries these jobs together; if Slurm rejects one of them, each alone. Unknown jobs have no
    /// row.
    async fn query_squeue_each(
        &self,
        option: &str,
        values: Vec<String>,
    ) -> Result<String, SchedulerError> {
        match self.query_squeue(option, &values.join(",")).await {
            Err(SchedulerError::NoAnswer { detail, .. }) if is_unknown_job(&detail) => {}
            listing => return listing,
        }
        // One unknown job makes squeue fail without a row of the others.
        let mut all = String::new();
        for value in values.iter().filter(|_| values.len() > 1) {
            match self.query_squeue(option, value).await {
                Err(SchedulerError::NoAnswer { detail, .. }) if is_unknown_job(&detail) => {}
                listing => all.push_str(&listing?),
            }
        }
        Ok(all)
    }

    async fn query_squeue(&self, option: &str, values: &str) -> Result<String, SchedulerError> {
        self.charge_commands(1);
        let jobs = format!("{option}={values}");
        let query = ["--array", "--states=all", "--sort=i", &jobs, "--format"];
        self.squeue(&[&query, &[SQUEUE_FORMAT][..]].concat()).await
    }

    /// Whether this dispatcher cancelled the job while it was pending: `sacct` has no more on it.
    fn cancelled_by_us(&self, record: &ExitRecord) -> bool {
        let ours = self.cancelled.lock().contains_key(&record.job);
        ours && record.state == "CANCELLED" && record.node.is_none()
    }

    /// Queries `sacct`, which may lag behind: a job that it shows as running is ignored. The second
    /// value tells why there is no record, unless the site has no accounting.
    async fn query_accounting(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
        from_squeue: Option<&ExitRecord>,
    ) -> (Option<ExitRecord>, Option<String>) {
        let sacct = self.settings.client("sacct");
        let job = from_squeue.map(|record| record.job.clone());
        let job = job.or_else(|| self.job_id_of(container, attempt));
        let query = self.accounting.query(sacct, container, job.as_deref());
        let (state, ran_sacct) = query.await;
        self.charge_commands(u32::from(ran_sacct));
        match state {
            AccountingState::Records(lines) => {
                match exit_record::parse_sacct(&lines, attempt, job.as_deref()) {
                    Some(record) if record.is_alive() => (
                        None,
                        Some(format!("sacct still shows it as {}", record.state)),
                    ),
                    record => (record, None),
                }
            }
            AccountingState::Absent => (None, None),
            AccountingState::Unavailable(reason) => (None, Some(reason)),
        }
    }

    /// Queries the exit status of a failed job; none if Slurm has forgotten the job.
    async fn query_exit_status(&self, job: &str) -> Result<Option<i64>, CommandFailure> {
        self.charge_commands(1);
        let command = self.client("scontrol");
        let arguments = ["--oneliner", "show", "job", job];
        match command.args(arguments).run_checked().await {
            Ok(answer) => Ok(exit_record::parse_exit_status(&answer.stdout)),
            Err(CommandFailure::Failed(message)) if is_unknown_job(&message) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}
