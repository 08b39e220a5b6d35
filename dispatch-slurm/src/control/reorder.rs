//! Puts pending jobs in the order of their containers' priorities, and restores holds that this
//! undid.
//!
//! Input: desired priorities and the newest listing. Output: one `scontrol` with all changes,
//! because a process for each change would take ten times as long. If a hold was lost, which is
//! rare, one more listing comes first: an administrator may have released the job meanwhile, and it
//! must not be held again then.

use std::collections::BTreeMap;

use dispatch_core::scheduler::command::CommandFailure;
use dispatch_core::scheduler::{DesiredPlace, SchedulerError};

use crate::control::nice::{self, Change, SentChange};
use crate::error::no_answer;
use crate::slurm::Slurm;

impl Slurm {
    /// Sends the nice values that put the pending jobs in order, and holds again the jobs that lost
    /// their hold.
    pub(crate) async fn reorder_pending(
        &self,
        wanted: &[DesiredPlace],
    ) -> Result<(), SchedulerError> {
        let lost_holds = std::mem::take(&mut self.pending_nice.lock().lost_holds);
        let lost_holds = self.still_lost(lost_holds).await?;
        let changes = self.plan_changes(wanted, &lost_holds);
        if changes.is_empty() && lost_holds.is_empty() {
            return Ok(());
        }
        let holds = lost_holds.iter().map(|change| {
            let job = &change.job;
            tracing::warn!(
                job,
                event = "hold_restored",
                "holding the job again: it was held while its nice value changed, which released it"
            );
            format!("hold {job}\n")
        });
        let updates = changes
            .iter()
            .map(|change| format!("update JobId={} Nice={}\n", change.job, change.nice));
        let lines: String = holds.chain(updates).collect();
        let answer = self.client("scontrol").input(lines).run_checked().await;
        match answer {
            Ok(_) => Ok(()),
            Err(CommandFailure::Failed(message)) if nice::is_only_about_ended_jobs(&message) => {
                Ok(())
            }
            Err(failure) => {
                self.pending_nice.lock().lost_holds.extend(lost_holds);
                Err(no_answer(format!(
                    "scontrol could not change the nice values of pending jobs: {failure}"
                )))
            }
        }
    }

    /// The changes of `lost_holds` whose jobs are without their hold now.
    async fn still_lost(
        &self,
        lost_holds: Vec<SentChange>,
    ) -> Result<Vec<SentChange>, SchedulerError> {
        if lost_holds.is_empty() {
            return Ok(lost_holds);
        }
        match self.list_rows().await {
            Ok((_, rows)) => Ok(nice::lost_holds(lost_holds, &rows).0),
            Err(error) => {
                self.pending_nice.lock().lost_holds.extend(lost_holds);
                Err(error)
            }
        }
    }

    /// Plans changes and records them as sent. A listing may run while they are sent, and is
    /// compared with what they were planned from. The next listing shows their effect. Jobs of
    /// `to_hold` keep their nice values: another one would release them again.
    fn plan_changes(&self, wanted: &[DesiredPlace], to_hold: &[SentChange]) -> Vec<Change> {
        let mut queue = self.queue.lock();
        let mut changes = nice::changes(&queue, wanted, self.settings.priority_spread);
        changes.retain(|change| to_hold.iter().all(|held| held.job != change.job));
        let nice: BTreeMap<&str, i64> = changes
            .iter()
            .map(|change| (change.job.as_str(), change.nice))
            .collect();
        let mut sent = Vec::new();
        for row in queue.iter_mut() {
            if let Some(nice) = nice.get(row.id.as_str()) {
                sent.push(SentChange {
                    job: row.id.clone(),
                    before: row.position,
                    nice: *nice,
                });
                row.position.priority += row.position.nice - nice;
                row.position.nice = *nice;
            }
        }
        let unconfirmed = &mut self.pending_nice.lock().unconfirmed;
        unconfirmed.retain(|earlier| !nice.contains_key(earlier.job.as_str()));
        unconfirmed.append(&mut sent);
        changes
    }
}
