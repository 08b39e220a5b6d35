//! Whether `sacct` has anything to tell here: not every site keeps accounts, and asking where there are none costs a
//! process each time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use dispatch_core::command::{Command, Failure};

use crate::ending::IN_SACCT;

/// Asked again after so long where there are no accounts.
const ABSENT: Duration = Duration::from_secs(3600);
/// Asked again after so long where it did not answer.
const SILENT: Duration = Duration::from_secs(60);
/// A verdict is not worth waiting longer for.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long ago a job may have ended.
const SINCE: &str = "--starttime=now-30days";

/// Accounting, if there is any.
#[derive(Debug, Default)]
pub struct Accounting {
    /// It is left alone until then, and what is said of it meanwhile.
    rests: Mutex<Option<(Instant, Accounts)>>,
}

/// What accounting says when it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accounts {
    /// Lines in the format [`IN_SACCT`].
    Told(String),
    /// There are no accounts here.
    Absent,
    /// There may be; it did not answer, and this is why.
    Silent(String),
}

impl Accounting {
    /// What it knows of a container's job, or of all it had where the number is not known; and whether it was asked.
    pub async fn ask(
        &self,
        sacct: Command,
        container: &ContainerUuid,
        job: Option<&str>,
    ) -> (Accounts, bool) {
        if let Some(said) = self.said_lately() {
            return (said, false);
        }
        let arguments = ["--noheader", "--parsable2", "--allocations", SINCE];
        let command = sacct.patience(PATIENCE).args(arguments);
        // A number alone may be that of a job before the cluster counted anew, and a name that of another attempt's.
        let job = job.map(|job| format!("--jobs={job}"));
        let more = [
            format!("--name={container}"),
            format!("--format={IN_SACCT}"),
        ];
        match command.args(more).args(job).succeed().await {
            Ok(answer) => (Accounts::Told(answer.output), true),
            Err(failure) => {
                let (said, pause) = without(&failure);
                tracing::debug!(%failure, seconds = pause.as_secs(), "sacct tells nothing");
                *self.rests() = Some((Instant::now() + pause, said.clone()));
                (said, true)
            }
        }
    }
}

impl Accounting {
    fn rests(&self) -> MutexGuard<'_, Option<(Instant, Accounts)>> {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While it is left alone.
    fn said_lately(&self) -> Option<Accounts> {
        let rests = self.rests();
        let resting = rests.as_ref().filter(|(until, _)| Instant::now() < *until);
        resting.map(|(_, said)| said.clone())
    }
}

/// What a failure means, and for how long.
fn without(failure: &Failure) -> (Accounts, Duration) {
    match failure {
        Failure::Said(said) if said.contains("disabled") => (Accounts::Absent, ABSENT),
        failure if failure.is_not_installed() => (Accounts::Absent, ABSENT),
        failure => (Accounts::Silent(format!("sacct: {failure}")), SILENT),
    }
}

/// The name of a user, by whatever the system knows users from; else the number.
pub async fn user_name(uid: u32) -> String {
    let command = Command::new("id").patience(PATIENCE);
    let answer = command.args(["-nu".to_owned(), uid.to_string()]);
    match answer.succeed().await {
        Ok(answer) => answer.output.trim().to_owned(),
        Err(_) => format!("the user with number {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_without_accounts_is_asked_once_an_hour() {
        let said = |text: &str| Failure::Said(text.into());
        let absent = "Slurm accounting storage is disabled";
        assert_eq!(without(&said(absent)), (Accounts::Absent, ABSENT));
        let (silent, pause) = without(&said("error: Connection refused"));
        let expected = Accounts::Silent("sacct: error: Connection refused".into());
        assert_eq!((silent, pause), (expected, SILENT));
    }
}
