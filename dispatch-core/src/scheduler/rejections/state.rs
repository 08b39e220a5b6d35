//! What is known of rejections, and what follows from it. Pure.
//!
//! Input: results of submissions and of tests, listings, the time. Output: which classes of jobs to
//! test, and which containers must wait, and why.

mod retests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::time::Instant;

use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::charge_class::{ChargeClass, UserClass};
use crate::model::resources::ResourceRequest;
use crate::model::scheduling::Candidate;
use crate::scheduler::rejection_backoff::{Grant, JobClass, RejectionBackoff, SlowStart};
use crate::scheduler::rejections::testers::Testers;

/// Maximum number of rejected classes; containers of further classes are submitted as usual.
const MAX_REJECTED_CLASSES: usize = 1000;
/// Maximum number of kinds of jobs, or classes, that are remembered.
const MAX_REMEMBERED: usize = 10_000;
/// Maximum number of classes that start slowly without a rejection. Tests of others must not wait
/// long for theirs.
const MAX_CAUTIOUS_CLASSES: usize = 64;
/// Maximum number of concurrent tests.
const MAX_CONCURRENT_TESTS: usize = 8;
/// Maximum number of repeated tests between two listings.
pub(super) const MAX_TESTS: usize = 24;

#[derive(Debug, Default)]
pub struct RejectionState {
    /// Message of the rejection of an attempt.
    pub(super) messages: BTreeMap<ContainerUuid, (TokenUuid, String)>,
    /// Containers whose newest submission reached no scheduler, as the command said.
    pub(super) unreached: HashSet<ContainerUuid>,
    backoffs: HashMap<JobClass, RejectionBackoff>,
    /// As whom the classes are tested.
    testers: HashMap<ChargeClass, Testers>,
    /// Needs of jobs that the scheduler accepted, or would, since the start.
    accepted: HashSet<ResourceRequest>,
    /// Whose.
    accepted_users: HashSet<UserClass>,
    /// Classes that were rejected, until there is no limit.
    pub(super) slow_starts: BTreeMap<ChargeClass, SlowStart>,
    /// Jobs that the scheduler has accepted since the start and has not ended, as far as the newest
    /// listing shows, and when each was accepted.
    jobs: HashMap<ContainerUuid, (ChargeClass, Instant)>,
    /// Number of these of each class.
    jobs_of: HashMap<ChargeClass, usize>,
    /// Jobs of the newest listing that this process did not submit, as far as it knows: a process
    /// before it did, or the answer was lost. Their classes are unknown.
    pub(super) uncounted: HashSet<ContainerUuid>,
    /// Classes of which this process has submitted jobs, or wanted to.
    known: HashSet<ChargeClass>,
    /// Classes that are held back as the log says, each with the reason there.
    logged: HashMap<JobClass, String>,
    /// Number of tests since the newest listing.
    tests: usize,
}

impl RejectionState {
    pub(super) fn is_rejected(&self, needs: &ResourceRequest) -> bool {
        JobClass::classes_of(needs)
            .iter()
            .any(|class| self.backoffs.contains_key(class))
    }

    /// Holds a class back, because it was found by a job with these `needs` that it is refused.
    pub(super) fn reject_class(
        &mut self,
        class: JobClass,
        needs: &ResourceRequest,
        reason: String,
        now: Instant,
    ) {
        let full =
            !matches!(class, JobClass::Charged(_)) && self.backoffs.len() >= MAX_REJECTED_CLASSES;
        match &class {
            JobClass::Charged(charge) => {
                self.slow_starts
                    .insert(charge.clone(), SlowStart::new(true));
                self.testers_of(charge).hold(needs);
            }
            JobClass::OfUser(of_user) => self.testers_of(&of_user.charged).leave(of_user),
            JobClass::Exactly(_) => {}
        }
        if !full {
            self.log_held(&class, &reason);
            let new = || RejectionBackoff::new(reason, now);
            self.backoffs.entry(class).or_insert_with(new);
        }
    }

