//! Which containers get a place among the pending jobs, and in which order: owners take turns.
//! Pure.
//!
//! Input: the observed containers and the [`Policy`]. Output: an order by turns, and how many of
//! each owner may start.
//!
//! `max_pending` limits the pending jobs of all owners. An owner who has fewer than an equal share
//! of them may go beyond, up to twice the limit in all, and everybody may have one job. So the
//! scheduler sees jobs of each owner, and can apply its own shares and limits to them, however many
//! jobs one owner has queued.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::Policy;
use crate::model::owner::Weight;
use crate::model::turns::{Owner, Taken, in_turns, turn};
use crate::model::world::{LockHolder, ObservedContainer, World};

/// A container with its record.
pub type Entry<'a> = (&'a ContainerUuid, &'a ObservedContainer);

/// What this dispatcher does with a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lock is being requested, or the job waits in the scheduler.
    Pending,
    /// The job waits, and cannot start by itself.
    Blocked,
    Running,
    /// Not started by this dispatcher, or ended.
    Other,
}

fn stage(world: &World, (uuid, known): Entry<'_>) -> Stage {
    let is_blocked = || {
        let pending = world.pending.get(uuid);
        pending.is_some_and(|pending| pending.blocked_since.is_some())
    };
    match (&known.state, &known.holder) {
        (ContainerState::Running, LockHolder::Ours(_)) => Stage::Running,
        (ContainerState::Locked, LockHolder::Ours(_)) if is_blocked() => Stage::Blocked,
        (ContainerState::Locked, LockHolder::Ours(_)) => Stage::Pending,
        (ContainerState::Queued, _) if world.in_flight.contains(uuid) => Stage::Pending,
        _ => Stage::Other,
    }
}

/// Puts containers in the order in which they get a place: those of an owner by priority, and
/// owners by turns. Who has fewer pending jobs comes first, then who has fewer running ones. Where
/// the scheduler does not queue jobs, running ones count as pending ones.
pub fn in_order<'a>(
    world: &'a World,
    policy: &Policy,
    mut queue: Vec<Entry<'a>>,
) -> Vec<Entry<'a>> {
    // The sort is stable, so containers of equal priority stay in the order of their uuids.
    queue.sort_by_key(|(_, known)| std::cmp::Reverse(known.priority));
    let mut taken: BTreeMap<Owner<'a>, Taken> = BTreeMap::new();
    for entry in &world.containers {
        let (pending, running) = match stage(world, entry) {
            Stage::Pending | Stage::Blocked => (1, 0),
            Stage::Running if policy.counts_running => (1, 0),
            Stage::Running => (0, 1),
            Stage::Other => continue,
        };
        let turn = turn(entry.1.weight());
        let taken = taken.entry(entry.1.user()).or_default();
        taken.turns += pending * turn;
        taken.tie += running * turn;
    }
    in_turns(queue, |(_, known)| (known.user(), known.weight()), &taken)
}

/// The pending jobs of one owner.
#[derive(Debug, Clone, Copy)]
struct Held {
    pending: usize,
    blocked: usize,
    weight: Weight,
}

/// Takes the containers of `queue` that may start now, in this order.
pub fn take<'a>(world: &'a World, policy: &Policy, queue: Vec<Entry<'a>>) -> Vec<Entry<'a>> {
    let mut owners: BTreeMap<Owner<'a>, Held> = BTreeMap::new();
    let waiting = queue.iter().map(|entry| (*entry, Stage::Other));
    let held = world
        .containers
        .iter()
        .map(|entry| (entry, stage(world, entry)));
    let held = held.filter(|(_, stage)| matches!(stage, Stage::Pending | Stage::Blocked));
    for ((_, known), stage) in held.chain(waiting) {
        let held = owners.entry(known.user()).or_insert(Held {
            pending: 0,
            blocked: 0,
            weight: known.weight(),
        });
        held.pending += usize::from(stage == Stage::Pending);
        held.blocked += usize::from(stage == Stage::Blocked);
    }
    let sum = |of: fn(&Held) -> usize| owners.values().map(of).sum::<usize>();
    let weights = sum(|held| held.weight.get().into()).max(1);
    let mut all = sum(|held| held.pending);
    let may_start = |entry: &Entry<'a>| {
        let Some(held) = owners.get_mut(&entry.1.user()) else {
            return false;
        };
        let of_owner = held.pending + held.blocked;
        // Jobs that cannot start take places of their owner only, and only beyond this number.
        let excess = held.blocked.saturating_sub(policy.max_pending);
        let share = policy.max_pending.saturating_mul(held.weight.get().into()) / weights;
        let may = all + excess < policy.max_pending
            || of_owner == 0
            || (of_owner < share && all < policy.max_pending.saturating_mul(2));
        held.pending += usize::from(may);
        all += usize::from(may);
        may
    };
    queue.into_iter().filter(may_start).collect()
}
