//! Stops jobs in two steps. Input: the jobs to stop, acknowledgements and listings. Output: the
//! next step for each job, graceful or forced.
//!
//! A job is asked to end once. When its grace is over, it is forced, and only that step is
//! repeated. crunch-run ends at once on a second TERM, so asking twice would cut the container's
//! grace short.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::reason::Reason;
use crate::model::scheduling::StopMode;
use crate::model::task::Stop;
use crate::model::world::{Job, JobId, MonotonicTime};

/// Time for which crunch-run may clean up after a final state before it is asked to end. A listing
/// after that time must still show its job.
const POST_FINAL_GRACE: Duration = Duration::from_secs(30);
/// Time for which a job missing from listings is remembered. A listing may be wrong, and a job that
/// appears again is the same job.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Interval between two attempts to force a job to end.
const FORCE_REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The jobs that are being stopped.
#[derive(Debug, Default)]
pub struct StopEscalation(BTreeMap<JobId, Stage>);

#[derive(Debug)]
struct Stage {
    /// Time at which the stop was first planned.
    first: MonotonicTime,
    /// Time at which the stop was first tried.
    begun: Option<MonotonicTime>,
    /// Time at which the job was asked to end.
    asked: Option<MonotonicTime>,
    /// Time at which the job was last forced to end.
    forced: Option<MonotonicTime>,
    /// Time at which the job was last known to exist.
    seen: MonotonicTime,
    /// Container of the job. It tells jobs apart, because process ids are used again.
    container: ContainerUuid,
    /// Attempt of the job, as the first listing since then shows it.
    attempt: Option<TokenUuid>,
}

impl StopEscalation {
    /// The step to take now for a job that must stop; `None` means wait.
    pub fn next_step(
        &mut self,
        stop: &Stop,
        grace: Duration,
        now: MonotonicTime,
    ) -> Option<StopMode> {
        let Stop {
            job,
            container,
            reason,
        } = stop;
        let stage = self.0.entry(job.clone()).or_insert_with(|| Stage {
            first: now,
            begun: None,
            asked: None,
            forced: None,
            seen: now,
            container: container.clone(),
            attempt: None,
        });
        if stage.container != *container {
            self.0.remove(job);
            return self.next_step(stop, grace, now);
        }
        let asked = match (stage.asked, stage.begun) {
            (Some(asked), _) => asked,
            // Every request to end failed, as for a suspended job. Only force is left.
            (None, Some(begun)) if now.since(begun) > grace => begun,
            _ => {
                // In an outage, the newest listing may be older than the end.
                let cleans_up = *reason == Reason::ContainerFinal
                    && stage.seen.since(stage.first) < POST_FINAL_GRACE;
                return (!cleans_up).then_some(StopMode::Graceful);
            }
        };
        let due = now.since(asked) > grace
            && stage
                .forced
                .is_none_or(|at| now.since(at) > FORCE_REPEAT_INTERVAL);
        due.then_some(StopMode::Force)
    }

    /// Records that the step is being sent.
    pub fn mark_sent(&mut self, job: &JobId, mode: StopMode, now: MonotonicTime) {
        let Some(stage) = self.0.get_mut(job) else {
            return;
        };
        match mode {
            StopMode::Graceful => {
                stage.begun.get_or_insert(now);
                stage.asked = Some(now);
            }
            StopMode::Force => stage.forced = Some(now),
        }
    }

    /// Records that the scheduler accepted the stop. The grace counts from this time, however long
    /// the command took.
    pub fn acknowledged(&mut self, job: &JobId, now: MonotonicTime) {
        if let Some(stage) = self.0.get_mut(job)
            && stage.forced.is_none()
        {
            stage.asked = Some(now);
        }
    }

    /// Records that the scheduler did not accept the stop, so the step is repeated.
    pub fn mark_failed(&mut self, job: &JobId) {
        if let Some(stage) = self.0.get_mut(job) {
            match stage.forced {
                Some(_) => stage.forced = None,
                None => stage.asked = None,
            }
        }
    }

    /// Applies a complete listing. Jobs that ended are removed, and jobs not listed are removed
    /// after `FORGET_AFTER`.
    pub fn apply_listing(&mut self, jobs: &[Job], now: MonotonicTime) {
        for job in jobs {
            let Some(stage) = self.0.get_mut(&job.id) else {
                continue;
            };
            let is_same = stage.container == job.container
                && (stage.attempt.is_none() || stage.attempt == job.attempt);
            if job.ended || !is_same {
                self.0.remove(&job.id);
                continue;
            }
            stage.seen = stage.seen.max(now);
            stage.attempt.clone_from(&job.attempt);
        }
        self.0
            .retain(|_, stage| now.since(stage.seen) <= FORGET_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_secs(seconds))
    }

    fn container(n: usize) -> ContainerUuid {
        ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
    }

    /// Takes the step that is due.
    fn next(
        escalation: &mut StopEscalation,
        job: &JobId,
        reason: Reason,
        seconds: u64,
    ) -> Option<StopMode> {
        let grace = match reason {
            Reason::ContainerFinal => POST_FINAL_GRACE,
            _ => Duration::from_secs(60),
        };
        let stop = Stop {
            container: container(1),
            job: job.clone(),
            reason,
        };
        let due = escalation.next_step(&stop, grace, at(seconds))?;
        assert_eq!(escalation.next_step(&stop, grace, at(seconds)), Some(due));
        escalation.mark_sent(job, due, at(seconds));
        Some(due)
    }

