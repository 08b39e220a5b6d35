//! The rules of admission, one by one and by properties.

use proptest::prelude::*;

use super::*;

fn cpus(n: u64) -> ResourceVector {
    ResourceVector::new(n, n, 0, 0, 0)
}

fn waits(load: ResourceVector, limit: Option<u64>) -> Waiting {
    Waiting {
        container: ContainerUuid::generate("zzzzz"),
        load: Ok(load),
        beside: ResourceVector::default(),
        limit,
    }
}

fn words(fits: &[Admission]) -> Vec<&'static str> {
    fits.iter()
        .map(|fit| match fit {
            Admission::Now => "now",
            Admission::Later(_) => "later",
            Admission::Never(_) => "never",
            Admission::Impossible(_) => "impossible",
        })
        .collect()
}

/// Rows: what the runner holds, what the step needs, and the answer while the runner runs.
#[test]
fn a_step_that_has_no_room_beside_its_runner_never_starts() {
    let four = ResourceVector::new(4, 4, 4, 0, 0);
    let ram = |n| ResourceVector::new(0, n, 0, 0, 0);
    for (runner, step, expected) in [
        (ram(1), ResourceVector::new(4, 3, 0, 0, 0), "now"),
        (ram(1), ram(4), "never"),
        (cpus(1), ResourceVector::new(4, 1, 0, 0, 0), "never"),
        (ram(1), ram(5), "never"),
    ] {
        let running = [Running {
            load: runner,
            ends: None,
        }];
        let waiting = Waiting {
            beside: runner,
            ..waits(step, None)
        };
        let answers = admit(four, four, &running, std::slice::from_ref(&waiting), 0);
        assert_eq!(
            words(&answers),
            [expected],
            "{runner:?} {step:?}: {answers:?}"
        );
        let is_too_large = waiting.is_too_large(four);
        assert_eq!(is_too_large, expected == "never");
        // Another one ends some day.
        let waiting = [waits(step, None)];
        let other = admit(four, four, &running, &waiting, 0);
        let fits = expected == "now" || step == ram(5);
        assert_eq!(words(&other)[0] == expected, fits, "{other:?}");
    }
}

#[test]
fn a_gpu_may_be_found_later() {
    let machine = ResourceVector::new(4, 4, 4, 0, 0);
    let gpu = waits(ResourceVector::new(1, 1, 0, 1, 0), None);
    assert_eq!(
        words(&admit(machine, machine, &[], std::slice::from_ref(&gpu), 0)),
        ["never"]
    );
    assert!(!gpu.is_too_large(machine));
    let both = waits(ResourceVector::new(5, 1, 0, 1, 0), None);
    assert!(both.is_too_large(machine));
}

#[test]
fn the_rules() {
    let four = ResourceVector::new(4, 4, 4, 2, 0);
    let disk = ResourceVector::new(4, 4, 9, 2, 0);
    let scratch = |n| ResourceVector::new(1, 1, n, 0, 0);
    let endless = |load| Running { load, ends: None };
    let until = |load, end| Running {
        load,
        ends: Some(end),
    };
    let gpu = |n| ResourceVector::new(1, 1, 0, n, 0);
    type Row = (
        &'static str,
        Vec<Running>,
        Vec<Waiting>,
        &'static [&'static str],
    );
    // Description, running jobs, waiting containers, expected answers.
    #[rustfmt::skip]
    let rows: Vec<Row> = vec![
        ("all fit", vec![], vec![waits(cpus(2), None), waits(cpus(2), None)], &["now", "now"]),
        ("larger than the machine stops nobody", vec![], vec![waits(cpus(5), None), waits(cpus(4), None)], &["never", "now"]),
        ("larger than the disk", vec![], vec![waits(scratch(10), None), waits(scratch(4), None)], &["never", "now"]),
        ("room on the disk is waited for, and stops nobody", vec![], vec![waits(scratch(9), None), waits(scratch(4), None)], &["later", "now"]),
        ("no limit, no backfill", vec![endless(cpus(2))], vec![waits(cpus(4), None), waits(cpus(1), None)], &["later", "later"]),
        ("a limit of its own does not help when the head's start is unknown",
            vec![endless(cpus(2))], vec![waits(cpus(4), None), waits(cpus(1), Some(1))], &["later", "later"]),
        ("ends before the head's start", vec![until(cpus(2), 2000)], vec![waits(cpus(4), None), waits(cpus(1), Some(1400))], &["later", "now"]),
        ("ends after the head's start", vec![until(cpus(2), 2000)], vec![waits(cpus(4), None), waits(cpus(1), Some(1401))], &["later", "later"]),
        ("spare beside the head", vec![until(cpus(2), 2000)], vec![waits(cpus(3), None), waits(cpus(1), None), waits(cpus(1), None)], &["later", "now", "later"]),
        ("the head is short of GPUs only", vec![endless(gpu(2))], vec![waits(gpu(1), None), waits(cpus(2), None)], &["later", "now"]),
        ("GPUs only, but it would take the head's CPUs", vec![endless(gpu(2))], vec![waits(gpu(1), None), waits(cpus(3), None)], &["later", "later"]),
    ];
    for (what, running, waiting, expected) in rows {
        assert_eq!(
            words(&admit(four, disk, &running, &waiting, 0)),
            expected,
            "{what}"
        );
    }
}

