//! Pending reasons of jobs. Input: the reasons in a job listing. Output: decisions and tasks that
//! write the reasons to the container records, for users who ask why a container does not start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use crate::config::settings::CommandRate;
use crate::model::decision::Decision;
use crate::model::scheduling::{PendingOutlook, PendingReason};
use crate::model::task::{PendingReport, Task};
use crate::model::world::{LockHolder, MonotonicTime, PendingSince};
use crate::reconcile::Reconciler;
use crate::reconcile::rate_limit::TokenBucket;

/// Maximum number of records updated a second. Many jobs may be pending, and their reasons may
/// change with every listing.
const REPORT_RATE: CommandRate = CommandRate::PerSecond(2.0);
const REPORT_BURST: u32 = 20;

/// The reasons already written to the records.
#[derive(Debug)]
pub(crate) struct ReportedReasons {
    texts: BTreeMap<ContainerUuid, Arc<str>>,
    rate: TokenBucket,
}

impl ReportedReasons {
    /// Records that the record of the container now has this text.
    pub(crate) fn mark(&mut self, container: ContainerUuid, text: Arc<str>) {
        self.texts.insert(container, text);
    }
}

impl Default for ReportedReasons {
    fn default() -> Self {
        Self {
            texts: BTreeMap::new(),
            rate: TokenBucket::new(REPORT_RATE, REPORT_BURST),
        }
    }
}

impl Reconciler {
    /// Replaces the pending reasons by those of the newest listing.
    pub fn set_pending_reasons(
        &mut self,
        now: MonotonicTime,
        reasons: BTreeMap<ContainerUuid, PendingReason>,
    ) -> Vec<Decision> {
        let old = std::mem::take(&mut self.world.pending);
        // Thousands of jobs may have the same reason, so they share one text.
        let mut texts: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut events = Vec::new();
        let mut paused: BTreeMap<ContainerUuid, Arc<str>> = BTreeMap::new();
        for (container, PendingReason { outlook, text }) in reasons {
            let known = self.world.containers.get(&container);
            if known.is_some_and(|known| known.state.is_final()) {
                // Its job is removed. Whatever it waits for, nobody has to do anything.
                continue;
            }
            let is_requeued = known.is_some_and(|known| {
                // It ran before this listing began.
                known.state == ContainerState::Running
                    && self
                        .world
                        .listing
                        .as_ref()
                        .is_some_and(|listing| known.seen < listing.began)
            });
            let shared = texts.get(text.as_str()).cloned();
            let text = shared.unwrap_or_else(|| text.into());
            texts.insert(text.clone());
            let earlier = old.get(&container).and_then(|known| known.blocked_since);
            let is_blocked = match outlook {
                PendingOutlook::Transient if !is_requeued => false,
                PendingOutlook::Transient | PendingOutlook::Paused => {
                    paused.insert(container.clone(), text.clone());
                    false
                }
                PendingOutlook::NeedsAdmin | PendingOutlook::Never => true,
            };
            if is_blocked {
                let event = self
                    .reports
                    .record_not_run(container.clone(), text.to_string());
                events.extend(event);
            }
            let blocked_since = is_blocked.then(|| earlier.unwrap_or(now));
            let pending = PendingSince {
                text,
                blocked_since,
            };
            self.world.pending.insert(container, pending);
        }
        let listing = self.world.listing.as_ref();
        let is_live = |container: &ContainerUuid| {
            listing.is_some_and(|listing| listing.live(container).next().is_some())
        };
        events.extend(self.reports.record_paused(paused, is_live));
        let pending = &self.world.pending;
        let reported = &mut self.reports.pending.texts;
        reported.retain(|container, _| pending.contains_key(container));
        events
    }

    /// Tasks that write new pending reasons to at most `max` records. Jobs that cannot start by
    /// themselves come first. While the scheduler does not answer, that is the reason, and the
    /// last known one is added.
    pub(crate) fn unreported(&mut self, now: MonotonicTime, max: usize) -> Vec<Task> {
        let outage = self.submits.outage.as_deref();
        let told = &self.reports.pending.texts;
        let is_told = |container: &ContainerUuid, pending: &PendingSince| match outage {
            None => told.get(container) == Some(&pending.text),
            Some(outage) => told
                .get(container)
                .is_some_and(|text| text.starts_with(outage)),
        };
        let mut unreported: Vec<_> = self
            .world
            .pending
            .iter()
            .filter(|(container, pending)| {
                let known = self.world.containers.get(*container);
                let is_ours = known.is_some_and(|known| {
                    // A running container is told only of a hold, which has ended its executor.
                    let may_write = match known.state {
                        ContainerState::Locked => true,
                        ContainerState::Running => pending.blocked_since.is_some(),
                        _ => false,
                    };
                    may_write && matches!(known.holder, LockHolder::Ours(_))
                });
                is_ours && !is_told(container, pending) && !self.is_busy(container, now)
            })
            .collect();
        unreported.sort_by_key(|(_, pending)| pending.blocked_since.is_none());
        let mut tasks = Vec::new();
        for (container, pending) in unreported {
            let Some(token) = self.tokens.of(container) else {
                continue;
            };
            if tasks.len() >= max || !self.reports.pending.rate.try_acquire(now) {
                break;
            }
            tasks.push(Task::ReportPendingReason(PendingReport {
                container: container.clone(),
                token: token.clone(),
                text: match outage {
                    None => pending.text.clone(),
                    Some(outage) => format!("{outage}; last known: {}", pending.text).into(),
                },
            }));
        }
        tasks
    }
}
