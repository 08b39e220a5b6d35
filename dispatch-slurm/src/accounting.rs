//! Whether `sacct` has anything to tell here: not every site keeps accounts, and asking where there are none costs a
//! process each time.

use std::sync::{Mutex, PoisonError};
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
    /// It is left alone until then.
    rests: Mutex<Option<Instant>>,
}

impl Accounting {
    /// What it knows of a container's job, or of all it had where the number is not known; in the format [`IN_SACCT`].
    pub async fn ask(
        &self,
        sacct: Command,
        container: &ContainerUuid,
        job: Option<&str>,
    ) -> Option<String> {
        let rests = *self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        if rests.is_some_and(|until| Instant::now() < until) {
            return None;
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
            Ok(answer) => Some(answer.output),
            Err(failure) => {
                let pause = pause(&failure);
                tracing::debug!(%failure, seconds = pause.as_secs(), "sacct tells nothing");
                let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
                *rests = Some(Instant::now() + pause);
                None
            }
        }
    }
}

fn pause(failure: &Failure) -> Duration {
    match failure {
        Failure::Said(said) if said.contains("disabled") => ABSENT,
        failure if failure.is_not_started() => ABSENT,
        _ => SILENT,
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
        assert_eq!(pause(&said(absent)), ABSENT);
        assert_eq!(pause(&said("sacct: error: Connection refused")), SILENT);
    }
}
