//! Which workflow runners may start. They hold resources while they wait for the containers that
//! they ask for, so that too many of them would leave nothing for these.
//!
//! A runner has a depth: 0 if a user asked for it, 1 if a runner of depth 0 did, and so on. Each
//! depth has its own limits, and one runner of each may always start. So the deepest runners wait
//! for no other runner, and when they end, those above them can go on.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::Policy;
use crate::model::world::{LockHolder, ObservedContainer, World};

/// Maximum depth of workflows that run workflows.
const MAX_DEPTH: usize = 20;

/// The runners of one depth that are submitted or run, or are about to be locked.
#[derive(Debug, Clone, Copy, Default)]
struct Begun {
    count: usize,
    /// Their memory in bytes.
    ram: u64,
}

impl Begun {
    fn with(self, known: &ObservedContainer) -> Self {
        Self {
            count: self.count + 1,
            ram: self.ram.saturating_add(known.needs.ram),
        }
    }
}

/// The places for workflow runners.
#[derive(Debug)]
pub struct RunnerPlaces<'a> {
    world: &'a World,
    policy: &'a Policy,
    begun: [Begun; MAX_DEPTH + 1],
}

impl<'a> RunnerPlaces<'a> {
    pub fn new(world: &'a World, policy: &'a Policy) -> Self {
        let mut begun = [Begun::default(); MAX_DEPTH + 1];
        for (uuid, known) in &world.containers {
            let has_begun = match known.holder {
                LockHolder::Ours(_) => true,
                // The lock is being requested.
                _ => known.state == ContainerState::Queued && world.in_flight.contains(uuid),
            };
            if known.needs.supervisor && has_begun {
                let of_depth = &mut begun[depth(world, known)];
                *of_depth = of_depth.with(known);
            }
        }
        Self {
            world,
            policy,
            begun,
        }
    }

    /// Whether a container may start. A runner takes a place, if there is one, unless it can never
    /// start.
    pub fn take(&mut self, known: &ObservedContainer) -> bool {
        if !known.needs.supervisor || known.fit.never().is_some() {
            return true;
        }
        let depth = depth(self.world, known);
        let begun = self.begun[depth];
        let next = begun.with(known);
        let is_few = depth > 0 || next.count <= self.policy.max_supervisors;
        // Half of the memory for users' runners, a quarter for those that they ask for, and so on.
        let most = self.policy.max_supervisor_ram.map(|ram| ram >> depth);
        let may = is_few && (begun.count == 0 || most.is_none_or(|most| next.ram <= most));
        if may {
            self.begun[depth] = next;
        }
        may
    }
}

/// The workflow runners that wait for a container and run here: the one that asked for it, the one
/// that asked for that one, and so on.
pub fn runners_of(world: &World, known: &ObservedContainer) -> Vec<ContainerUuid> {
    let held = |uuid: &ContainerUuid| {
        let known = world.containers.get(uuid)?;
        matches!(known.holder, LockHolder::Ours(_)).then_some(known)
    };
    let mut runners = Vec::new();
    let mut asked = known.requested_by.as_ref();
    while let Some(uuid) = asked
        && let Some(runner) = held(uuid)
        && runners.len() < MAX_DEPTH
    {
        runners.push(uuid.clone());
        asked = runner.requested_by.as_ref();
    }
    runners
}

/// How many workflows a runner is in. One that runs elsewhere counts, too.
fn depth(world: &World, known: &ObservedContainer) -> usize {
    let is_in_workflow = usize::from(known.requested_by.is_some());
    runners_of(world, known).len().max(is_in_workflow)
}
