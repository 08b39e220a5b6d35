//! The check at the start of the service: whether HTCondor's commands work.

use dispatch_core::scheduler::SchedulerError;
use dispatch_core::scheduler::command::Command;

use crate::condor::Condor;
use crate::error::no_answer;

impl Condor {
    /// Creates the job event log, then fails if HTCondor's commands are missing or unconfigured. A
    /// schedd that does not answer yet is no failure.
    pub async fn check_reachable(&self) -> Result<(), SchedulerError> {
        if let Err(error) = self.event_log.open() {
            let log = self.event_log.path().display();
            tracing::warn!(%log, %error, "cannot create the job event log; ended jobs are found by polling only");
        }
        let version = Command::new("condor_q").args(["-version"]);
        let version = version.timeout(self.command_timeout).run_checked().await;
        if let Err(failure) = version
            && failure.is_not_started()
        {
            return Err(no_answer(failure.to_string()));
        }
        match self.query_queue().await {
            Ok(_) => Ok(()),
            Err(error) if is_unconfigured(&error) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "HTCondor does not answer yet; the dispatcher polls condor_q until it does");
                Ok(())
            }
        }
    }
}

/// Whether HTCondor found no configuration. The advice about an absent schedd mentions
/// configuration, too, in other words.
fn is_unconfigured(error: &SchedulerError) -> bool {
    matches!(error, SchedulerError::NoAnswer { detail, .. } if detail.contains("contain a condor_config source"))
}
