//! Worlds of one container, shared by the tests of the plan.

use std::time::Duration;

use super::*;
use crate::model::resources::Admission;
use crate::model::resources::ResourceRequest;
use crate::model::world::{Attempt, Job, JobListing, MonotonicTime, PendingSince};

mod ends;
mod owners;
mod properties;
mod starts;
mod table;

pub(crate) use properties::any_world;

const POLICY: Policy = Policy {
    max_pending: 10,
    max_supervisors: 5,
    max_supervisor_ram: None,
    start_timeout: Some(Duration::from_secs(3)),
    counts_running: false,
    may_start: true,
};

fn uuid(n: usize) -> ContainerUuid {
    ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
}

fn token(n: usize) -> TokenUuid {
    TokenUuid::parse(&format!("zzzzz-gj3su-{n:015}")).unwrap()
}

fn at(seconds: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_secs(seconds))
}

fn job(n: usize, attempt: usize) -> Job {
    Job {
        id: JobId(format!("{n}.{attempt}")),
        container: uuid(n),
        attempt: Some(token(attempt)),
        ended: false,
        node: None,
    }
}

fn job_of_unknown_attempt(n: usize) -> Job {
    Job {
        id: JobId(format!("{n}.x")),
        attempt: None,
        ..job(n, 0)
    }
}

/// One container, two empty listings that began at 8 and 9 seconds, now 10.
fn world(state: ContainerState, holder: LockHolder, priority: i64) -> World {
    let mut world = World {
        now: at(10),
        ..World::default()
    };
    world.containers.insert(
        uuid(1),
        ObservedContainer {
            owner: None,
            requested_by: None,
            created_at: None,
            locks: 0,
            state,
            priority,
            etag: "e".into(),
            holder,
            needs: ResourceRequest::default(),
            fit: Admission::Now,
            seen: at(9),
            end: None,
        },
    );
    world.previous = Some(JobListing::new(at(8), vec![]));
    world.listing = Some(JobListing::new(at(9), vec![]));
    world
}

fn with_attempt(mut world: World, phase: Phase) -> World {
    world.attempts.insert(
        uuid(1),
        Attempt {
            token: token(1),
            phase,
        },
    );
    world
}

fn with_orphan(mut world: World, since: u64) -> World {
    world.orphan_since.insert(uuid(1), at(since));
    world
}

fn with_job(mut world: World, job: Job) -> World {
    let listing = world.listing.take().unwrap();
    let jobs = listing.jobs().cloned().chain([job]).collect();
    world.listing = Some(JobListing::new(listing.began, jobs));
    world
}

fn blocked_since(mut world: World, since: u64) -> World {
    let waits = PendingSince {
        text: "somebody holds it".into(),
        blocked_since: Some(at(since)),
    };
    world.pending.insert(uuid(1), waits);
    world
}

fn much_later(mut world: World) -> World {
    world.now = at(9 + MAX_REQUEST_DELAY.as_secs());
    world
}

fn read_at(mut world: World, seconds: u64) -> World {
    for known in world.containers.values_mut() {
        known.seen = at(seconds);
    }
    world
}

fn ours() -> LockHolder {
    LockHolder::Ours(token(1))
}

fn planned(world: &World) -> Vec<Action> {
    plan(world, &POLICY).collect()
}

fn words(world: &World) -> Vec<String> {
    plan(world, &POLICY)
        .map(|action| match action {
            Action::Start { .. } => "start".into(),
            Action::RevokeOrphan { .. } => "end left-over token".into(),
            Action::CancelQueued { .. } => "cancel queued".into(),
            Action::Submit { .. } => "submit".into(),
            Action::StopJob { job, reason, .. } => format!("stop {} {reason:?}", job.0),
            Action::Unlock { reason, .. } => format!("unlock {reason:?}"),
            Action::Cancel { reason, .. } => format!("cancel {reason:?}"),
            Action::EndAttempt { .. } => "end attempt".into(),
        })
        .collect()
}
