//! Back-off of rejected job classes, and slow start afterwards. Pure.
//!
//! Input: rejections and acceptances with their times. Output: when to test again, and which
//! containers may be submitted.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use exp_backoff::Backoff;

use crate::model::charge_class::{ChargeClass, UserClass};
use crate::model::resources::ResourceRequest;

/// Initial interval between two tests; it doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Initial delay until one container is really submitted, because a test is not quite a submission.
/// It doubles each time: each try costs the container one of its few locks.
const INITIAL_REAL_TRY_DELAY: Duration = Duration::from_secs(600);
/// Number of jobs that were accepted beyond a limit, after which there is none.
const SLOW_START_DONE: usize = 128;
/// Number of jobs that are submitted one by one, each after a test, where the number of jobs is
/// uncertain. Then more are submitted at once all the same.
const MAX_SINGLE_GRANTS: usize = 32;
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

/// Number of jobs of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub jobs: usize,
    /// A listing has just shown them. Otherwise some may have ended.
    pub is_exact: bool,
    /// There are no others, which this process did not submit.
    pub is_complete: bool,
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
    /// A test was accepted: when jobs of the class may be submitted, and beside how many.
    free_at: Option<(Instant, Count)>,
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

    /// Records a test that was accepted beside this number of jobs.
    pub fn record_acceptance(&mut self, free_at: Instant, jobs: Count) {
        self.free_at = Some((free_at, jobs));
    }

    /// Whether the newest test was accepted.
    pub fn is_accepted(&self) -> bool {
        self.free_at.is_some()
    }

    /// Whether jobs of the class may be submitted again: the number of jobs beside the test.
    pub fn settled(&self, now: Instant) -> Option<Count> {
        let (free_at, jobs) = self.free_at?;
        (free_at <= now).then_some(jobs)
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

/// How many jobs of a class are submitted after a rejection: each accepted test grants some.
///
/// Up to the number that the scheduler had at the last rejection, there is room as jobs end. A test
/// that is accepted with as many jobs shows that there is room for more: for one, then for twice as
/// many each time. Where the limit is unknown, one by one.
#[derive(Debug)]
pub struct SlowStart {
    /// Jobs of the class at the last rejection.
    limit: usize,
    /// Whether these were all.
    is_limit_known: bool,
    /// Size of the next grant beyond the limit.
    next_grant: usize,
    /// Grants of one job beside an uncertain number of jobs.
    single_grants: usize,
    /// Jobs of the last grant that are not admitted yet.
    left: usize,
    granted_at: Option<Instant>,
    /// Admitted containers, and when.
    in_flight: BTreeMap<ContainerUuid, Instant>,
    /// Whether the admin was told of a rejection.
    pub is_told: bool,
}

impl SlowStart {
    /// The scheduler rejects further jobs beside this number.
    pub fn new(count: Count) -> Self {
        Self {
            limit: count.jobs,
            is_limit_known: count.is_complete,
            next_grant: 1,
            single_grants: 0,
            left: 0,
            granted_at: None,
            in_flight: BTreeMap::new(),
            is_told: true,
        }
    }

    /// There may be a limit: this process has seen no job of the class.
    pub fn cautious() -> Self {
        Self {
            is_told: false,
            ..Self::new(Count {
                jobs: 0,
                is_exact: false,
                is_complete: false,
            })
        }
    }

    /// Records that a test was rejected while the scheduler had this number of jobs.
    pub fn set_limit(&mut self, count: Count) {
        if count.is_exact {
            (self.limit, self.is_limit_known) = (count.jobs, count.is_complete);
        } else {
            self.limit = count.jobs.min(self.limit);
        }
        self.stop_growth();
    }

    fn stop_growth(&mut self) {
        (self.next_grant, self.single_grants, self.left) = (1, 0, 0);
    }

    /// Grants more after a test that was accepted beside this number of jobs. False if there is no
    /// limit that matters.
    pub fn grant(&mut self, count: Count, now: Instant) -> bool {
        self.granted_at = Some(now);
        self.left = self.limit.saturating_sub(count.jobs);
        if self.left == 0 {
            self.left = self.next_grant;
            // Where jobs have ended unseen, an accepted test proves less.
            if (count.is_exact && self.is_limit_known) || self.single_grants >= MAX_SINGLE_GRANTS {
                self.next_grant *= 2;
            } else {
                self.single_grants += 1;
            }
        }
        self.next_grant <= SLOW_START_DONE
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
        self.stop_growth();
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
mod tests {
    use super::*;

    fn exact(jobs: usize) -> Count {
        Count {
            jobs,
            is_exact: true,
            is_complete: true,
        }
    }

    #[test]
    fn tests_back_off() {
        let start = Instant::now();
        let mut backoff = RejectionBackoff::new("no".into(), start);
        let mut tested_at = Vec::new();
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            if backoff.is_test_due(now) {
                tested_at.push(second);
                backoff.record_test(None, now);
            }
        }
        assert_eq!(tested_at, [5, 15, 35, 75, 135, 195, 255]);
        backoff.record_test(Some("still no".into()), start);
        let reason = backoff.deferral_reason("it", &ContainerUuid::generate("zzzzz"), start);
        assert_eq!(
            reason.as_deref(),
            Some("it rejects such jobs now: still no")
        );
    }

    #[test]
    fn real_submissions_back_off() {
        let start = Instant::now();
        let mut backoff = RejectionBackoff::new("no".into(), start);
        let mut tried = Vec::new();
        for minute in 0..=100 {
            let now = start + Duration::from_secs(60 * minute);
            // Only one of many pending containers is admitted.
            for _ in 0..5 {
                let container = ContainerUuid::generate("zzzzz");
                if backoff.deferral_reason("it", &container, now).is_none() {
                    tried.push(minute);
                    assert!(backoff.is_real_try(&container));
                }
            }
        }
        assert_eq!(tried, [10, 30, 70]);
    }

    #[test]
    fn grants_fill_the_limit_and_grow_beyond_it() {
        let now = Instant::now();
        let all: Vec<_> = (0..64).map(|_| ContainerUuid::generate("zzzzz")).collect();
        let mut slow_start = SlowStart::new(exact(7));
        let take = |slow_start: &mut SlowStart, jobs| {
            assert!(slow_start.is_used_up(now) && slow_start.grant(exact(jobs), now));
            let free = |container: &&ContainerUuid| slow_start.try_admit(container, now);
            let admitted: Vec<_> = all.iter().filter(free).collect();
            for container in &admitted {
                assert!(!slow_start.is_used_up(now));
                assert!(slow_start.try_admit(container, now), "asked again");
                slow_start.accepted(container);
            }
            admitted.len()
        };
        // Jobs, and what is granted beside them.
        for (jobs, expected) in [(4, 3), (0, 7), (7, 1), (8, 2), (10, 4), (6, 1), (14, 8)] {
            assert_eq!(take(&mut slow_start, jobs), expected, "beside {jobs}");
        }
        slow_start.set_limit(exact(20));
        for (jobs, expected) in [
            (20, 1),
            (21, 2),
            (23, 4),
            (27, 8),
            (35, 16),
            (51, 32),
            (83, 64),
        ] {
            assert_eq!(take(&mut slow_start, jobs), expected, "beside {jobs}");
        }
        assert!(!slow_start.grant(exact(147), now));
        slow_start.rejected(&all[0]);
        slow_start.set_limit(exact(5));
        assert!(slow_start.is_used_up(now) && !slow_start.is_idle(now + ADMISSION_TTL));
        assert!(slow_start.grant(exact(5), now) && !slow_start.is_idle(now));
        assert!(slow_start.is_idle(now + ADMISSION_TTL));
        assert!(slow_start.try_admit(&all[0], now) && !slow_start.try_admit(&all[1], now));
    }

    /// Another dispatcher locked it.
    #[test]
    fn an_admission_without_a_result_expires() {
        let now = Instant::now();
        let container = ContainerUuid::generate("zzzzz");
        let mut slow_start = SlowStart::new(exact(0));
        assert!(slow_start.grant(exact(0), now) && slow_start.try_admit(&container, now));
        let before = now + ADMISSION_TTL - Duration::from_millis(1);
        assert!(!slow_start.is_used_up(before) && slow_start.is_used_up(now + ADMISSION_TTL));
    }
}
