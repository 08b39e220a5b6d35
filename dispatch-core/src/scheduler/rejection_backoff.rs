//! Back-off of rejected job classes, and slow start afterwards. Pure.
//!
//! Input: rejections and acceptances with their times. Output: when to test again, and which
//! containers may be submitted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use exp_backoff::Backoff;

use crate::model::charge_class::{ChargeClass, UserClass};
use crate::model::resources::ResourceRequest;

/// Initial interval between two tests; it doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Initial delay until one container is really submitted, because a test is not quite a submission.
/// It doubles each time: each try costs the container one of its few locks.
const INITIAL_REAL_TRY_DELAY: Duration = Duration::from_secs(600);
/// Number of jobs that were granted since a rejection, after which there is no limit.
const SLOW_START_DONE: usize = 128;
/// How many times as many jobs the next test is for.
const GROWTH: usize = 4;
/// Number of jobs of the first test of a class of which no job was rejected.
const FIRST_TEST: usize = 8;
/// Time after which an admitted container without a result counts as not submitted.
const ADMISSION_TTL: Duration = Duration::from_secs(60);

/// Jobs that are held back together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JobClass {
    /// Jobs that are charged alike.
    Charged(ChargeClass),
    /// Those of one user.
    OfUser(UserClass),
    /// Jobs with exactly these needs.
    Exactly(ResourceRequest),
}

impl JobClass {
    /// The classes of a container, the larger first.
    pub fn classes_of(needs: &ResourceRequest) -> Vec<Self> {
        let of_user = UserClass::of(needs);
        let charged = Self::Charged(of_user.charged.clone());
        let of_user = of_user.user.is_some().then_some(Self::OfUser(of_user));
        let exactly = Self::Exactly(needs.untried());
        [charged]
            .into_iter()
            .chain(of_user)
            .chain([exactly])
            .collect()
    }

    /// The class, if it is all jobs that are charged alike.
    pub fn charged(&self) -> Option<&ChargeClass> {
        match self {
            Self::Charged(charge) => Some(charge),
            Self::OfUser(_) | Self::Exactly(_) => None,
        }
    }

    /// Resource request of the job with which the class is tested.
    pub fn test_needs(&self) -> ResourceRequest {
        match self {
            Self::Charged(class) | Self::OfUser(UserClass { charged: class, .. }) => {
                ResourceRequest {
                    cpus: 1,
                    ram: 64 << 20,
                    partitions: class.partitions.clone(),
                    preemptible: class.preemptible,
                    charged_to: class.charge.clone(),
                    ..ResourceRequest::default()
                }
            }
            Self::Exactly(needs) => needs.clone(),
        }
    }
}

impl fmt::Display for JobClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charged(class) => class.fmt(f),
            Self::OfUser(class) => class.fmt(f),
            Self::Exactly(needs) => {
                let (cpus, ram, gpus) = (needs.cpus, needs.ram >> 20, needs.gpus);
                write!(f, "of {cpus} CPUs, {ram} MiB, {gpus} GPUs")?;
                if let Some(model) = &needs.gpu_model
                    && !model.hardware_target.is_empty()
                {
                    write!(f, " ({})", model.hardware_target.join(" or "))?;
                }
                f.write_str(" and equal other needs")
            }
        }
    }
}

/// A test that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Number of its jobs.
    pub jobs: usize,
    /// Whether a test for more jobs was rejected just before.
    pub is_cut: bool,
}

/// Why a class is held back, and until when.
#[derive(Debug)]
pub struct RejectionBackoff {
    /// Reason of the scheduler. None: no job of the class was rejected, and the first test is due.
    reason: Option<String>,
    /// When one container may really be submitted.
    real_try_at: Instant,
    /// The container that was.
    real_try: Option<ContainerUuid>,
    real_try_backoff: Backoff,
    test_at: Instant,
    test_backoff: Backoff,
    /// A test was accepted: when jobs of the class may be submitted, and how many.
    free_at: Option<(Instant, Grant)>,
}

