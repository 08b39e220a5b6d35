//! The listing of this dispatcher's jobs by `condor_q`, and the monitoring of the jobs in it.

use std::time::Instant;

use dispatch_core::scheduler::SchedulerError;

use crate::condor::{Condor, QueueListing};
use crate::error::no_answer;
use crate::query::condor_q::{self, JobAd, JobState};
use crate::query::match_analysis::COMMANDS_PER_PROBE;
use crate::query::pending_reason;
use crate::submit::description::{CONTAINER_ATTRIBUTE, DISPATCHER_ATTRIBUTE};

impl Condor {
    /// Runs `condor_q` for the jobs of this dispatcher.
    pub(crate) async fn query_queue(&self) -> Result<QueueListing, SchedulerError> {
        let started = Instant::now();
        let constraint = format!("{DISPATCHER_ATTRIBUTE} == \"{}\"", self.instance_id);
        let mut ads = self.query_ads("condor_q", &constraint, &[]).await?;
        let restored = condor_q::restore_containers(&mut ads, &self.queue.lock().ads);
        restored.map_err(|job| {
            no_answer(format!(
                "it cannot be told whose job {job} is: its {CONTAINER_ATTRIBUTE} is undefined; \
                 set it again with condor_qedit, or remove the job"
            ))
        })?;
        Ok(QueueListing {
            ads,
            took: started.elapsed(),
        })
    }

    /// Reports lost execute nodes and probes one unmatched job of the newest listing, in a service.
    pub(crate) fn monitor_jobs(&self) {
        if !self.monitors {
            return;
        }
        let queue = self.queue.lock();
        self.report_disconnected(&queue.ads);
        // In a pool that grows, a slot that no machine has today may join later.
        if !self.settings.pool_grows
            && self
                .match_analysis
                .start_probe(&queue.ads, self.command_timeout)
        {
            self.charge_commands(COMMANDS_PER_PROBE);
        }
    }

    /// Logs once for each running job that its execute node is lost, and once that the node has
    /// reconnected.
    ///
    /// The schedd learns of a lost node at the shadow's next update (SHADOW_QUEUE_UPDATE_INTERVAL).
    /// HTCondor waits for the node, and so does the dispatcher.
    fn report_disconnected(&self, ads: &[JobAd]) {
        let mut reported = self.reported_disconnected.lock();
        let lost = pending_reason::disconnected_jobs(ads);
        for (job, (container, reason)) in &lost {
            if !reported.contains(job) {
                tracing::warn!(
                    container,
                    job,
                    reason,
                    event = "execute_node_lost",
                    "HTCondor lost the execute node of a running job"
                );
            }
        }
        let is_running = |job: &String| {
            let mut running = ads.iter().filter(|ad| ad.state() == JobState::Running);
            running.any(|ad| ad.id() == *job)
        };
        let back = reported
            .iter()
            .filter(|job| !lost.contains_key(*job) && is_running(job));
        for job in back {
            tracing::info!(
                job,
                event = "execute_node_reconnected",
                "the execute node of a running job reconnected"
            );
        }
        *reported = lost.into_keys().collect();
    }
}