    fn testers_of(&mut self, charge: &ChargeClass) -> &mut Testers {
        if self.testers.len() >= MAX_REMEMBERED && !self.testers.contains_key(charge) {
            self.testers.clear();
        }
        self.testers.entry(charge.clone()).or_default()
    }

    /// Holds jobs like this one, and others of its user, back until a test, unless their state is
    /// known.
    pub(super) fn hold_until_tested(&mut self, needs: &ResourceRequest, now: Instant) {
        for class in JobClass::classes_of(needs) {
            let is_known = match &class {
                JobClass::Charged(_) => true,
                JobClass::OfUser(of_user) => self.accepted_users.contains(of_user),
                JobClass::Exactly(needs) => self.accepted.contains(needs),
            };
            let held = self.backoffs.get(&class);
            if held.is_some_and(|held| is_known || held.is_rejected()) {
                // Its test comes first.
                return;
            }
            if !is_known && held.is_none() && self.backoffs.len() < MAX_REJECTED_CLASSES {
                self.backoffs.insert(class, RejectionBackoff::untested(now));
            }
        }
    }

    /// Starts slowly with a class that may be at its limit, because of jobs or attempts before this
    /// process. One free place must not cost each container of a full account a lock.
    ///
    /// Users choose partitions, so the number of classes is bounded; others start as usual.
    pub(super) fn start_cautiously(&mut self, charge: ChargeClass) {
        let is_full = self.slow_starts.len() >= MAX_CAUTIOUS_CLASSES;
        if !is_full && remember(&mut self.known, charge.clone()) {
            let slow_start = self.slow_starts.entry(charge);
            slow_start.or_insert_with(|| SlowStart::new(false));
        }
    }

    /// Remembers that a job of this class was accepted, as which user that is.
    pub(super) fn remember_accepted(&mut self, class: &JobClass) {
        match class {
            JobClass::Charged(_) => {}
            JobClass::OfUser(of_user) => _ = remember(&mut self.accepted_users, of_user.clone()),
            JobClass::Exactly(needs) => _ = remember(&mut self.accepted, needs.clone()),
        }
    }

    /// Jobs of the class would be accepted, or one was.
    pub(super) fn accept_class(&mut self, class: &JobClass, grant: Grant, now: Instant) {
        self.backoffs.remove(class);
        if let JobClass::Charged(charge) = class
            && let Some(slow_start) = self.slow_starts.get_mut(charge)
        {
            if slow_start.grant(grant, now) {
                return;
            }
            self.slow_starts.remove(charge);
        }
        self.log_resumed(class);
    }

    /// Logs that the class is held back, unless that was the last word on it.
    fn log_held(&mut self, class: &JobClass, reason: &str) {
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let last = self.logged.insert(class.clone(), reason.to_owned());
        if last.is_none_or(|last| words(&last) != words(reason)) {
            tracing::warn!(
                reason,
                event = "submissions_held",
                "holding back submissions {class} because the scheduler rejects them"
            );
        }
    }

    /// Logs that the class is not held back any more, if the log says that it is, and so of what
    /// was held back with it only.
    fn log_resumed(&mut self, class: &JobClass) {
        let backoffs = &self.backoffs;
        let is_over = |held: &JobClass| {
            let is_part = match held {
                JobClass::Exactly(needs) => JobClass::classes_of(needs).contains(class),
                JobClass::OfUser(of_user) => class.charged() == Some(&of_user.charged),
                JobClass::Charged(_) => false,
            };
            held == class || (is_part && !backoffs.contains_key(held))
        };
        for (class, _) in self.logged.extract_if(|held, _| is_over(held)) {
            tracing::info!(
                event = "submissions_resumed",
                "resuming submissions {class} because the scheduler accepts them again"
            );
        }
    }

