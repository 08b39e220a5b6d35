//! How a job is stopped: asked once, forced when its grace is over, and only that is repeated.
//!
//! crunch-run takes a second TERM for "at once", so asking twice would cut short what it promised its container.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

use crate::act::Stop;
use crate::plan::Reason;
use crate::scheduler::Urgency;
use crate::world::{Job, JobId, Moment};

/// How long crunch-run may tidy up after a final state before it is asked to end.
const TIDYING: Duration = Duration::from_secs(30);
/// How long a job is remembered that a listing does not show: the listing may be wrong, as some are, and a job that is
/// shown again is the same one.
const MEMORY: Duration = Duration::from_secs(600);
/// Between two attempts to end a job by force.
const REPEAT: Duration = Duration::from_secs(10);

/// The jobs that are being stopped.
#[derive(Debug, Default)]
pub struct Stopping(BTreeMap<JobId, Stage>);

#[derive(Debug)]
struct Stage {
    /// When a stop was first planned.
    first: Moment,
    /// When that was first tried.
    begun: Option<Moment>,
    /// When it was asked to stop.
    asked: Option<Moment>,
    /// When it was last forced.
    forced: Option<Moment>,
    /// When it was last known to be there.
    seen: Moment,
    /// Whose it is: numbers of processes come again.
    container: ContainerUuid,
    /// As the first listing since says.
    attempt: Option<TokenUuid>,
}

