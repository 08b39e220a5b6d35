//! Who is to be admitted: which containers the scheduler is asked about, and how deep into the queue to look for them.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use crate::needs::Fit;
use crate::plan::{self, Policy};
use crate::scheduler::Candidate;
use crate::world::{Known, Phase, World};

/// Most steps of the queue in one look.
const DEEPEST: u64 = 64;

/// The containers that may start as soon as there is room, highest priority first. What may not start yet for
/// another reason is left out: it must not stand in the way of others.
pub fn waiting(world: &World, policy: &Policy) -> Vec<Candidate> {
    let queue = plan::queue(world, policy, |_, _| true);
    queue.into_iter().map(candidate).collect()
}

/// The containers that are on their way to the scheduler, which does not know them yet.
pub fn on_the_way(world: &World) -> Vec<Candidate> {
    world
        .containers
        .iter()
        .filter(|(uuid, known)| {
            let phase = world.attempts.get(*uuid).map(|attempt| attempt.phase);
            let locked = known.state == ContainerState::Locked;
            matches!(phase, Some(Phase::Locked | Phase::Submitting))
                || (locked && matches!(phase, Some(Phase::Unclear(_))))
                || (known.state == ContainerState::Queued && world.in_flight.contains(*uuid))
        })
        .map(candidate)
        .collect()
}

fn candidate((uuid, known): (&ContainerUuid, &Known)) -> Candidate {
    Candidate {
        container: uuid.clone(),
        needs: known.needs.clone(),
    }
}

/// How many steps of the queue the next look takes: more while all that was seen can never run here, for it must not
/// hide what is behind it.
pub fn steps(now: u64, more_queued: bool, fits: &[Fit]) -> u64 {
    let hopeless = fits.iter().all(|fit| matches!(fit, Fit::Never(_)));
    match (hopeless, more_queued) {
        (true, true) => (now * 2).min(DEEPEST),
        (true, false) => now,
        (false, _) => now.div_ceil(2),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arvados_client::TokenUuid;

    use super::*;
    use crate::needs::Needs;
    use crate::world::{Attempt, Holder, Moment};

    const POLICY: Policy = Policy {
        start_timeout: None,
        max_pending: 100,
        max_supervisors: 1,
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
            now: Moment(Duration::from_secs(10)),
            ..World::default()
        };
        for n in 1..=7u32 {
            let known = Known {
                state: ContainerState::Queued,
                priority: if n == 3 { 0 } else { i64::from(n) },
                etag: String::new(),
                holder: Holder::Nobody,
                needs: Needs::default(),
                fit: Fit::Now,
                seen: Moment::default(),
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
            .insert(uuid(6), attempt(Phase::Submitted(Moment::default())));
        world
            .retry_at
            .insert(uuid(7), Moment(Duration::from_secs(11)));
        assert_eq!(numbers(&waiting(&world, &POLICY)), [2, 1]);
        assert_eq!(numbers(&on_the_way(&world)), [4, 5]);
        world.now = Moment(Duration::from_secs(11));
        assert_eq!(numbers(&waiting(&world, &POLICY)), [7, 2, 1]);
    }

    #[test]
    fn a_hopeless_head_does_not_hide_the_rest() {
        let never = Fit::Never(String::new());
        let rows = [
            (1, true, vec![never.clone()], 2),
            (64, true, vec![never.clone()], 64),
            (4, false, vec![never.clone()], 4),
            (4, true, vec![never, Fit::Now], 2),
            (1, false, vec![Fit::Now], 1),
        ];
        for (now, more, fits, expected) in rows {
            assert_eq!(steps(now, more, &fits), expected, "{now} {more} {fits:?}");
        }
    }
}
