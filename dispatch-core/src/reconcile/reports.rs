//! What was already reported about containers that do not run, so that nothing is reported twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::ContainerUuid;

use crate::model::decision::Decision;
use crate::model::world::MonotonicTime;
use crate::reconcile::pending_reasons::ReportedReasons;

/// Maximum number of reasons with which the deferral of one container is emitted.
const MAX_DEFERRALS: usize = 3;

/// A reason not to run a container.
#[derive(Debug)]
pub(crate) struct NotRun {
    reason: String,
    /// The pass over the queue that found it last.
    pass: u64,
}

/// Reports about containers that do not run.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Reasons not to run that were emitted.
    pub(crate) not_run: BTreeMap<ContainerUuid, NotRun>,
    /// Number of times that the whole queue was read page by page.
    passes: u64,
    /// Reasons of deferrals that were emitted.
    deferred: BTreeMap<ContainerUuid, Vec<String>>,
    /// The same of the obstacle that holds all containers now.
    obstructed: BTreeMap<ContainerUuid, Vec<String>>,
    /// The containers whose users were told of an obstacle that has ended, and when it did.
    freed: Option<(MonotonicTime, BTreeSet<ContainerUuid>)>,
    /// Reasons why jobs that had started stand still, as they were emitted.
    paused: BTreeMap<ContainerUuid, Arc<str>>,
    /// Reasons of the last failed attempts of containers that wait for the next attempt.
    last_failures: BTreeMap<ContainerUuid, String>,
    /// Pending reasons that were written to records.
    pub(crate) pending: ReportedReasons,
}

impl Reports {
    /// The decision not to run a container; `None` if it was already emitted with this reason.
    pub(crate) fn record_not_run(
        &mut self,
        container: ContainerUuid,
        reason: String,
    ) -> Option<Decision> {
        let told = NotRun {
            reason: reason.clone(),
            pass: self.passes,
        };
        let known = self.not_run.insert(container.clone(), told);
        let is_known = known.is_some_and(|known| known.reason == reason);
        (!is_known).then_some(Decision::DecidedNotToRun { container, reason })
    }

    /// The whole queue was read page by page. What it did not show twice has gone. Jobs are listed
    /// at other times, so once is not enough.
    pub(crate) fn queue_was_passed(&mut self) {
        self.not_run.retain(|_, told| told.pass + 1 >= self.passes);
        self.passes += 1;
    }

    /// The decision to submit a container later, because the scheduler rejects such jobs. `None` if
    /// it was emitted with this reason, or with a few others: many containers may wait, and the
    /// reason may change whenever one of them is accepted.
    pub(crate) fn record_deferred(
        &mut self,
        container: &ContainerUuid,
        reason: &str,
    ) -> Option<Decision> {
        deferral(&mut self.deferred, container, reason)
    }

    /// The decision to submit a container later, because of an obstacle for all containers.
    pub(crate) fn record_obstacle(
        &mut self,
        container: &ContainerUuid,
        obstacle: &str,
    ) -> Option<Decision> {
        deferral(&mut self.obstructed, container, obstacle)
    }

    /// Records that nothing holds all containers any more. Lets every deferral be emitted again:
    /// the reason that was told has passed.
    pub(crate) fn obstacle_ended(&mut self, now: MonotonicTime) {
        self.deferred.clear();
        let told = std::mem::take(&mut self.obstructed);
        self.freed = Some((now, told.into_keys().collect()));
    }

    /// The decisions, some time (`is_past`) after an obstacle has ended, about the containers that
    /// still wait as they did then: their users were told of the obstacle last.
    pub(crate) fn record_freed(
        &mut self,
        is_past: impl Fn(MonotonicTime) -> bool,
        waits: impl Fn(&ContainerUuid, MonotonicTime) -> bool,
    ) -> Vec<Decision> {
        let Some((at, freed)) = self.freed.take_if(|(at, _)| is_past(*at)) else {
            return Vec::new();
        };
        let is_news = |container: &ContainerUuid| !self.deferred.contains_key(container);
        let freed = freed.into_iter();
        freed
            .filter(|container| waits(container, at) && is_news(container))
            .map(|container| Decision::Deferred {
                container,
                reason: "what held it has ended; it starts in its turn".to_owned(),
            })
            .collect()
    }

