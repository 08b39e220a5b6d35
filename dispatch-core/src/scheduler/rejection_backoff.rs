//! Back-off of rejected job classes, and slow start afterwards. Pure.
//!
//! Input: rejections and acceptances with their times. Output: when to test again, and which
//! containers may be submitted.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use exp_backoff::Backoff;

use crate::model::charge_class::ChargeClass;
use crate::model::resources::ResourceRequest;

/// Initial interval between two tests; it doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Initial delay until one container is really submitted, because a test is not quite a submission.
/// It doubles each time: each try costs the container one of its few locks.
const INITIAL_REAL_TRY_DELAY: Duration = Duration::from_secs(600);
/// Number of consecutive acceptances after which there is no limit.
const SLOW_START_DONE: usize = 128;
/// Time after which an admitted container without a result counts as not submitted.
const ADMISSION_TTL: Duration = Duration::from_secs(60);

/// Jobs that are held back together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JobClass {
    /// Jobs that are charged alike.
    Charged(ChargeClass),
    /// Jobs with exactly these needs.
    Exactly(ResourceRequest),
}

impl JobClass {
    /// The classes of a container, the larger first.
    pub fn classes_of(needs: &ResourceRequest) -> [Self; 2] {
        [
            Self::Charged(ChargeClass::of(needs)),
            Self::Exactly(needs.clone()),
        ]
    }

    /// Resource request of the job with which the class is tested.
    pub fn test_needs(&self) -> ResourceRequest {
        match self {
            Self::Charged(class) => ResourceRequest {
                cpus: 1,
                ram: 64 << 20,
                partitions: class.partitions.clone(),
                preemptible: class.preemptible,
                charged_to: class.charge.clone(),
                ..ResourceRequest::default()
            },
            Self::Exactly(needs) => needs.clone(),
        }
    }
}

impl fmt::Display for JobClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charged(class) => class.fmt(f),
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

/// Why a class is held back, and until when.
#[derive(Debug)]
pub struct RejectionBackoff {
    /// Reason of the scheduler. None: no job of the class was rejected, and the first test is due.
    reason: Option<String>,
    /// When one container may really be submitted.
    real_try_at: Instant,
    real_try_backoff: Backoff,
    test_at: Instant,
    test_backoff: Backoff,
    /// A test was accepted: when jobs of the class may be submitted.
    free_at: Option<Instant>,
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

    /// Records a test that was accepted.
    pub fn record_acceptance(&mut self, free_at: Instant) {
        self.free_at = Some(free_at);
    }

    /// Whether jobs of the class may be submitted again.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.free_at.is_some_and(|free_at| free_at <= now)
    }

    /// Records a test that was not accepted; `reason` is what Slurm answered, if it did.
    pub fn record_test(&mut self, reason: Option<String>, now: Instant) {
        if reason.is_some() {
            self.reason = reason;
        }
        self.test_at = now + self.test_backoff.next_delay();
    }

    /// Why a container of the class waits; none for the one that is really submitted now.
    /// `scheduler` is the name of the scheduler.
    pub fn deferral_reason(&mut self, scheduler: &str, now: Instant) -> Option<String> {
        if now >= self.real_try_at {
            self.real_try_at = now + self.real_try_backoff.next_delay();
            return None;
        }
        Some(match &self.reason {
            Some(reason) => format!("{scheduler} rejects such jobs now: {reason}"),
            None => format!(
                "its last attempt came to nothing, so {scheduler} is asked first whether it accepts such jobs"
            ),
        })
    }
}

/// Limit of concurrent submissions after a rejection.
#[derive(Debug)]
pub struct SlowStart {
    limit: usize,
    /// Admitted containers, and when.
    in_flight: BTreeMap<ContainerUuid, Instant>,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            limit: 1,
            in_flight: BTreeMap::new(),
        }
    }
}

impl SlowStart {
    /// Whether this container may be submitted now.
    pub fn try_admit(&mut self, container: &ContainerUuid, now: Instant) -> bool {
        self.in_flight
            .retain(|_, since| now.duration_since(*since) < ADMISSION_TTL);
        if self.in_flight.contains_key(container) {
            return true;
        }
        let may = self.in_flight.len() < self.limit;
        if may {
            self.in_flight.insert(container.clone(), now);
        }
        may
    }

    /// Doubles the limit after an acceptance. Returns whether the slow start is over.
    pub fn accepted(&mut self, container: &ContainerUuid) -> bool {
        self.in_flight.remove(container);
        self.limit *= 2;
        self.limit >= SLOW_START_DONE
    }

    /// Resets the limit to one after a rejection.
    pub fn rejected(&mut self, container: &ContainerUuid) {
        self.in_flight.remove(container);
        self.limit = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let reason = backoff.deferral_reason("it", start);
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
            let free = (0..5)
                .filter(|_| backoff.deferral_reason("it", now).is_none())
                .count();
            tried.extend(std::iter::repeat_n(minute, free));
        }
        assert_eq!(tried, [10, 30, 70]);
    }

    #[test]
    fn an_admission_without_a_result_expires() {
        let now = Instant::now();
        let [a, b, c] = [(); 3].map(|()| ContainerUuid::generate("zzzzz"));
        let mut slow_start = SlowStart::default();
        assert!(
            slow_start.try_admit(&a, now)
                && slow_start.try_admit(&a, now)
                && !slow_start.try_admit(&b, now)
        );
        // Another dispatcher locked it, so there is no result.
        assert!(slow_start.try_admit(&b, now + ADMISSION_TTL));
        assert!(!slow_start.accepted(&b));
        let later = now + ADMISSION_TTL;
        assert!(
            slow_start.try_admit(&a, later)
                && slow_start.try_admit(&c, later)
                && !slow_start.try_admit(&b, later)
        );
        slow_start.rejected(&a);
        assert!(!slow_start.try_admit(&a, later) && slow_start.try_admit(&c, later));
        let taken = (0..7).filter(|_| slow_start.accepted(&c)).count();
        assert_eq!(taken, 1);
    }
}
