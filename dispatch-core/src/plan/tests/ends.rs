//! What is told of ends.

use super::*;

/// The end of a container is told with the end of the attempt that had it, and once.
#[test]
fn the_end_of_a_container_is_told_once() {
    use ContainerState::{Cancelled, Complete, Queued};
    let submitted = Phase::Submitted(at(7));
    for (world, told) in [
        (
            with_attempt(world(Complete, ours(), 1), submitted),
            Some(Complete),
        ),
        (
            with_attempt(world(Cancelled, Holder::Nobody, 0), submitted),
            Some(Cancelled),
        ),
        (
            with_attempt(world(Cancelled, Holder::Nobody, 0), Phase::Ending),
            None,
        ),
        (
            with_attempt(world(Complete, Holder::Nobody, 1), Phase::Unclear(at(7))),
            None,
        ),
        (
            with_attempt(world(Queued, Holder::Nobody, 1), submitted),
            None,
        ),
    ] {
        let ends = planned(&world).into_iter().map(|action| match action {
            Action::EndAttempt { ended, .. } => ended,
            other => panic!("{other:?}"),
        });
        assert_eq!(ends.collect::<Vec<_>>(), [told]);
    }
}
