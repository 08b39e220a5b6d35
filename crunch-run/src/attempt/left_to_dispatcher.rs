//! Ends a run and leaves the final state of its record to the dispatcher, which started crunch-run
//! with `--leave-to-dispatcher`. There are two such ends:
//!
//! - A signal stopped the command. crunch-run cannot know who sent it: a preemption, an
//!   administrator, or a node that shuts down. The dispatcher asks the scheduler.
//! - The container cannot succeed, and the server would give its requests another one. Only the
//!   dispatcher may lower their `container_count_max`.

use arvados_client::Pdh;
use arvados_client::records::RuntimeStatus;
use crunch_contract::{ExitCode, StatusLine};
use serde_json::Value;

use super::claim::Claim;
use super::context::Attempt;
use crate::logs::LogUploader;
use crate::own_record;
use crate::status_line;
use crate::verdict::{Verdict, VerdictKind};

impl Attempt<'_> {
    /// Whether the dispatcher finds out who sent the signal that `verdict` is about.
    pub fn is_stop_left_to_dispatcher(&self, verdict: &Verdict) -> bool {
        self.settings.leave_to_dispatcher && verdict.kind == VerdictKind::Stopped
    }

    /// Saves the log of a command that a signal stopped, and ends.
    pub async fn leave_stopped(&self, verdict: &Verdict, uploader: &LogUploader) -> ExitCode {
        self.forget_undelivered();
        let sentence = verdict.error.as_ref().map(|error| error.sentence.as_str());
        self.log(format!(
            "{}. The record stays Running until the dispatcher knows who stopped it",
            sentence.unwrap_or("stopped on request")
        ));
        self.save_log_in_time(uploader).await;
        let signal = self.signals.stop.requested().await.by.to_owned();
        status_line::print(&StatusLine::Stopped { signal });
        ExitCode::LeftToDispatcher
    }

    /// Writes a permanent failure to the record without its final state, and ends. `None`: the
    /// final state is crunch-run's to write.
    pub async fn leave_permanent(
        &self,
        claim: &Claim,
        verdict: &Verdict,
        status: &RuntimeStatus,
        log: Option<&Pdh>,
        cost: Option<f64>,
    ) -> Option<ExitCode> {
        let is_left = self.settings.leave_to_dispatcher
            && verdict.is_permanent_failure()
            && !claim.server.ends_permanent_failures;
        if !is_left {
            return None;
        }
        let mut note = verdict.update(status.clone(), log, cost);
        if let Some(attributes) = note.as_object_mut() {
            attributes.remove("state");
        }
        let update = own_record::update(&self.settings.uuid, &note);
        if let Err(error) = self.client.send::<Value>(update).await {
            self.log(format!(
                "Could not tell the dispatcher that no other attempt can succeed: {error}"
            ));
            return None;
        }
        self.forget_undelivered();
        Some(ExitCode::LeftToDispatcher)
    }

    /// Removes undelivered.json: nobody may deliver what the dispatcher concludes.
    fn forget_undelivered(&self) {
        if let Err(error) = self.dir.remove_undelivered() {
            self.log(format!("Could not remove undelivered.json: {error}"));
        }
    }
}
