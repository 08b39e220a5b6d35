//! Queries `sacct`, and remembers for a while that a site has no accounting or that `sacct` failed.
//!
//! Input: a container and, if known, its job id. Output: lines of `sacct`, or why there are none.

use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::command::{Command, CommandFailure};
use parking_lot::Mutex;

use crate::query::exit_record::SACCT_FORMAT;
use crate::settings::Settings;

/// Time for which `sacct` is not called after it showed that there is no accounting.
const ABSENT_COOLDOWN: Duration = Duration::from_secs(3600);
/// Time for which `sacct` is not called after it failed.
const UNAVAILABLE_COOLDOWN: Duration = Duration::from_secs(60);
/// Timeout of `sacct` and `id`: an exit record is not worth a longer wait.
const ACCOUNTING_TIMEOUT: Duration = Duration::from_secs(20);
/// Arguments of every query; jobs that started earlier are not searched.
const ARGUMENTS: [&str; 4] = [
    "--noheader",
    "--parsable2",
    "--allocations",
    "--starttime=now-30days",
];

/// Accounting of Slurm, if the site has it.
#[derive(Debug, Default)]
pub struct Accounting {
    /// State to return instead of calling `sacct`, and until when.
    muted: Mutex<Option<(Instant, AccountingState)>>,
}

/// Result of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountingState {
    /// Lines in [`SACCT_FORMAT`].
    Records(String),
    /// The site has no accounting.
    Absent,
    /// `sacct` failed, and this is why.
    Unavailable(String),
}

impl Accounting {
    /// Queries the job of a container, or all its jobs if `job` is not known. The second value
    /// tells whether `sacct` was run.
    pub async fn query(
        &self,
        sacct: Command,
        container: &ContainerUuid,
        job: Option<&str>,
    ) -> (AccountingState, bool) {
        if let Some(state) = self.recent_answer() {
            return (state, false);
        }
        let command = sacct.timeout(ACCOUNTING_TIMEOUT).args(ARGUMENTS);
        // A job id may be reused after the cluster reset its counter, and a name is shared by all
        // attempts of a container.
        let job = job.map(|job| format!("--jobs={job}"));
        let more = [
            format!("--name={container}"),
            format!("--format={SACCT_FORMAT}"),
        ];
        match command.args(more).args(job).run_checked().await {
            Ok(answer) => (AccountingState::Records(answer.stdout), true),
            Err(failure) => {
                let (state, cooldown) = classify_failure(&failure);
                tracing::debug!(
                    %failure,
                    cooldown_seconds = cooldown.as_secs(),
                    "sacct failed; not calling it during the cooldown"
                );
                *self.muted.lock() = Some((Instant::now() + cooldown, state.clone()));
                (state, true)
            }
        }
    }

    /// The remembered state, while it is valid.
    fn recent_answer(&self) -> Option<AccountingState> {
        let muted = self.muted.lock();
        let current = muted.as_ref().filter(|(until, _)| Instant::now() < *until);
        current.map(|(_, state)| state.clone())
    }
}

/// Classifies a failure, and tells how long to remember it.
fn classify_failure(failure: &CommandFailure) -> (AccountingState, Duration) {
    match failure {
        CommandFailure::Failed(message) if message.contains("disabled") => {
            (AccountingState::Absent, ABSENT_COOLDOWN)
        }
        failure if failure.is_not_installed() => (AccountingState::Absent, ABSENT_COOLDOWN),
        failure => (
            AccountingState::Unavailable(format!("sacct: {failure}")),
            UNAVAILABLE_COOLDOWN,
        ),
    }
}

/// The container of a job that `squeue` does not list any more: its name, in the accounting.
pub async fn container_of_past_job(settings: &Settings, job: &JobId) -> Option<ContainerUuid> {
    let command = settings.client("sacct").timeout(ACCOUNTING_TIMEOUT);
    let command = command
        .args(ARGUMENTS)
        .args([format!("--jobs={}", job.0), "--format=JobName".to_owned()]);
    let answer = command.run_checked().await.ok()?;
    let names = answer.stdout.lines();
    names
        .filter_map(|name| ContainerUuid::parse(name.trim()).ok())
        .next_back()
}

/// Name of a user as the system reports it, or the uid in words.
pub async fn user_name(uid: u32) -> String {
    let command = Command::new("id").timeout(ACCOUNTING_TIMEOUT);
    let answer = command.args(["-nu".to_owned(), uid.to_string()]);
    match answer.run_checked().await {
        Ok(answer) => answer.stdout.trim().to_owned(),
        Err(_) => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_without_accounts_is_asked_once_an_hour() {
        let failure = |text: &str| CommandFailure::Failed(text.into());
        let absent = "Slurm accounting storage is disabled";
        assert_eq!(
            classify_failure(&failure(absent)),
            (AccountingState::Absent, ABSENT_COOLDOWN)
        );
        let (unavailable, cooldown) = classify_failure(&failure("error: Connection refused"));
        let expected = AccountingState::Unavailable("sacct: error: Connection refused".into());
        assert_eq!((unavailable, cooldown), (expected, UNAVAILABLE_COOLDOWN));
    }
}
