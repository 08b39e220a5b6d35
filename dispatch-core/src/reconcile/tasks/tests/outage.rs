//! What the users of containers are told of an outage of the scheduler, and of a job that it runs
//! anew.

use super::*;
use crate::model::decision::Decision;
use crate::model::scheduling::{Candidate, PendingOutlook, PendingReason};

const OUTAGE: &str = "slurm has not answered since 12:00";

fn candidate(container: &ContainerUuid) -> Candidate {
    Candidate {
        container: container.clone(),
        needs: ResourceRequest::default(),
        was_locked: false,
        runners: Vec::new(),
    }
}

/// The containers about which something new is said, and the text.
fn told(reconciler: &mut Reconciler, waiting: &[&ContainerUuid]) -> Vec<(ContainerUuid, String)> {
    let candidates: Vec<_> = waiting.iter().map(|one| candidate(one)).collect();
    let fits = vec![Admission::Now; candidates.len()];
    let events = reconciler.apply_admission(&candidates, fits).into_iter();
    let mut told: Vec<_> = events
        .map(|event: Decision| (event.container().clone(), event.text()))
        .collect();
    told.sort();
    told
}

fn all(containers: &[&ContainerUuid], text: &str) -> Vec<(ContainerUuid, String)> {
    let mut all: Vec<_> = containers
        .iter()
        .map(|container| ((*container).clone(), text.to_owned()))
        .collect();
    all.sort();
    all
}

/// Each user is told once, and once that it is over, whatever else was told before.
#[test]
fn an_outage_is_told_once_to_all_that_wait_and_so_is_its_end() {
    let at = |seconds| MonotonicTime(START.0 + Duration::from_secs(seconds));
    let mut reconciler = reconciler(1);
    let [waits, goes, tired] = [(); 3].map(|()| queued(&mut reconciler));
    let [held, submitted, runs, pending] = [(); 4].map(|()| locked(&mut reconciler, 1));
    for container in [&submitted, &runs, &pending] {
        let attempt = reconciler.world.attempts.get_mut(container).unwrap();
        attempt.phase = Phase::Submitted(START);
    }
    let known = &mut reconciler.world.containers;
    known.get_mut(&runs).unwrap().state = ContainerState::Running;
    let reason = PendingReason {
        outlook: PendingOutlook::Transient,
        text: "Slurm job 3 waits for its turn".to_owned(),
    };
    let reasons: BTreeMap<_, _> = [(pending.clone(), reason)].into();
    reconciler.set_pending_reasons(START, reasons.clone());
    for n in 0..9 {
        let reports = &mut reconciler.reports;
        reports.record_deferred(&tired, &format!("reason {n}"));
    }
    let queue = [&waits, &goes, &tired];
    for _ in 0..2 {
        reconciler.set_obstacles(None, Some(OUTAGE.to_owned()));
        let not_run = format!("not run now: {OUTAGE}");
        let expected = all(&[&waits, &goes, &tired, &held, &submitted], &not_run);
        assert_eq!(told(&mut reconciler, &queue), expected);
        assert_eq!(told(&mut reconciler, &queue), []);
        // No lock, no submission; the record says what was known.
        for (seconds, text, tasks) in [
            (
                1,
                format!("{OUTAGE}; last known: Slurm job 3 waits for its turn"),
                1,
            ),
            (9, String::new(), 0),
        ] {
            let reports = decide(&mut reconciler, at(seconds));
            assert_eq!(reports.len(), tasks, "{reports:?}");
            for task in reports {
                let Task::ReportPendingReason(report) = task else {
                    panic!("{task:?}")
                };
                assert_eq!((&report.container, &*report.text), (&pending, &*text));
                let outcome = Outcome::Reported(report.text);
                reconciler.apply_outcome(at(1), pending.clone(), outcome, Feedback::default());
            }
        }
        reconciler.world.now = at(10);
        reconciler.set_obstacles(None, None);
        reconciler.set_pending_reasons(at(10), reasons.clone());
        assert_eq!(told(&mut reconciler, &queue), [], "most start now");
        reconciler.world.now = MonotonicTime(at(10).0 + reconciler.settings.poll_interval);
        reconciler.world.containers.get_mut(&goes).unwrap().state = ContainerState::Locked;
        let over = "not run now: what held it has ended; it starts in its turn";
        assert_eq!(
            told(&mut reconciler, &queue),
            all(&[&waits, &tired, &submitted], over)
        );
        assert_eq!(told(&mut reconciler, &queue), []);
        reconciler.world.containers.get_mut(&goes).unwrap().state = ContainerState::Queued;
        let reports = reconciler.unreported(at(11), 9);
        let [Task::ReportPendingReason(report)] = &reports[..] else {
            panic!("{reports:?}")
        };
        assert_eq!(&*report.text, "Slurm job 3 waits for its turn");
        let outcome = Outcome::Reported(report.text.clone());
        reconciler.apply_outcome(at(11), pending.clone(), outcome, Feedback::default());
    }
}

/// A scheduler may run a job anew by itself. Its container is told once the listing is newer than
/// the record that says that it ran. Nothing is told of a container that has ended.
#[test]
fn a_job_that_waits_again_after_it_ran_is_told_to_stand_still() {
    use ContainerState::{Complete, Running};
    use PendingOutlook::{NeedsAdmin, Transient};
    for (state, outlook, listed_after, expected) in [
        (Running, Transient, 0, None),
        (Running, Transient, 1, Some("job_paused")),
        (Running, NeedsAdmin, 1, Some("decided_not_to_run")),
        (Complete, NeedsAdmin, 1, None),
    ] {
        let mut reconciler = reconciler(1);
        let runs = locked(&mut reconciler, 1);
        reconciler.world.containers.get_mut(&runs).unwrap().state = state;
        let began = MonotonicTime(START.0 + Duration::from_secs(listed_after));
        reconciler.apply_listing(began, vec![job_of(&runs)]);
        let reason = PendingReason {
            outlook,
            text: "Slurm job 3 waits for its begin time".to_owned(),
        };
        let events = reconciler.set_pending_reasons(began, [(runs, reason)].into());
        let names: Vec<&str> = events.iter().map(Decision::name).collect();
        assert_eq!(names, Vec::from_iter(expected));
    }
}
