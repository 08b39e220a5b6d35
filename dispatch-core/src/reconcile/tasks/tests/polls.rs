//! Tests of what the next poll requests.

use arvados_client::records::Container;
use serde_json::json;

use super::*;
use crate::model::snapshot::{
    ApiSnapshot, PendingChanges, QueueCursor, QueueRead, SnapshotRequest,
};

#[test]
fn the_next_page_is_read_once_after_the_known_one_is_taken() {
    let mut reconciler = reconciler(500);
    queued(&mut reconciler);
    let container = reconciler.world.containers.keys().next().unwrap().clone();
    reconciler.poll.queue.has_more = true;
    assert!(!reconciler.needs_next_page(START), "there is one");
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
    assert!(reconciler.needs_next_page(START));
    // Behind many that can never run, the next page has time. Where all were being locked while the
    // queue was listed, it has none.
    let soon = MonotonicTime(START.0 + reconciler.settings.poll_interval / 4);
    let never = [Admission::Never(String::new())];
    reconciler.poll.queue.listed_at = Some(START);
    for (fits, is_needed) in [(&never[..], false), (&[], true)] {
        let uuid = ContainerUuid::generate("zzzzz");
        let next = Some(QueueCursor { priority: 1, uuid });
        reconciler.poll.queue.sweep.advance(next, fits);
        assert_eq!(reconciler.needs_next_page(START), is_needed, "{fits:?}");
        assert!(reconciler.needs_next_page(soon));
    }
    reconciler.next_request(START, PendingChanges::default());
    assert!(!reconciler.needs_next_page(START), "a poll is under way");
    // A container that waits for room counts as not taken.
    reconciler.poll.queue.locked_since_listing = true;
    queued(&mut reconciler);
    for known in reconciler.world.containers.values_mut() {
        known.fit = Admission::Later("room".into());
    }
    assert!(!reconciler.needs_next_page(START), "one waits for room");
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

/// A server with a queue, which it shows two containers at a time.
struct ShortPages(Vec<ContainerUuid>);

impl ShortPages {
    fn answer(&self, request: &SnapshotRequest) -> ApiSnapshot {
        let after = |start: Option<&QueueCursor>| -> Vec<ContainerUuid> {
            let is_after = |uuid: &&ContainerUuid| start.is_none_or(|start| **uuid > start.uuid);
            self.0.iter().filter(is_after).take(2).cloned().collect()
        };
        let pages = match &request.queue {
            QueueRead::Nothing => vec![],
            QueueRead::Head => vec![after(None)],
            QueueRead::HeadAnd(start) => vec![after(None), after(Some(start))],
        };
        let last = pages.last().and_then(|page| page.last()).cloned();
        let next_page = last.map(|uuid| QueueCursor { priority: 1, uuid });
        let named = request.named.iter().filter(|uuid| self.0.contains(uuid));
        let record = |uuid: ContainerUuid| {
            let record = json!({"uuid": uuid, "state": "Queued", "priority": 1});
            let record: Container = serde_json::from_value(record).unwrap();
            (uuid, record.into())
        };
        let shown = pages.concat().into_iter().chain(named.cloned());
        ApiSnapshot {
            containers: shown.map(record).collect(),
            more_queued: next_page.is_some(),
            next_page,
            ..ApiSnapshot::default()
        }
    }
}

/// A few containers that can run are found behind many that never can. A poll reads few pages,
/// and each container is reported once.
#[test]
fn what_can_run_is_found_behind_many_that_never_can() {
    let mut queue: Vec<_> = (0..20).map(|_| ContainerUuid::generate("zzzzz")).collect();
    queue.sort();
    let runs = [queue[9].clone(), queue[17].clone()];
    let mut server = ShortPages(queue.clone());
    let mut reconciler = reconciler(500);
    let mut now = START;
    let (mut told, mut found, mut hurried) = (Vec::new(), String::new(), String::new());
    for _ in 0..60 {
        assert!(reconciler.world.containers.len() <= 6);
        now = MonotonicTime(now.0 + reconciler.settings.poll_interval);
        let request = reconciler.next_request(now, PendingChanges::default());
        told.extend(reconciler.apply_snapshot(now, server.answer(&request)));
        let (waiting, _) = reconciler.candidates(now);
        let fits = waiting
            .iter()
            .map(|one| match runs.contains(&one.container) {
                true => Admission::Later("room".into()),
                false => Admission::Never("too large".to_owned()),
            });
        let fits = fits.collect();
        told.extend(reconciler.apply_admission(&waiting, fits));
        let known = |uuid: &&ContainerUuid| reconciler.world.containers.contains_key(*uuid);
        // The first pass has more pages in a poll interval.
        let soon = MonotonicTime(now.0 + reconciler.settings.poll_interval / 4);
        hurried.push(if reconciler.needs_poll(soon) {
            'x'
        } else {
            '.'
        });
        found.push(if runs.iter().any(|uuid| known(&uuid)) {
            'x'
        } else {
            '.'
        });
        if found.ends_with("xxxxx") {
            // They waited for five polls, and run now.
            server.0.retain(|uuid| {
                !(runs.contains(uuid) && reconciler.world.containers.contains_key(uuid))
            });
        }
    }
    // One page after the other is read, again and again.
    let expected = [&"....xxxxx".repeat(2)[..], &".".repeat(42)].concat();
    assert_eq!(found, expected);
    let expected = [&"xxxx.....".repeat(2)[..], "x", &".".repeat(41)].concat();
    assert_eq!(hurried, expected);
    let mut told: Vec<_> = told.iter().map(|event| event.container().clone()).collect();
    told.sort();
    queue.retain(|uuid| !runs.contains(uuid));
    assert_eq!(told, queue);
}
