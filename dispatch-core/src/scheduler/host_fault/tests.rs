//! Tests of the faults that stop all starts: what is observed, in rows of seconds.

use super::*;

#[derive(Clone, Copy)]
enum Observed {
    Good,
    Bad,
    /// The storage was reached and says that it is full.
    Full,
    NotSent,
    Sent,
    /// A container's attempt on a node could store nothing.
    Report(u8, u8),
}
use Observed::{Bad, Full, Good, NotSent, Report as R, Sent};

/// Seconds, what is observed, and whether starts are held then.
type Step = (u64, Observed, bool);

fn check(new: fn() -> Fault, rows: &[(&str, &[Step])]) {
    let ids: Vec<_> = (0..3).map(|_| ContainerUuid::generate("zzzzz")).collect();
    for (what, steps) in rows {
        let mut fault = new();
        let start = Instant::now();
        let mut is_undecided = false;
        for (second, observed, expected) in *steps {
            let now = start + Duration::from_secs(*second);
            match *observed {
                Good => fault.tried(now, Ok(())),
                Bad => fault.tried(now, Err("it is full".to_owned().into())),
                Full => fault.tried(
                    now,
                    Err(TrialFailure {
                        reason: "it is full".to_owned(),
                        is_certain: true,
                    }),
                ),
                NotSent => fault.submission_failed(now, "it is full"),
                Sent => fault.succeeded(),
                R(container, node) => fault.reported(
                    now,
                    Report {
                        container: ids[usize::from(container)].clone(),
                        node: (node > 0).then(|| format!("n{node}")),
                        reason: "it is full".to_owned(),
                    },
                ),
            }
            let reason = fault.reason();
            assert_eq!(reason.is_some(), *expected, "{what}, second {second}");
            assert!(
                reason.is_none_or(|reason| reason.ends_with("it is full")),
                "{reason:?}"
            );
            match observed {
                R(..) => is_undecided = true,
                Good | Bad | Full => is_undecided = false,
                NotSent | Sent => {}
            }
            assert_eq!(fault.is_suspect(), *expected || is_undecided, "{what}");
        }
    }
}

#[test]
fn a_fault_of_the_host_holds_until_a_trial_succeeds_after_the_hold() {
    check(
        Fault::default,
        &[
            (
                "a trial finds it and another its end",
                &[(0, Bad, true), (1, Good, false)],
            ),
            (
                "a good trial is no fault",
                &[(0, Good, false), (5, Good, false)],
            ),
            (
                "a submission finds what the trial does not",
                &[
                    (0, NotSent, true),
                    (0, NotSent, true),
                    (1, Good, true),
                    (2, Good, false),
                    (3, NotSent, true),
                    (6, Good, true),
                    (7, Good, false),
                ],
            ),
            (
                "a job that was sent resets the hold",
                &[
                    (0, NotSent, true),
                    (2, Good, false),
                    (2, Sent, false),
                    (3, NotSent, true),
                    (5, Good, false),
                ],
            ),
        ],
    );
}

#[test]
fn reports_find_a_fault_of_the_storage_that_a_trial_or_other_nodes_confirm() {
    check(
        || Fault::of_storage(false),
        &[
            (
                "a failed trial alone is no fault",
                &[(0, Bad, false), (5, Bad, false)],
            ),
            (
                "the storage itself says that it is full, also after a restart",
                &[
                    (0, Full, true),
                    (5, Bad, true),
                    (900, Bad, true),
                    (905, Good, false),
                ],
            ),
            (
                "a trial that is believed, without a report",
                &[(0, Good, false), (60, Bad, true), (65, Good, false)],
            ),
            (
                "one report, and a trial that is believed",
                &[
                    (0, Good, false),
                    (5, R(0, 1), false),
                    (6, Bad, true),
                    (5000, Bad, true),
                    (5001, Good, false),
                ],
            ),
            (
                "one container, whatever it does, holds nobody",
                &[
                    (0, Good, false),
                    (5, R(0, 1), false),
                    (6, Good, false),
                    (7, R(0, 2), false),
                    (8, Good, false),
                    (9, R(0, 3), false),
                ],
            ),
            (
                "one node, whatever runs there, holds nobody",
                &[
                    (0, Good, false),
                    (5, R(0, 1), false),
                    (6, R(1, 1), false),
                    (7, Good, false),
                    (8, R(2, 1), false),
                ],
            ),
            (
                "several nodes do not reach what this host reaches",
                &[
                    (0, Good, false),
                    (5, R(0, 1), false),
                    (6, Good, false),
                    (7, R(1, 2), true),
                    (8, Good, true),
                    (9, Good, false),
                    (10, R(2, 1), false),
                ],
            ),
            (
                "results that were stored in between",
                &[(0, R(0, 1), false), (1, Sent, false), (2, R(1, 2), false)],
            ),
            (
                "an old report",
                &[(0, R(0, 1), false), (600, R(1, 2), false)],
            ),
            (
                "storage that only the nodes reach",
                &[
                    (0, Bad, false),
                    (5, R(0, 0), false),
                    (6, Bad, false),
                    (7, R(1, 0), false),
                    (8, Bad, true),
                    (607, Bad, true),
                    (608, Bad, false),
                    (609, R(2, 0), false),
                    (610, Bad, false),
                ],
            ),
        ],
    );
}

#[test]
fn the_hold_is_at_most_a_minute() {
    let mut fault = Fault::default();
    let mut now = Instant::now();
    for _ in 0..40 {
        fault.submission_failed(now, "it is full");
        now += MAX_HOLD;
        fault.tried(now, Ok(()));
        assert!(fault.reason().is_none());
    }
}

/// A fault of the storage must not exclude the nodes that noticed it first.
#[test]
fn only_what_a_trial_refutes_is_the_fault_of_nodes() {
    let report = |node: &str| Report {
        container: ContainerUuid::generate("zzzzz"),
        node: Some(node.to_owned()),
        reason: "it is full".to_owned(),
    };
    let bad = || Err("it is full".to_owned().into());
    let now = Instant::now();
    let mut fault = Fault::of_storage(false);
    fault.tried(now, Ok(()));
    let (one, two) = (report("n1"), report("n1"));
    fault.reported(now, one.clone());
    fault.reported(now, two.clone());
    assert_eq!(fault.take_refuted(), [], "not decided");
    fault.tried(now, Ok(()));
    assert_eq!(fault.take_refuted(), [one.clone(), two]);
    assert_eq!(fault.take_refuted(), []);
    fault.reported(now, one);
    fault.tried(now, bad());
    fault.tried(now, Ok(()));
    assert_eq!(fault.take_refuted(), [], "the storage was at fault");
}

#[test]
fn reports_are_bounded() {
    let mut fault = Fault::of_storage(false);
    for _ in 0..100 {
        let report = Report {
            container: ContainerUuid::generate("zzzzz"),
            node: None,
            reason: String::new(),
        };
        fault.reported(Instant::now(), report);
    }
    assert_eq!(fault.reports.len(), MAX_REPORTS);
    assert!(fault.reason().is_none());
}