impl Stopping {
    /// What to do now about a job that is to be stopped. None: wait.
    pub fn due(&mut self, stop: &Stop, grace: Duration, now: Moment) -> Option<Urgency> {
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
            return self.due(stop, grace, now);
        }
        let asked = match (stage.asked, stage.begun) {
            (Some(asked), _) => asked,
            // Where no request is ever taken, as of a job that is suspended, only force is left.
            (None, Some(begun)) if now.since(begun) > grace => begun,
            _ => {
                let tidying = *reason == Reason::ContainerFinal && now.since(stage.first) < TIDYING;
                return (!tidying).then_some(Urgency::Ask);
            }
        };
        let due = now.since(asked) > grace && stage.forced.is_none_or(|at| now.since(at) > REPEAT);
        due.then_some(Urgency::Force)
    }

    /// That is being done.
    pub fn begin(&mut self, job: &JobId, urgency: Urgency, now: Moment) {
        let Some(stage) = self.0.get_mut(job) else {
            return;
        };
        match urgency {
            Urgency::Ask => {
                stage.begun.get_or_insert(now);
                stage.asked = Some(now);
            }
            Urgency::Force => stage.forced = Some(now),
        }
    }

    /// It was told so just now, however long that took: from here on its grace counts.
    pub fn told(&mut self, job: &JobId, now: Moment) {
        if let Some(stage) = self.0.get_mut(job)
            && stage.forced.is_none()
        {
            stage.asked = Some(now);
        }
    }

    /// The scheduler did not take the stop: what failed was not asked.
    pub fn failed(&mut self, job: &JobId) {
        if let Some(stage) = self.0.get_mut(job) {
            match stage.forced {
                Some(_) => stage.forced = None,
                None => stage.asked = None,
            }
        }
    }

    /// What a complete listing says of them: those that ended are forgotten, and at last those that are gone.
    pub fn listed(&mut self, jobs: &[Job], now: Moment) {
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
        self.0.retain(|_, stage| now.since(stage.seen) <= MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn container(n: usize) -> ContainerUuid {
        ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
    }

    /// What is due is done.
    fn next(stopping: &mut Stopping, job: &JobId, reason: Reason, seconds: u64) -> Option<Urgency> {
        let grace = match reason {
            Reason::ContainerFinal => TIDYING,
            _ => Duration::from_secs(60),
        };
        let stop = Stop {
            container: container(1),
            job: job.clone(),
            reason,
        };
        let due = stopping.due(&stop, grace, at(seconds))?;
        assert_eq!(stopping.due(&stop, grace, at(seconds)), Some(due));
        stopping.begin(job, due, at(seconds));
        Some(due)
    }

    #[test]
    fn asked_once_and_forced_after_the_grace() {
        let (mut stopping, job) = (Stopping::default(), JobId("1".into()));
        let answers: Vec<Option<Urgency>> = [0, 10, 60, 61, 65, 72]
            .map(|s| next(&mut stopping, &job, Reason::PriorityZero, s))
            .into();
        let (ask, force) = (Some(Urgency::Ask), Some(Urgency::Force));
        assert_eq!(answers, [ask, None, None, force, None, force]);
    }

    #[test]
    fn the_grace_begins_when_it_was_told() {
        let (mut stopping, job) = (Stopping::default(), JobId("1".into()));
        let next = |stopping: &mut Stopping, s| next(stopping, &job, Reason::PriorityZero, s);
        assert_eq!(next(&mut stopping, 0), Some(Urgency::Ask));
        stopping.told(&job, at(50));
        assert_eq!(next(&mut stopping, 110), None);
        assert_eq!(next(&mut stopping, 111), Some(Urgency::Force));
        stopping.told(&job, at(115));
        assert_eq!(next(&mut stopping, 122), Some(Urgency::Force));
    }

    #[test]
    fn crunch_run_may_tidy_up_and_a_failed_stop_is_asked_again() {
        let (mut stopping, job) = (Stopping::default(), JobId("1".into()));
        let next = |stopping: &mut Stopping, s| next(stopping, &job, Reason::ContainerFinal, s);
        assert_eq!(next(&mut stopping, 0), None);
        assert_eq!(next(&mut stopping, 30), Some(Urgency::Ask));
        stopping.failed(&JobId("1".into()));
        assert_eq!(next(&mut stopping, 32), Some(Urgency::Ask));
        stopping.failed(&JobId("1".into()));
        let late = next(&mut stopping, 61);
        assert_eq!(late, Some(Urgency::Force), "nobody ever took the request");
    }

    /// The job 1 of an attempt.
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
        let (mut stopping, job) = (Stopping::default(), JobId("1".into()));
        let next = |stopping: &mut Stopping, s| next(stopping, &job, Reason::PriorityZero, s);
        assert_eq!(next(&mut stopping, 0), Some(Urgency::Ask));
        stopping.listed(&[], at(10));
        stopping.listed(&[shown(7, false)], at(20));
        assert_eq!(next(&mut stopping, 20), None);
        assert_eq!(next(&mut stopping, 61), Some(Urgency::Force));
        stopping.listed(&[], at(620));
        assert_eq!(next(&mut stopping, 620), Some(Urgency::Force));
        stopping.listed(&[], at(621));
        let forgotten = next(&mut stopping, 621);
        assert_eq!(forgotten, Some(Urgency::Ask));
    }

    #[test]
    fn a_process_with_the_number_of_an_earlier_one_is_asked() {
        let mut stopping = Stopping::default();
        let stop = |n| Stop {
            container: container(n),
            job: JobId("1".into()),
            reason: Reason::PriorityZero,
        };
        let grace = Duration::from_secs(60);
        assert_eq!(stopping.due(&stop(1), grace, at(0)), Some(Urgency::Ask));
        stopping.begin(&stop(1).job, Urgency::Ask, at(0));
        // It is over before any listing shows it again.
        stopping.listed(&[], at(10));
        assert_eq!(stopping.due(&stop(1), grace, at(100)), Some(Urgency::Force));
        assert_eq!(stopping.due(&stop(2), grace, at(100)), Some(Urgency::Ask));
        let anothers = Job {
            container: container(3),
            ..shown(7, false)
        };
        stopping.listed(&[anothers], at(101));
        assert_eq!(stopping.due(&stop(3), grace, at(101)), Some(Urgency::Ask));
    }

    #[test]
    fn another_job_of_its_number_is_asked() {
        let (mut stopping, job) = (Stopping::default(), JobId("1".into()));
        let next = |stopping: &mut Stopping, s| next(stopping, &job, Reason::PriorityZero, s);
        for (seconds, shown, due) in [
            (0, vec![], Some(Urgency::Ask)),
            (10, vec![shown(7, false)], None),
            (20, vec![shown(8, false)], Some(Urgency::Ask)),
            (30, vec![shown(8, false)], None),
            (40, vec![shown(8, true)], Some(Urgency::Ask)),
        ] {
            stopping.listed(&shown, at(seconds));
            assert_eq!(next(&mut stopping, seconds), due, "after {seconds} s");
        }
    }
}
