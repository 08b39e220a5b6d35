//! Tests of what the next poll requests.

use arvados_client::records::Container;
use serde_json::json;

use super::*;
use crate::model::snapshot::{ApiSnapshot, PendingChanges};

#[test]
fn the_next_page_is_read_once_after_the_known_one_is_taken() {
    let mut reconciler = reconciler(500);
    queued(&mut reconciler);
    let container = reconciler.world.containers.keys().next().unwrap().clone();
    reconciler.poll.queue.has_more = true;
    assert!(!reconciler.needs_next_page(), "there is one");
    let token = AttemptToken {
        uuid: TokenUuid::generate("zzzzz"),
        token: Token::new("secret"),
        expires_at: None,
    };
    reconciler.apply_outcome(
        START,
        container,
        Outcome::Locked(token),
        Feedback::default(),
    );
    assert!(reconciler.needs_next_page());
    reconciler.next_request(START, PendingChanges::default());
    assert!(!reconciler.needs_next_page(), "a poll is under way");
    // A container that waits for room counts as not taken.
    reconciler.poll.queue.locked_since_listing = true;
    queued(&mut reconciler);
    for known in reconciler.world.containers.values_mut() {
        known.fit = Admission::Later("room".into());
    }
    assert!(!reconciler.needs_next_page(), "one waits for room");
}

/// What was given back is listed with the queue at once, not after the poll interval, and admitted
/// again when its time to wait is over.
#[test]
fn a_container_that_went_back_to_the_queue_is_looked_for_at_once() {
    let after = |seconds| MonotonicTime(START.0 + Duration::from_secs(seconds));
    let mut reconciler = reconciler(1);
    let container = locked(&mut reconciler, 1);
    reconciler.next_request(START, PendingChanges::default());
    assert!(!reconciler.needs_poll(START));
    let released = Outcome::Released(ContainerState::Queued, true);
    reconciler.apply_outcome(START, container, released, Feedback::default());
    assert!(reconciler.needs_poll(START));
    reconciler.next_request(START, PendingChanges::default());
    assert!(!reconciler.needs_poll(after(1)), "it waits");
    assert!(reconciler.needs_poll(after(2)));
    reconciler.candidates(after(2));
    assert!(!reconciler.needs_poll(after(2)));
}

/// An event that names a container need not update `modified_at`. A query for newer records would
/// miss the change.
#[test]
fn a_container_that_an_event_named_is_requested() {
    let mut reconciler = reconciler(500);
    reconciler.settings.asked_by_name = 0;
    let container = locked(&mut reconciler, 1);
    let job = job_of(&container);
    reconciler.world.listing = Some(JobListing::new(START, vec![job]));
    let record = json!({"uuid": container, "state": "Locked", "priority": 1, "modified_at": "2026-11-22T04:00:00Z",
                        "locked_by_uuid": reconciler.tokens.of(&container).unwrap().uuid});
    let record: Container = serde_json::from_value(record).unwrap();
    reconciler.next_request(START, PendingChanges::default());
    reconciler.apply_snapshot(
        START,
        ApiSnapshot {
            containers: [(container.clone(), record.into())].into(),
            ..ApiSnapshot::default()
        },
    );
    let asked = |reconciler: &mut Reconciler, named| reconciler.next_request(START, named).named;
    assert!(asked(&mut reconciler, PendingChanges::default()).is_empty());
    let named = |container: &ContainerUuid| PendingChanges {
        containers: [container.clone()].into(),
        everything: false,
    };
    assert_eq!(
        asked(&mut reconciler, named(&container)),
        [container.clone()].into()
    );
    // No poll has shown the change yet: one failed, the other ran during an action.
    reconciler.snapshot_failed();
    reconciler.world.in_flight.insert(container.clone());
    assert_eq!(
        asked(&mut reconciler, PendingChanges::default()),
        [container.clone()].into()
    );
    reconciler.apply_snapshot(START, ApiSnapshot::default());
    assert!(reconciler.has_pending_change(&container));
    reconciler.world.in_flight.clear();
    assert_eq!(
        asked(&mut reconciler, PendingChanges::default()),
        [container.clone()].into()
    );
    reconciler.apply_snapshot(START, ApiSnapshot::default());
    assert!(!reconciler.has_pending_change(&container));
    let stranger = ContainerUuid::generate("zzzzz");
    assert_eq!(
        asked(&mut reconciler, named(&stranger)),
        [stranger].into(),
        "it may be new in the queue, which is not listed again so soon"
    );
    let everything = PendingChanges {
        everything: true,
        ..PendingChanges::default()
    };
    assert_eq!(
        asked(&mut reconciler, everything),
        [container.clone()].into()
    );
    // After a failed full request, the next request asks for less.
    reconciler.snapshot_failed();
    assert!(asked(&mut reconciler, PendingChanges::default()).is_empty());
    reconciler.apply_snapshot(START, ApiSnapshot::default());
    assert_eq!(
        asked(&mut reconciler, PendingChanges::default()),
        [container].into(),
        "everything is still to be seen"
    );
}