impl RejectionBackoff {
    /// Starts with the reason of the scheduler.
    pub fn new(reason: String, now: Instant) -> Self {
        let mut untested = Self::untested(now);
        untested.record_test(Some(reason), now);
        untested
    }

    /// Starts with a test, which is due now.
    pub fn untested(now: Instant) -> Self {
        let mut real_try_backoff = Backoff::new(INITIAL_REAL_TRY_DELAY, Duration::MAX);
        Self {
            reason: None,
            real_try_at: now + real_try_backoff.next_delay(),
            real_try: None,
            real_try_backoff,
            test_at: now,
            free_at: None,
            test_backoff: Backoff::new(INITIAL_BACKOFF, MAX_BACKOFF),
        }
    }

    /// Whether a job of the class was rejected.
    pub fn is_rejected(&self) -> bool {
        self.reason.is_some()
    }

    /// Whether to test again.
    pub fn is_test_due(&self, now: Instant) -> bool {
        self.test_at <= now && self.free_at.is_none()
    }

    /// When the next test is due.
    pub fn test_at(&self) -> Instant {
        self.test_at
    }

    /// Makes a test due now: a job of the class has ended.
    pub fn test_soon(&mut self, now: Instant) {
        self.test_at = now;
        self.test_backoff.reset();
    }

    /// Records a test that was accepted.
    pub fn record_acceptance(&mut self, free_at: Instant, grant: Grant) {
        self.free_at = Some((free_at, grant));
    }

    /// Whether the newest test was accepted.
    pub fn is_accepted(&self) -> bool {
        self.free_at.is_some()
    }

    /// Whether jobs of the class may be submitted again, and how many.
    pub fn settled(&self, now: Instant) -> Option<Grant> {
        let (free_at, grant) = self.free_at?;
        (free_at <= now).then_some(grant)
    }

    /// Records a test that was not accepted; `reason` is what Slurm answered, if it did.
    pub fn record_test(&mut self, reason: Option<String>, now: Instant) {
        if reason.is_some() {
            self.reason = reason;
        }
        self.test_at = now + self.test_backoff.next_delay();
    }

    /// Whether the container is the one that was really submitted.
    pub fn is_real_try(&self, container: &ContainerUuid) -> bool {
        self.real_try.as_ref() == Some(container)
    }

    /// Why a container of the class waits; none for the one that is really submitted now.
    /// `scheduler` is the name of the scheduler.
    pub fn deferral_reason(
        &mut self,
        scheduler: &str,
        container: &ContainerUuid,
        now: Instant,
    ) -> Option<String> {
        if now >= self.real_try_at {
            self.real_try_at = now + self.real_try_backoff.next_delay();
            self.real_try = Some(container.clone());
            return None;
        }
        Some(match &self.reason {
            Some(reason) => format!("{scheduler} rejects such jobs now: {reason}"),
            None => format!("{scheduler} is asked first whether it accepts such jobs now"),
        })
    }
}

/// How many jobs of a class are submitted after a rejection: as many as a test was accepted for.
///
/// A test is for as many jobs as have ended since the last rejection, and for some more: none after
/// a rejection, then four times as many as the last test was accepted for. What is rejected is
/// tried by halves.
#[derive(Debug)]
pub struct SlowStart {
    /// Jobs that ended since the last rejection or grant.
    freed: usize,
    /// Number of jobs of the next test beside these.
    more: usize,
    /// Jobs that were granted since the last rejection.
    granted: usize,
    /// Jobs of the last grant that are not admitted yet.
    left: usize,
    granted_at: Option<Instant>,
    /// Admitted containers, and when.
    in_flight: BTreeMap<ContainerUuid, Instant>,
    /// Whether the admin was told of a rejection.
    pub is_told: bool,
    /// Number of listings since a container of the class waited for a place.
    pub unwanted: u32,
}