    #[test]
    fn asked_once_and_forced_after_the_grace() {
        let (mut escalation, job) = (StopEscalation::default(), JobId("1".into()));
        let answers: Vec<Option<StopMode>> = [0, 10, 60, 61, 65, 72]
            .map(|s| next(&mut escalation, &job, Reason::PriorityZero, s))
            .into();
        let (ask, force) = (Some(StopMode::Graceful), Some(StopMode::Force));
        assert_eq!(answers, [ask, None, None, force, None, force]);
    }

    #[test]
    fn the_grace_begins_when_the_scheduler_accepted_the_stop() {
        let (mut escalation, job) = (StopEscalation::default(), JobId("1".into()));
        let next =
            |escalation: &mut StopEscalation, s| next(escalation, &job, Reason::PriorityZero, s);
        assert_eq!(next(&mut escalation, 0), Some(StopMode::Graceful));
        escalation.acknowledged(&job, at(50));
        assert_eq!(next(&mut escalation, 110), None);
        assert_eq!(next(&mut escalation, 111), Some(StopMode::Force));
        escalation.acknowledged(&job, at(115));
        assert_eq!(next(&mut escalation, 122), Some(StopMode::Force));
    }

    #[test]
    fn crunch_run_may_clean_up_and_a_failed_stop_is_asked_again() {
        let (mut escalation, job) = (StopEscalation::default(), JobId("1".into()));
        let next =
            |escalation: &mut StopEscalation, s| next(escalation, &job, Reason::ContainerFinal, s);
        assert_eq!(next(&mut escalation, 0), None);
        escalation.apply_listing(&[shown(7, false)], at(29));
        assert_eq!(next(&mut escalation, 100), None, "no newer listing");
        escalation.apply_listing(&[shown(7, false)], at(30));
        assert_eq!(next(&mut escalation, 30), Some(StopMode::Graceful));
        escalation.mark_failed(&JobId("1".into()));
        assert_eq!(next(&mut escalation, 32), Some(StopMode::Graceful));
        escalation.mark_failed(&JobId("1".into()));
        let late = next(&mut escalation, 61);
        assert_eq!(late, Some(StopMode::Force), "nobody ever took the request");
    }

    /// Job 1, which runs an attempt.
    fn shown(attempt: usize, ended: bool) -> Job {
        Job {
            id: JobId("1".into()),
            container: container(1),
            attempt: TokenUuid::parse(&format!("zzzzz-gj3su-{attempt:015}")).ok(),
            ended,
            node: None,
        }
    }

    #[test]
    fn a_job_that_a_listing_missed_is_not_asked_again() {
        let (mut escalation, job) = (StopEscalation::default(), JobId("1".into()));
        let next =
            |escalation: &mut StopEscalation, s| next(escalation, &job, Reason::PriorityZero, s);
        assert_eq!(next(&mut escalation, 0), Some(StopMode::Graceful));
        escalation.apply_listing(&[], at(10));
        escalation.apply_listing(&[shown(7, false)], at(20));
        assert_eq!(next(&mut escalation, 20), None);
        assert_eq!(next(&mut escalation, 61), Some(StopMode::Force));
        escalation.apply_listing(&[], at(620));
        assert_eq!(next(&mut escalation, 620), Some(StopMode::Force));
        escalation.apply_listing(&[], at(621));
        let forgotten = next(&mut escalation, 621);
        assert_eq!(forgotten, Some(StopMode::Graceful));
    }

    #[test]
    fn a_process_with_the_number_of_an_earlier_one_is_asked() {
        let mut escalation = StopEscalation::default();
        let stop = |n| Stop {
            container: container(n),
            job: JobId("1".into()),
            reason: Reason::PriorityZero,
        };
        let grace = Duration::from_secs(60);
        assert_eq!(
            escalation.next_step(&stop(1), grace, at(0)),
            Some(StopMode::Graceful)
        );
        escalation.mark_sent(&stop(1).job, StopMode::Graceful, at(0));
        // The job is over before any listing shows it again.
        escalation.apply_listing(&[], at(10));
        assert_eq!(
            escalation.next_step(&stop(1), grace, at(100)),
            Some(StopMode::Force)
        );
        assert_eq!(
            escalation.next_step(&stop(2), grace, at(100)),
            Some(StopMode::Graceful)
        );
        let anothers = Job {
            container: container(3),
            ..shown(7, false)
        };
        escalation.apply_listing(&[anothers], at(101));
        assert_eq!(
            escalation.next_step(&stop(3), grace, at(101)),
            Some(StopMode::Graceful)
        );
    }

    #[test]
    fn another_job_of_its_number_is_asked() {
        let (mut escalation, job) = (StopEscalation::default(), JobId("1".into()));
        let next =
            |escalation: &mut StopEscalation, s| next(escalation, &job, Reason::PriorityZero, s);
        for (seconds, shown, due) in [
            (0, vec![], Some(StopMode::Graceful)),
            (10, vec![shown(7, false)], None),
            (20, vec![shown(8, false)], Some(StopMode::Graceful)),
            (30, vec![shown(8, false)], None),
            (40, vec![shown(8, true)], Some(StopMode::Graceful)),
        ] {
            escalation.apply_listing(&shown, at(seconds));
            assert_eq!(next(&mut escalation, seconds), due, "after {seconds} s");
        }
    }
}
