//! Tests of the final states that `EndAttempt` reports.

use super::*;

/// A container's end is reported once, with the end of the attempt that held it.
#[test]
fn the_end_of_a_container_is_reported_once() {
    use ContainerState::{Cancelled, Complete, Queued};
    let submitted = Phase::Submitted(at(7));
    for (world, expected) in [
        (
            with_attempt(world(Complete, ours(), 1), submitted),
            Some(Complete),
        ),
        (
            with_attempt(world(Cancelled, LockHolder::Nobody, 0), submitted),
            Some(Cancelled),
        ),
        (
            with_attempt(world(Cancelled, LockHolder::Nobody, 0), Phase::Revoking),
            None,
        ),
        (
            with_attempt(
                world(Complete, LockHolder::Nobody, 1),
                Phase::LockUnknown(at(7)),
            ),
            None,
        ),
        (
            with_attempt(world(Queued, LockHolder::Nobody, 1), submitted),
            None,
        ),
    ] {
        let ends = planned(&world).into_iter().map(|action| match action {
            Action::EndAttempt { ended, .. } => ended,
            other => panic!("{other:?}"),
        });
        assert_eq!(ends.collect::<Vec<_>>(), [expected]);
    }
}
