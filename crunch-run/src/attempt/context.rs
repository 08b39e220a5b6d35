//! What the phases of one attempt share, and how a phase before Running ends early.

use std::sync::Arc;

use arvados_client::Client;
use crunch_contract::{ExitCode, StatusLine};

use super::claim::Claim;
use super::failure::Failure;
use super::runtime_status::Status;
use super::scratch_dir::ScratchDir;
use super::server_info;
use super::settings::Settings;
use super::timings::PhaseTimings;
use crate::gateway::Gateway;
use crate::inputs::arv_mount::ArvMount;
use crate::logs::{LogDir, LogUploader, RunLog};
use crate::node::job_dir::JobDir;
use crate::node::registry::RunGuard;
use crate::node::signals::Signals;
use crate::status_line;
use container_engine::Engine;

pub struct Attempt<'a> {
    pub settings: &'a Settings,
    pub dir: &'a JobDir,
    /// This run's entry in the node's list.
    pub registered: Option<&'a RunGuard>,
    pub signals: Signals,
    pub logs: LogDir,
    pub run_log: RunLog,
    pub client: Client,
    pub timings: PhaseTimings,
}

/// What every phase after the claim uses.
#[derive(Clone, Copy)]
pub struct PhaseContext<'a> {
    pub claim: &'a Claim,
    pub engine: &'a dyn Engine,
    pub scratch: &'a ScratchDir,
    pub tree: Option<&'a ArvMount>,
    pub uploader: &'a Arc<LogUploader>,
    pub gateway: &'a Gateway,
}

impl Attempt<'_> {
    /// Ends a phase before Running at a stop request.
    pub async fn or_stopped<T>(
        &self,
        phase: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            request = self.signals.stop.requested() => Err(Failure::NeverRan(format!(
                "caught signal {} before the container was started",
                request.by
            ))),
            done = phase => done,
        }
    }

    /// Writes to crunch-run.txt.
    pub fn log(&self, text: impl AsRef<str>) {
        self.run_log.write(text);
    }

    /// Warns in crunch-run.txt and in the record.
    pub fn warn(&self, status: &Status, sentence: String) {
        self.log(format!("Warning: {sentence}"));
        status.warn(sentence);
    }

    pub fn fail_before_running(&self, failure: Failure) -> ExitCode {
        match failure {
            Failure::NotOurs(reason) => {
                self.log(format!(
                    "The container belongs to another attempt: {reason}"
                ));
                ExitCode::NotOurs
            }
            Failure::NeverRan(reason) | Failure::BrokenNode(reason) => {
                server_info::forget(&self.settings.cache, &self.settings.endpoint);
                self.log(format!("Ending without a run: {reason}"));
                status_line::print(&StatusLine::NeverRan { reason });
                ExitCode::NeverRan
            }
            Failure::StorageFailed(reason) => {
                self.log(format!("Ending without a run: {reason}"));
                status_line::print(&StatusLine::StorageFailed { reason });
                ExitCode::NeverRan
            }
            Failure::UserError(reason) => {
                self.log(reason.sentence);
                ExitCode::NeverRan
            }
        }
    }
}
