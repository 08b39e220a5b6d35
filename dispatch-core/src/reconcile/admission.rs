//! Which queued containers the scheduler admits, and why others wait. Input: the world, and the
//! scheduler's answers. Output: the candidates, the reason of each container that waits, and
//! reports for its user.

use super::{Reconciler, seconds_until};
use crate::model::charge_class::UserClass;
use crate::model::decision::Decision;
use crate::model::resources::Admission;
use crate::model::scheduling::Candidate;
use crate::model::world::{MonotonicTime, Phase};
use crate::plan::{admission_candidates, start_order};

impl Reconciler {
    /// The containers that need the scheduler's admission, and those about to be submitted.
    pub fn candidates(&mut self, now: MonotonicTime) -> (Vec<Candidate>, Vec<Candidate>) {
        self.world.now = now;
        self.world.retry_at.retain(|_, at| *at > now);
        self.reports.retain_failures(&self.world.retry_at);
        self.cooldown_until.retain(|_, until| *until > now);
        let waiting = admission_candidates::admission_candidates(&self.world, &self.policy());
        (waiting, admission_candidates::in_transit(&self.world))
    }

    /// Applies the scheduler's admission of each container in `waiting`.
    pub fn apply_admission(
        &mut self,
        waiting: &[Candidate],
        fits: Vec<Admission>,
    ) -> Vec<Decision> {
        self.submits.backoff.prune(self.world.now);
        let mut events = Vec::new();
        let queue = &mut self.poll.queue;
        queue.pages = admission_candidates::pages(queue.pages, queue.has_more, &fits);
        for (candidate, fit) in waiting.iter().zip(fits) {
            let container = &candidate.container;
            let event = match &fit {
                Admission::Now => None,
                Admission::Later(reason) if self.limits.batcher.defers_rejected_jobs() => {
                    self.reports.record_deferred(container, reason)
                }
                Admission::Later(_) | Admission::Impossible(_) => None,
                Admission::Never(reason) => self.reports.record_not_run(
                    container.clone(),
                    format!(
                        "{reason}; unless another dispatcher runs it, kill it and submit it anew"
                    ),
                ),
            };
            events.extend(event);
            if let Some(known) = self.world.containers.get_mut(container) {
                known.fit = fit;
            }
        }
        let held = start_order::held_supervisors(&self.world, &self.policy());
        for (place, container) in held.iter().enumerate() {
            if let Some(known) = self.world.containers.get_mut(container) {
                known.fit = Admission::Later(in_workflow_queue(place + 1));
            }
        }
        let admitted = self.world.containers.values_mut();
        for known in admitted.filter(|known| known.fit == Admission::Now) {
            let class = UserClass::of(&known.needs);
            if let Some(left) = self.submits.breakers.opened_for(&class, self.world.now) {
                known.fit = Admission::Later(format!(
                    "several attempts in a row at containers {class} failed before they ran; the next begins in {} s",
                    left.as_secs()
                ));
            }
        }
        if let Some(fault) = self.submits.host_fault.clone() {
            events.extend(self.report_fault(waiting, &fault));
            for known in self.world.containers.values_mut() {
                if known.fit == Admission::Now {
                    known.fit = Admission::Later(fault.clone());
                }
            }
        }
        for (container, at) in &self.world.retry_at {
            if let Some(known) = self.world.containers.get_mut(container) {
                let seconds = seconds_until(*at, self.world.now);
                known.fit = Admission::Later(self.reports.describe_retry(container, seconds));
            }
        }
        events
    }

    /// The reports, for the users, that a fault holds what is locked and not submitted, and what
    /// would be locked next.
    fn report_fault(&mut self, waiting: &[Candidate], fault: &str) -> Vec<Decision> {
        let attempts = self.world.attempts.iter();
        let locked = attempts.filter(|(_, attempt)| attempt.phase == Phase::Locked);
        let next = waiting.iter().take(self.settings.max_pending);
        let held = locked.map(|(container, _)| container);
        let held = held.chain(next.map(|candidate| &candidate.container));
        let reports = &mut self.reports;
        held.filter_map(|container| reports.record_deferred(container, fault))
            .collect()
    }
}

/// Why a workflow runner is not submitted. The first words are Arvados'.
fn in_workflow_queue(place: usize) -> String {
    format!(
        "Waiting in workflow queue at position {place}: other workflow runners run, or are to run before it"
    )
}