impl SlowStart {
    /// The scheduler rejects further jobs, or may (`is_told` is false).
    pub fn new(is_told: bool) -> Self {
        Self {
            freed: 0,
            // Without a rejection, a limit is not likely.
            more: if is_told { 0 } else { FIRST_TEST - 1 },
            granted: 0,
            left: 0,
            granted_at: None,
            in_flight: BTreeMap::new(),
            is_told,
            unwanted: 1,
        }
    }

    /// Numbers of jobs of the next test, each for the case that the one before is rejected: at most
    /// `max`, and at last one.
    pub fn test_sizes(&self, max: usize) -> Vec<usize> {
        let all = self.freed.max(1) + self.more;
        let halves = std::iter::successors(Some(all), |size| Some(size / 2));
        let sizes = halves.take_while(|size| *size > 0).chain([self.freed]);
        let sizes: BTreeSet<usize> = sizes.map(|size| size.clamp(1, max.max(1))).collect();
        sizes.into_iter().rev().collect()
    }

    /// Number of jobs that an accepted test of one grants, where no test is for several: only one
    /// after a rejection, as each job above a limit costs a lock.
    pub fn untested_jobs(&self) -> usize {
        match self.is_told {
            true => 1,
            false => FIRST_TEST,
        }
    }

    /// Records that jobs of the class have ended.
    pub fn places_freed(&mut self, places: usize) {
        self.freed += places;
    }

    /// Records that a test was rejected, or a job.
    pub fn limit_met(&mut self) {
        (self.freed, self.more, self.granted, self.left) = (0, 0, 0, 0);
    }

    /// Grants the jobs of a test that was accepted. False if there is no limit that matters.
    pub fn grant(&mut self, grant: Grant, now: Instant) -> bool {
        let Grant { jobs, is_cut } = grant;
        // A scheduler counts some jobs for a while after their end: the places come later.
        self.freed = self.freed.saturating_sub(jobs);
        if is_cut {
            (self.more, self.granted) = (0, 0);
        } else {
            self.more = jobs.saturating_mul(GROWTH);
        }
        (self.left, self.granted_at) = (jobs, Some(now));
        self.granted += jobs;
        self.granted < SLOW_START_DONE
    }

    /// Records a listing. Whether the last grant left room, and nothing has waited for it since the
    /// listing before.
    pub fn listed(&mut self) -> bool {
        self.unwanted = self.unwanted.saturating_add(1);
        self.left > 0 && self.unwanted > 1
    }

    /// Whether containers wait that may be submitted now.
    pub fn has_room(&self) -> bool {
        self.left > 0 && self.unwanted == 0
    }

    /// Whether this container may be submitted now.
    pub fn try_admit(&mut self, container: &ContainerUuid, now: Instant) -> bool {
        if self.in_flight.contains_key(container) {
            return true;
        }
        let may = self.left > 0;
        if may {
            self.left -= 1;
            self.in_flight.insert(container.clone(), now);
        }
        may
    }

    /// Records that the container became a job.
    pub fn accepted(&mut self, container: &ContainerUuid) {
        self.in_flight.remove(container);
    }

    /// Records that the container was rejected: others took its place. A test shows the limit.
    pub fn rejected(&mut self, container: &ContainerUuid) {
        self.in_flight.remove(container);
        self.limit_met();
    }

    /// Whether the class did not need its last grant for a while.
    pub fn is_idle(&self, now: Instant) -> bool {
        let is_old = |at| now.duration_since(at) >= ADMISSION_TTL;
        self.left > 0 && self.granted_at.is_some_and(is_old)
    }

    /// Whether all jobs of the grant were submitted, so that another test is due.
    pub fn is_used_up(&mut self, now: Instant) -> bool {
        self.in_flight
            .retain(|_, since| now.duration_since(*since) < ADMISSION_TTL);
        self.left == 0 && self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests;