    /// Number of jobs that an accepted test of one grants, where no test is for several.
    pub(super) fn untested_jobs(&self, class: &JobClass) -> usize {
        let slow_start = class
            .charged()
            .and_then(|charge| self.slow_starts.get(charge));
        slow_start.map_or(1, SlowStart::untested_jobs)
    }

    pub(super) fn has_jobs(&self, charge: &ChargeClass) -> bool {
        self.jobs_of.contains_key(charge)
    }

    /// Whether containers wait for a test that may run now, or may be submitted after one.
    pub(super) fn awaits_poll(&mut self, now: Instant) -> bool {
        let is_due = !self.due(now).is_empty();
        let is_settling = |(class, backoff): (&JobClass, &RejectionBackoff)| {
            class.charged().is_some() && backoff.is_accepted()
        };
        is_due
            || self.backoffs.iter().any(is_settling)
            || self.slow_starts.values().any(SlowStart::has_room)
    }

    pub(super) fn submission_rejected(
        &mut self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
    ) {
        if let Some(slow_start) = self.slow_starts.get_mut(&ChargeClass::of(needs)) {
            slow_start.rejected(container);
        }
    }

    /// Forgets the jobs that a listing does not show any more.
    pub(super) fn listed(&mut self, began: Instant, live: &HashSet<&ContainerUuid>) {
        self.tests = 0;
        let ended = |(container, (_, accepted)): &(&ContainerUuid, &(ChargeClass, Instant))| {
            *accepted < began && !live.contains(container)
        };
        let ended: Vec<ContainerUuid> = (self.jobs.iter().filter(ended))
            .map(|(container, _)| container.clone())
            .collect();
        for container in ended {
            self.job_ended(&container, began);
        }
        let mut unlimited = Vec::new();
        for (charge, slow_start) in &mut self.slow_starts {
            let class = JobClass::Charged(charge.clone());
            if slow_start.listed() && !self.backoffs.contains_key(&class) {
                unlimited.push(class);
            }
        }
        unlimited.iter().for_each(|class| self.log_resumed(class));
        let ended = self.uncounted.iter().filter(|job| !live.contains(*job));
        let ended = ended.count();
        if ended > 0 {
            let charged = self.backoffs.keys().filter_map(JobClass::charged);
            for charge in charged.cloned().collect::<Vec<_>>() {
                self.places_freed(&charge, ended, began);
            }
        }
        let uncounted = live.iter().filter(|job| !self.jobs.contains_key(**job));
        self.uncounted = uncounted.map(|job| (*job).clone()).collect();
    }

