//! Tests of the back-off and of the slow start.

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
    assert_eq!(tested_at, [5, 15, 35, 65, 95, 125, 155, 185, 215, 245, 275]);
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

fn whole(jobs: usize) -> Grant {
    Grant {
        jobs,
        is_cut: false,
    }
}

#[test]
fn a_grant_is_what_was_tested() {
    let now = Instant::now();
    let all: Vec<_> = (0..64).map(|_| ContainerUuid::generate("zzzzz")).collect();
    let mut slow_start = SlowStart::new(true);
    // Jobs that end before a test, the places that there are, and jobs that are granted.
    let rows = [
        (0, 99, 1),
        (0, 99, 5),
        (3, 99, 23),
        (0, 99, 32),
        (40, 99, 32),
        (0, 20, 17),
        (0, 99, 1),
        (9, 99, 13),
        (9, 9, 9),
        (9, 3, 2),
    ];
    for (n, (ended, places, expected)) in rows.into_iter().enumerate() {
        assert!(slow_start.is_used_up(now), "{n}");
        slow_start.places_freed(ended);
        let sizes = slow_start.test_sizes(32);
        let jobs = *sizes.iter().find(|size| **size <= places).unwrap();
        let is_cut = jobs < sizes[0];
        assert!(slow_start.grant(Grant { jobs, is_cut }, now), "{n}");
        let free = |container: &&ContainerUuid| slow_start.try_admit(container, now);
        let admitted: Vec<_> = all.iter().filter(free).collect();
        assert_eq!(admitted.len(), expected, "{n}");
        for container in &admitted {
            assert!(!slow_start.is_used_up(now));
            assert!(slow_start.try_admit(container, now), "asked again");
            slow_start.accepted(container);
        }
    }
    // The scheduler still counts two of three jobs that have ended.
    slow_start.limit_met();
    slow_start.places_freed(3);
    let cut = |jobs| Grant { jobs, is_cut: true };
    assert!(slow_start.grant(cut(1), now) && slow_start.try_admit(&all[0], now));
    assert_eq!(slow_start.test_sizes(32), [2, 1]);
    slow_start.unwanted = 0;
    assert!(!slow_start.has_room());
    slow_start.rejected(&all[0]);
    assert_eq!(slow_start.test_sizes(32), [1]);
    assert_eq!(slow_start.test_sizes(0), [1]);
    assert!(slow_start.grant(whole(127), now) && slow_start.has_room());
    assert!(!slow_start.grant(whole(1), now));
    assert!(!slow_start.is_idle(now) && slow_start.is_idle(now + ADMISSION_TTL));
    slow_start.limit_met();
    assert!(slow_start.is_used_up(now) && !slow_start.is_idle(now + ADMISSION_TTL));
}

/// Another dispatcher locked it.
#[test]
fn an_admission_without_a_result_expires() {
    let now = Instant::now();
    let container = ContainerUuid::generate("zzzzz");
    let mut slow_start = SlowStart::new(true);
    assert!(slow_start.grant(whole(1), now) && slow_start.try_admit(&container, now));
    let before = now + ADMISSION_TTL - Duration::from_millis(1);
    assert!(!slow_start.is_used_up(before) && slow_start.is_used_up(now + ADMISSION_TTL));
}