    /// The decisions about jobs that stand still now (`paused`), and about those that go on. Jobs
    /// for which `is_live` is false have ended.
    pub(crate) fn record_paused(
        &mut self,
        paused: BTreeMap<ContainerUuid, Arc<str>>,
        is_live: impl Fn(&ContainerUuid) -> bool,
    ) -> Vec<Decision> {
        let old = std::mem::replace(&mut self.paused, paused);
        let is_new =
            |(container, text): &(&ContainerUuid, &Arc<str>)| old.get(*container) != Some(*text);
        let stopped =
            self.paused
                .iter()
                .filter(is_new)
                .map(|(container, text)| Decision::JobPaused {
                    container: container.clone(),
                    reason: text.to_string(),
                });
        let is_over = |container: &&ContainerUuid| !self.paused.contains_key(*container);
        let continued = old
            .keys()
            .filter(is_over)
            .filter(|container| is_live(container));
        let continued = continued.map(|container| Decision::JobContinues {
            container: container.clone(),
        });
        stopped.chain(continued).collect()
    }

    /// Records why the last attempt at a container failed.
    pub(crate) fn record_failure(&mut self, container: &ContainerUuid, reason: &str) {
        self.last_failures
            .insert(container.clone(), reason.to_owned());
    }

    /// Forgets the containers that are not known any more, except why they do not run if the queue
    /// is being read page by page (`is_partly_read`).
    pub(crate) fn retain(
        &mut self,
        is_partly_read: bool,
        is_known: impl Fn(&ContainerUuid) -> bool,
    ) {
        if !is_partly_read {
            self.not_run.retain(|uuid, _| is_known(uuid));
        }
        self.deferred.retain(|container, _| is_known(container));
        self.obstructed.retain(|container, _| is_known(container));
    }

    /// Removes the failures of containers that do not wait for another attempt.
    pub(crate) fn retain_failures(&mut self, retry_at: &BTreeMap<ContainerUuid, MonotonicTime>) {
        self.last_failures
            .retain(|container, _| retry_at.contains_key(container));
    }

    /// Text for the user on a container that waits `seconds` for its next attempt.
    pub(crate) fn describe_retry(&self, container: &ContainerUuid, seconds: u128) -> String {
        match self.last_failures.get(container) {
            Some(reason) => {
                format!("waits {seconds} s for its next attempt; the last one failed: {reason}")
            }
            None => format!("waits {seconds} s for its next attempt"),
        }
    }
}

/// The decision to submit a container later, unless `told` has this reason, or many.
fn deferral(
    told: &mut BTreeMap<ContainerUuid, Vec<String>>,
    container: &ContainerUuid,
    reason: &str,
) -> Option<Decision> {
    let told = told.entry(container.clone()).or_default();
    if told.len() >= MAX_DEFERRALS || told.iter().any(|old| old == reason) {
        return None;
    }
    told.push(reason.to_owned());
    Some(Decision::Deferred {
        container: container.clone(),
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferral_is_told_once_with_each_of_a_few_reasons() {
        let container = ContainerUuid::generate("zzzzz");
        let mut reports = Reports::default();
        let mut is_told = |is_known: bool, reason| {
            reports.retain(false, |_| is_known);
            reports.record_deferred(&container, reason).is_some()
        };
        for (is_known, reason, expected) in [
            (true, "asked first", true),
            (true, "rejected", true),
            (true, "asked first", false),
            (true, "a few at first", true),
            (true, "7 jobs", false),
            (false, "rejected", true),
        ] {
            assert_eq!(is_told(is_known, reason), expected, "{reason}");
        }
    }

    #[test]
    fn a_job_that_stands_still_is_told_once_and_when_it_goes_on() {
        let [one, other] = [(); 2].map(|()| ContainerUuid::generate("zzzzz"));
        let paused = |containers: &[&ContainerUuid]| -> BTreeMap<ContainerUuid, Arc<str>> {
            let text: Arc<str> = "suspended".into();
            let all = containers
                .iter()
                .map(|uuid| ((*uuid).clone(), text.clone()));
            all.collect()
        };
        let mut reports = Reports::default();
        let mut told = |containers: &[&ContainerUuid], live: &[&ContainerUuid]| -> Vec<String> {
            let is_live = |uuid: &ContainerUuid| live.contains(&uuid);
            let events = reports.record_paused(paused(containers), is_live);
            let told = events.iter();
            told.map(|event| format!("{} {}", event.container(), event.text()))
                .collect()
        };
        let stands = |uuid: &ContainerUuid| format!("{uuid} stands still: suspended");
        assert_eq!(told(&[&one], &[&one]), [stands(&one)]);
        assert_eq!(told(&[&one], &[&one]), [""; 0]);
        let events = told(&[&other], &[&one, &other]);
        assert_eq!(events, [stands(&other), format!("{one} its job goes on")]);
        // Its job has ended.
        assert_eq!(told(&[], &[]), [""; 0]);
    }
}