#[test]
fn the_sentences_name_what_is_missing() {
    let machine = ResourceVector::new(4, 8 << 30, 100 << 30, 0, 0);
    let busy = [Running {
        load: ResourceVector::new(3, 6 << 30, 0, 0, 0),
        ends: None,
    }];
    let waiting = [
        waits(ResourceVector::new(2, 4 << 30, 0, 0, 0), None),
        waits(ResourceVector::new(1, 1 << 30, 0, 1, 0), None),
        waits(ResourceVector::new(8, 64 << 30, 0, 0, 0), None),
    ];
    let fits = admit(machine, machine, &busy, &waiting, 0);
    assert_eq!(
        fits,
        [
            Admission::Later("waits for 2 CPUs (1 of 4 free) and 4 GiB of memory with crunch-run (2 GiB of 8 GiB free)".into()),
            Admission::Never("it needs 1 CUDA GPU, and this machine has 0".into()),
            Admission::Never("it needs 8 CPUs, and this machine has 4; 64 GiB of memory with crunch-run, and this machine has 8 GiB".into()),
        ]
    );
}

fn load() -> impl Strategy<Value = ResourceVector> {
    (1u64..5, 0u64..5, 0u64..3).prop_map(|(c, r, g)| ResourceVector::new(c, r, 0, g, 0))
}

fn limit() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 3 => (1u64..5000).prop_map(Some)]
}

/// When the head starts at the latest, by the limits of `running`.
fn guaranteed(capacity: ResourceVector, running: &[Running], load: ResourceVector) -> Option<u64> {
    match load.fits(&capacity.minus(sum(running))) {
        true => Some(0),
        false => earliest_start(capacity, running, load, 0).map(|(at, _)| at),
    }
}

proptest! {
    /// Admitted containers fit together, and do not delay the guaranteed start of the first waiting
    /// one.
    #[test]
    fn the_head_is_never_delayed_and_nothing_is_taken_twice(
        running in prop::collection::vec((load(), limit()), 0..5),
        waiting in prop::collection::vec((load(), limit()), 1..10),
    ) {
        let capacity = ResourceVector::new(6, 6, 0, 3, 0);
        let mut held: Vec<Running> = Vec::new();
        for (load, limit) in running {
            if load.fits(&capacity.minus(sum(&held))) {
                held.push(Running { load, ends: latest_end(0, limit) });
            }
        }
        let waiting: Vec<Waiting> = waiting.into_iter().map(|(l, limit)| waits(l, limit)).collect();
        let fits = admit(capacity, capacity, &held, &waiting, 0);
        prop_assert_eq!(fits.len(), waiting.len());
        let head = fits.iter().position(|fit| matches!(fit, Admission::Later(_)));
        let mut before: Vec<Running> = held.clone();
        let mut after = held;
        for (n, (one, fit)) in waiting.iter().zip(&fits).enumerate() {
            let load = one.load.clone().unwrap();
            if *fit == Admission::Now {
                prop_assert!(load.fits(&capacity.minus(sum(&after))));
                after.push(Running { load, ends: latest_end(0, one.limit) });
                if head.is_none_or(|head| n < head) {
                    before = after.clone();
                }
            }
        }
        if let Some(head) = head {
            let load = waiting[head].load.clone().unwrap();
            let (was, is) = (guaranteed(capacity, &before, load), guaranteed(capacity, &after, load));
            prop_assert!(is == was, "from {:?} to {:?}", was, is);
            prop_assert!(was != Some(0), "the head fitted and was not started");
        }
    }
}
