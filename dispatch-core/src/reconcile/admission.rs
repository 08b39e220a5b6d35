//! Which queued containers the scheduler admits, and why others wait. Input: the world, and the
//! scheduler's answers. Output: the candidates, the reason of each container that waits, and
//! reports for its user.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::{Reconciler, seconds_until};
use crate::model::charge_class::UserClass;
use crate::model::decision::Decision;
use crate::model::resources::Admission;
use crate::model::scheduling::Candidate;
use crate::model::world::{Attempt, MonotonicTime, Phase};
use crate::plan::{admission_candidates, start_order};

/// Why a container waits that an earlier run may have locked.
const UNREAD_TOKEN: &str = "the tokens of its earlier attempts are being read";

impl Reconciler {
    /// Sets why nothing can be started, or that it can: this host cannot submit jobs, or the file
    /// storage takes no data (`host_fault`), or the scheduler does not answer (`outage`).
    pub fn set_obstacles(&mut self, host_fault: Option<String>, outage: Option<String>) {
        let was_obstructed = self.submits.obstacle().is_some();
        (self.submits.host_fault, self.submits.outage) = (host_fault, outage);
        if was_obstructed && self.submits.obstacle().is_none() {
            self.reports.obstacle_ended(self.world.now);
        }
    }

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
        if let Some(next) = queue.read_to.take()
            && queue.sweep.advance(next, &fits)
        {
            self.reports.queue_was_passed();
        }
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
        match self.submits.obstacle().cloned() {
            Some(obstacle) => {
                events.extend(self.report_obstacle(waiting, &obstacle));
                for known in self.world.containers.values_mut() {
                    if known.fit == Admission::Now {
                        known.fit = Admission::Later(obstacle.clone());
                    }
                }
            }
            None => {
                let world = &self.world;
                let waits = |container: &ContainerUuid, ended: MonotonicTime| {
                    let phase = world.attempts.get(container).map(|attempt| attempt.phase);
                    let state = world.containers.get(container).map(|known| &known.state);
                    match (state, phase) {
                        (Some(ContainerState::Queued), _) => true,
                        (
                            Some(ContainerState::Locked),
                            Some(Phase::Submitted(at) | Phase::Adopted(at)),
                        ) => at < ended && !world.pending.contains_key(container),
                        _ => false,
                    }
                };
                let (now, interval) = (self.world.now, self.settings.poll_interval);
                let is_past = |at| now.since(at) >= interval;
                events.extend(self.reports.record_freed(is_past, waits));
            }
        }
        for (container, at) in &self.world.retry_at {
            if let Some(known) = self.world.containers.get_mut(container) {
                let seconds = seconds_until(*at, self.world.now);
                known.fit = Admission::Later(self.reports.describe_retry(container, seconds));
            }
        }
        let (world, mut unread) = (&self.world, Vec::new());
        for (container, known) in &world.containers {
            let is_queued = known.state == ContainerState::Queued;
            if is_queued && world.may_have_unread_token(container, known) {
                unread.push(container.clone());
            }
        }
        for container in unread {
            if let Some(known) = self.world.containers.get_mut(&container) {
                known.fit = Admission::Later(UNREAD_TOKEN.into());
            }
        }
        events
    }

    /// The reports, for the users, that an obstacle holds what is locked and not submitted, and
    /// what would be locked next. While the scheduler does not answer, nothing is known of what was
    /// submitted; the records of jobs that are known to be pending say so (`pending_reasons.rs`).
    fn report_obstacle(&mut self, waiting: &[Candidate], obstacle: &str) -> Vec<Decision> {
        let (world, is_outage) = (&self.world, self.submits.outage.is_some());
        let is_held = |(container, attempt): &(&ContainerUuid, &Attempt)| {
            let is_locked = || {
                let known = world.containers.get(*container);
                known.is_some_and(|known| known.state == ContainerState::Locked)
            };
            let is_unknown = is_outage && !world.pending.contains_key(*container) && is_locked();
            attempt.phase == Phase::Locked || is_unknown
        };
        let held = world.attempts.iter().filter(is_held);
        let held = held.map(|(container, _)| container);
        let next = waiting.iter().take(self.settings.max_pending);
        let held = held.chain(next.map(|candidate| &candidate.container));
        let reports = &mut self.reports;
        held.filter_map(|container| reports.record_obstacle(container, obstacle))
            .collect()
    }
}

/// Why a workflow runner is not submitted. The first words are Arvados'.
fn in_workflow_queue(place: usize) -> String {
    format!(
        "Waiting in workflow queue at position {place}: other workflow runners run, or are to run before it"
    )
}
