//! How a job ended: `condor_q` must not list it any more, then `condor_history` and its output in
//! the job directory tell.

use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::scheduler::{ExitCause, JobExit, SchedulerError, Uncertainty};

use crate::condor::Condor;
use crate::query::condor_q::JobAd;
use crate::query::exit_record;
use crate::submit::description::{ATTEMPT_ATTRIBUTE, CONTAINER_ATTRIBUTE};

/// Maximum number of `condor_history` queries for one exit.
const MAX_HISTORY_QUERIES: u32 = 3;
const HISTORY_RETRY_INTERVAL: Duration = Duration::from_secs(2);

impl Condor {
    /// The exit of an attempt's job.
    pub(crate) async fn query_exit(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> JobExit {
        let constraint = format!(
            "{CONTAINER_ATTRIBUTE} == \"{container}\" && {ATTEMPT_ATTRIBUTE} == \"{attempt}\""
        );
        let queued = self.query_ads("condor_q", &constraint, &[]).await;
        let is_alive = |ads: Vec<JobAd>| ads.iter().filter_map(JobAd::to_job).any(|job| !job.ended);
        match queued.map(is_alive) {
            Ok(true) => return JobExit::uncertain(Uncertainty::StillRunning),
            Err(error) => return JobExit::uncertain(Uncertainty::MayBeRunning(error.to_string())),
            Ok(false) => {}
        }
        let mut history = self.query_history(&constraint).await;
        for _ in 1..MAX_HISTORY_QUERIES {
            if history.is_ok() {
                break;
            }
            // The schedd may just be starting. Without an answer, undelivered results on a node
            // would be abandoned.
            tokio::time::sleep(HISTORY_RETRY_INTERVAL).await;
            history = self.query_history(&constraint).await;
        }
        let tail = self.attempt_dir(container).output_tail_with_timeout().await;
        let unread = tail.as_ref().err().map(ToString::to_string);
        let tail = tail.unwrap_or_default();
        let output_says_undelivered = tail.is_undelivered();
        let (mut doubt, mut without_trace) = (None, false);
        let (reason, ad) = match history.map(|ads| ads.into_iter().next()) {
            Ok(Some(ad)) => (exit_record::describe_exit(&ad), Some(ad)),
            Ok(None) => {
                doubt = unread.map(Uncertainty::ResultsUnknown);
                let rejection = self.rejections.message_for(container, attempt);
                without_trace = rejection.is_none() && tail.is_empty();
                let reason =
                    rejection.unwrap_or_else(|| "HTCondor does not know its job".to_owned());
                (reason, None)
            }
            // Nobody will ever know more.
            Err(error) if is_without_history(&error.to_string()) => {
                doubt = unread.map(Uncertainty::ResultsUnknown);
                let reason = "it cannot be told how its job ended: this pool keeps no history of jobs (HISTORY is not set)";
                (reason.to_owned(), None)
            }
            Err(error) => {
                let why = error.to_string();
                let reason = format!("it cannot be told how its job ended: {why}");
                doubt = Some(Uncertainty::ResultsUnknown(why)).filter(|_| !output_says_undelivered);
                (reason, None)
            }
        };
        let cause = match &ad {
            Some(ad) => exit_record::cause(ad),
            None => ExitCause::of_status_line(tail.status_line.as_ref()),
        };
        JobExit {
            without_trace,
            reason,
            cause,
            detail: tail.text,
            status_line: tail.status_line,
            node: ad.as_ref().and_then(JobAd::node),
            uncertainty: doubt,
            never_started: ad.as_ref().is_some_and(exit_record::never_started),
            undelivered: ad
                .as_ref()
                .map_or(output_says_undelivered, exit_record::is_undelivered),
            log_dir: None,
        }
    }

    async fn query_history(&self, constraint: &str) -> Result<Vec<JobAd>, SchedulerError> {
        self.query_ads("condor_history", constraint, &["-limit", "1"])
            .await
    }
}

/// Whether condor_history says that the pool keeps none.
fn is_without_history(error: &str) -> bool {
    error.contains("HISTORY")
        && ["is unset", "not defined"]
            .iter()
            .any(|words| error.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_history_is_no_pool_that_does_not_answer() {
        for (error, expected) in [
            // HTCondor 23.9.
            (
                "Error: No passed search file and configuration key HISTORY is unset.\n\nExtra Info: The variable HISTORY is not defined in your config file.",
                true,
            ),
            (
                "Error: The variable HISTORY is not defined in your config file.",
                true,
            ),
            ("Error: cannot open the file HISTORY", false),
            ("timed out", false),
        ] {
            assert_eq!(is_without_history(error), expected, "{error}");
        }
    }
}