    /// A job has ended, so that its class may have room for another.
    pub(super) fn job_ended(&mut self, container: &ContainerUuid, now: Instant) {
        let Some((charge, _)) = self.jobs.remove(container) else {
            return;
        };
        let count = self.jobs_of.entry(charge.clone()).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.jobs_of.remove(&charge);
        }
        self.places_freed(&charge, 1, now);
    }

    /// There may be room for other jobs of the class.
    fn places_freed(&mut self, charge: &ChargeClass, places: usize, now: Instant) {
        if let Some(slow_start) = self.slow_starts.get_mut(charge) {
            slow_start.places_freed(places);
        }
        let class = JobClass::Charged(charge.clone());
        if let Some(backoff) = self.backoffs.get_mut(&class) {
            backoff.test_soon(now);
        }
        if let Some(testers) = self.testers.get_mut(charge) {
            testers.place_freed();
        }
    }

    pub(super) fn deferral(
        &mut self,
        scheduler: &str,
        candidate: &Candidate,
        now: Instant,
    ) -> Option<String> {
        let reason = self.reason_to_wait(scheduler, candidate, now);
        if reason.is_some()
            && let Some(slow_start) = self.slow_starts.get_mut(&ChargeClass::of(&candidate.needs))
        {
            slow_start.unwanted = 0;
        }
        reason
    }

    fn reason_to_wait(
        &mut self,
        scheduler: &str,
        candidate: &Candidate,
        now: Instant,
    ) -> Option<String> {
        let Candidate {
            container, needs, ..
        } = candidate;
        if candidate.was_locked {
            self.hold_until_tested(needs, now);
        }
        if candidate.was_locked || !self.uncounted.is_empty() {
            self.start_cautiously(ChargeClass::of(needs));
        }
        let classes = JobClass::classes_of(needs);
        let is_refused = |class: &JobClass| {
            matches!(class, JobClass::OfUser(_))
                && self
                    .backoffs
                    .get(class)
                    .is_some_and(|backoff| backoff.is_rejected())
        };
        let may_test = !classes.iter().any(is_refused);
        let charge = ChargeClass::of(needs);
        let held = JobClass::Charged(charge.clone());
        let mut is_unasked = false;
        if may_test && (self.slow_starts.contains_key(&charge) || self.backoffs.contains_key(&held))
        {
            let testers = self.testers_of(&charge);
            let is_new = testers.wait(needs);
            is_unasked = testers.is_unasked(needs);
            if let Some(backoff) = self.backoffs.get_mut(&held).filter(|_| is_new) {
                backoff.test_soon(now);
            }
        }
        for class in classes {
            let Some(backoff) = self.backoffs.get_mut(&class) else {
                continue;
            };
            let reason = backoff.deferral_reason(scheduler, container, now);
            if reason.is_some() {
                // The reason may be a rule against another user, and name that user.
                return if is_unasked {
                    Some(asked_first(scheduler))
                } else {
                    reason
                };
            }
        }
        let slow_start = self.slow_starts.get_mut(&charge)?;
        if slow_start.try_admit(container, now) {
            return None;
        }
        Some(if slow_start.is_told {
            format!("{scheduler} rejected such jobs a short time ago; a few are submitted at first")
        } else {
            asked_first(scheduler)
        })
    }

    pub(super) fn accepted(
        &mut self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
        now: Instant,
    ) {
        self.unreached.remove(container);
        let charge = ChargeClass::of(needs);
        remember(&mut self.known, charge.clone());
        self.testers_of(&charge).accepted(needs);
        let job = (charge.clone(), now);
        if self.jobs.insert(container.clone(), job).is_none() {
            *self.jobs_of.entry(charge.clone()).or_default() += 1;
        }
        if let Some(slow_start) = self.slow_starts.get_mut(&charge) {
            slow_start.accepted(container);
        }
        for class in JobClass::classes_of(needs) {
            self.remember_accepted(&class);
            // Another job may have been accepted before the rejection, although it says so later.
            let is_new = self.backoffs.get(&class).is_some_and(|backoff| {
                let is_untested = !backoff.is_rejected() && matches!(class, JobClass::Exactly(_));
                is_untested || backoff.is_real_try(container)
            });
            if is_new {
                let one = Grant {
                    jobs: 1,
                    is_cut: true,
                };
                self.accept_class(&class, one, now);
            }
        }
    }

    pub(super) fn rejected_kinds(&self) -> usize {
        let told = |slow_start: &&SlowStart| slow_start.is_told;
        let is_slow = |class: &JobClass| {
            let slow_start = class
                .charged()
                .and_then(|charge| self.slow_starts.get(charge));
            slow_start.as_ref().is_some_and(told)
        };
        let rejected = self
            .backoffs
            .iter()
            .filter(|(class, backoff)| backoff.is_rejected() && !is_slow(class));
        rejected.count() + self.slow_starts.values().filter(told).count()
    }
}

fn asked_first(scheduler: &str) -> String {
    format!("{scheduler} is asked first whether it accepts such jobs now")
}

/// Adds a value to a set of bounded size. True if it was not there.
fn remember<T: Eq + Hash>(set: &mut HashSet<T>, value: T) -> bool {
    if set.len() >= MAX_REMEMBERED {
        set.clear();
    }
    set.insert(value)
}

#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod user_tests;
