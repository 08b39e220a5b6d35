//! How a job is stopped: asked once, forced when its grace is over, and only that is repeated.
//!
//! crunch-run takes a second TERM for "at once", so asking twice would cut short what it promised its container.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

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
    /// Whose it is, once a listing has shown it: numbers of processes come again.
    whose: Option<(ContainerUuid, Option<TokenUuid>)>,
}

impl Stopping {
    /// What to do now about a job that is to be stopped. None: wait.
    pub fn due(
        &mut self,
        job: &JobId,
        reason: Reason,
        grace: Duration,
        now: Moment,
    ) -> Option<Urgency> {
        let stage = self.0.entry(job.clone()).or_insert(Stage {
            first: now,
            begun: None,
            asked: None,
            forced: None,
            seen: now,
            whose: None,
        });
        let asked = match (stage.asked, stage.begun) {
            (Some(asked), _) => asked,
            // Where no request is ever taken, as of a job that is suspended, only force is left.
            (None, Some(begun)) if now.since(begun) > grace => begun,
            _ => {
                let tidying = reason == Reason::ContainerFinal && now.since(stage.first) < TIDYING;
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
            let owner = (job.container.clone(), job.attempt.clone());
            let is_another = stage.whose.as_ref().is_some_and(|whose| *whose != owner);
            if job.ended || is_another {
                self.0.remove(&job.id);
                continue;
            }
            stage.seen = stage.seen.max(now);
            stage.whose = Some(owner);
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

    /// What is due is done.
    fn next(stopping: &mut Stopping, job: &JobId, reason: Reason, seconds: u64) -> Option<Urgency> {
        let grace = match reason {
            Reason::ContainerFinal => TIDYING,
            _ => Duration::from_secs(60),
        };
        let due = stopping.due(job, reason, grace, at(seconds))?;
        assert_eq!(stopping.due(job, reason, grace, at(seconds)), Some(due));
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
            container: ContainerUuid::parse("zzzzz-dz642-000000000000001").unwrap(),
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
