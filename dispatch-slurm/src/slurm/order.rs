//! Putting waiting jobs in order, and back on hold where that freed one.

use std::collections::BTreeMap;

use dispatch_core::command::Failure;
use dispatch_core::scheduler::{SchedulerError, Wanted};

use super::{Slurm, locked, no_answer};
use crate::nice::{self, Change, Made};
use crate::squeue::Row;

/// What the next listing is compared with.
#[derive(Debug, Default)]
pub(super) struct Arranged {
    /// Changes that no listing has shown yet.
    made: Vec<Made>,
    /// Jobs whose hold was undone by them.
    unheld: Vec<String>,
}

impl Arranged {
    /// What `rows` tell of the changes made before.
    pub(super) fn compare(&mut self, rows: &[Row]) {
        let (unheld, open) = nice::unheld(std::mem::take(&mut self.made), rows);
        self.made = open;
        self.unheld.extend(unheld);
    }
}

impl Slurm {
    /// All changes go to one `scontrol`: a process for each would take ten times as long.
    pub(super) async fn put_in_order(&self, wanted: &[Wanted]) -> Result<(), SchedulerError> {
        let changes = self.decide(wanted);
        let unheld = std::mem::take(&mut locked(&self.arranged).unheld);
        if changes.is_empty() && unheld.is_empty() {
            return Ok(());
        }
        let holds = unheld.iter().map(|job| {
            let why =
                "it was put on hold while its place in the queue was changed, which undid the hold";
            tracing::warn!(job, "on hold again: {why}");
            format!("hold {job}\n")
        });
        let updates = changes
            .iter()
            .map(|change| format!("update JobId={} Nice={}\n", change.job, change.nice));
        let lines: String = holds.chain(updates).collect();
        let answer = self.client("scontrol").input(lines).succeed().await;
        match answer {
            Ok(_) => Ok(()),
            Err(Failure::Said(said)) if nice::is_only_of_gone_jobs(&said) => Ok(()),
            Err(failure) => {
                locked(&self.arranged).unheld.extend(unheld);
                Err(no_answer(format!(
                    "its jobs could not be put in order: {failure}"
                )))
            }
        }
    }

    /// Decides on changes, and takes them for made: listings go on meanwhile, and one that falls into the middle of them is
    /// to be compared with what they were decided by. Whatever comes of them, the next listing shows it.
    fn decide(&self, wanted: &[Wanted]) -> Vec<Change> {
        let mut queue = locked(&self.queue);
        let changes = nice::changes(&queue, wanted, self.spread);
        let nice: BTreeMap<&str, i64> = changes
            .iter()
            .map(|change| (change.job.as_str(), change.nice))
            .collect();
        let mut made = Vec::new();
        for row in queue.iter_mut() {
            if let Some(nice) = nice.get(row.id.as_str()) {
                made.push(Made {
                    job: row.id.clone(),
                    before: row.standing,
                    nice: *nice,
                });
                row.standing.priority += row.standing.nice - nice;
                row.standing.nice = *nice;
            }
        }
        let earlier = &mut locked(&self.arranged).made;
        earlier.retain(|earlier| !nice.contains_key(earlier.job.as_str()));
        earlier.append(&mut made);
        changes
    }
}
