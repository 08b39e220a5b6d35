//! Ends a run that a signal stopped, and leaves its record Running for the dispatcher.
//!
//! crunch-run cannot know who sent the signal: a preemption, an administrator, or a node that shuts
//! down. The dispatcher asks the scheduler, and gives the record its final state with that reason.
//! Only a dispatcher that does so starts crunch-run with `--leave-stopped`.

use crunch_contract::{ExitCode, StatusLine};

use super::context::Attempt;
use crate::logs::LogUploader;
use crate::status_line;
use crate::verdict::{Verdict, VerdictKind};

impl Attempt<'_> {
    /// Whether the dispatcher records the end that `verdict` is about.
    pub fn is_left_to_dispatcher(&self, verdict: &Verdict) -> bool {
        self.settings.leave_stopped && verdict.kind == VerdictKind::Stopped
    }

    /// Saves the log and ends.
    pub async fn leave_stopped(&self, verdict: &Verdict, uploader: &LogUploader) -> ExitCode {
        // Nobody may deliver what the dispatcher concludes.
        if let Err(error) = self.dir.remove_undelivered() {
            self.run_log
                .write(format!("Could not remove undelivered.json: {error}"));
        }
        let sentence = verdict.error.as_ref().map(|error| error.sentence.as_str());
        self.run_log.write(format!(
            "{}. The record stays Running until the dispatcher knows who stopped it",
            sentence.unwrap_or("stopped on request")
        ));
        self.save_log_in_time(uploader).await;
        let signal = self.signals.stop.requested().await.by.to_owned();
        status_line::print(&StatusLine::Stopped { signal });
        ExitCode::Stopped
    }
}
