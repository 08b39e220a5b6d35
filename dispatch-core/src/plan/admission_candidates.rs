//! The containers whose admission the scheduler is asked for, and those that it has not accepted
//! yet.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use crate::model::scheduling::Candidate;
use crate::model::world::{ObservedContainer, Phase, World};
use crate::plan::{Policy, start_order, workflow_runners};

/// The containers that may start as soon as there is room, in their order. Containers that
/// must wait for another reason are left out, so that they do not block others.
pub fn admission_candidates(world: &World, policy: &Policy) -> Vec<Candidate> {
    let queue = start_order::startable(world, policy, |_, _| true);
    let candidate = |(uuid, known)| candidate(world, uuid, known);
    queue.into_iter().map(candidate).collect()
}

/// The containers that are about to be submitted and that the scheduler has not accepted yet.
pub fn in_transit(world: &World) -> Vec<Candidate> {
    world
        .containers
        .iter()
        .filter(|(uuid, known)| {
            let phase = world.attempts.get(*uuid).map(|attempt| attempt.phase);
            let locked = known.state == ContainerState::Locked;
            matches!(phase, Some(Phase::Locked | Phase::Submitting))
                || (locked && matches!(phase, Some(Phase::LockUnknown(_))))
                || (known.state == ContainerState::Queued && world.in_flight.contains(*uuid))
        })
        .map(|(uuid, known)| candidate(world, uuid, known))
        .collect()
}

fn candidate(world: &World, uuid: &ContainerUuid, known: &ObservedContainer) -> Candidate {
    Candidate {
        container: uuid.clone(),
        needs: known.needs.clone(),
        was_locked: known.locks > 0,
        runners: workflow_runners::runners_of(world, known),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arvados_client::TokenUuid;

    use super::*;
    use crate::model::resources::{Admission, ResourceRequest};
    use crate::model::world::{Attempt, LockHolder, MonotonicTime};

    const POLICY: Policy = Policy {
        start_timeout: None,
        max_pending: 100,
        max_supervisors: 1,
        max_supervisor_ram: None,
        counts_running: false,
        may_start: true,
    };

    fn uuid(n: u32) -> ContainerUuid {
        ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
    }

    fn numbers(candidates: &[Candidate]) -> Vec<u32> {
        let number = |c: &Candidate| c.container.as_str()[12..].parse().unwrap();
        candidates.iter().map(number).collect()
    }

    #[test]
    fn who_is_asked_for() {
        let mut world = World {
            now: MonotonicTime(Duration::from_secs(10)),
            ..World::default()
        };
        for n in 1..=7u32 {
            let known = ObservedContainer {
                owner: None,
                requested_by: None,
                created_at: None,
                locks: 0,
                state: ContainerState::Queued,
                priority: if n == 3 { 0 } else { i64::from(n) },
                etag: String::new(),
                holder: LockHolder::Nobody,
                needs: ResourceRequest::default(),
                fit: Admission::Now,
                seen: MonotonicTime::default(),
                end: None,
            };
            world.containers.insert(uuid(n), known);
        }
        let attempt = |phase| Attempt {
            token: TokenUuid::generate("zzzzz"),
            phase,
        };
        world.in_flight.insert(uuid(4));
        world.attempts.insert(uuid(5), attempt(Phase::Locked));
        world
            .attempts
            .insert(uuid(6), attempt(Phase::Submitted(MonotonicTime::default())));
        world
            .retry_at
            .insert(uuid(7), MonotonicTime(Duration::from_secs(11)));
        assert_eq!(numbers(&admission_candidates(&world, &POLICY)), [2, 1]);
        assert_eq!(numbers(&in_transit(&world)), [4, 5]);
        world.now = MonotonicTime(Duration::from_secs(11));
        assert_eq!(numbers(&admission_candidates(&world, &POLICY)), [7, 2, 1]);
    }
}
