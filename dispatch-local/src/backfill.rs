//! EASY backfill: which waiting containers may start without delaying the first one that waits.
//! Pure.
//!
//! Containers start in the order in which they get a place. The first container that does not fit
//! is the *head*. Its start is known if enough running jobs have a run time limit. A container
//! behind it starts earlier only if
//!
//! - it takes nothing that the head is short of: even if no running job ever ended, the head would
//!   have enough of each resource that the container takes; or
//! - its own limit ends it before the head's start; or
//! - the resources that it takes are still free at the head's start, beside the head.
//!
//! A container that needs more scratch space than the disk would have free without the jobs waits
//! for somebody to make room. It is no head: no end of a job lets it start.
//!
//! The step of a workflow that has no room beside the workflow's runner never starts, because the
//! runner does not end before.
//!
//! So the head's start, by the limits of running jobs, never moves later. A container without a
//! limit counts as one that never ends.

use arvados_client::ContainerUuid;
use dispatch_core::model::resources::Admission;

use crate::resources::{ResourceKind, ResourceVector};

/// Time to fetch inputs and save results, in seconds, added to a run time limit.
const STAGING_ALLOWANCE_SECONDS: u64 = 600;

/// A job that holds resources now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub load: ResourceVector,
    /// Latest end in seconds; none if it has no limit.
    pub ends: Option<u64>,
}

/// A container that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub container: ContainerUuid,
    /// The container's request, or why no machine can satisfy it.
    pub load: Result<ResourceVector, String>,
    /// Resources of the workflow runners that do not end before the container does.
    pub beside: ResourceVector,
    /// Run time limit in seconds.
    pub limit: Option<u64>,
}

impl Waiting {
    /// Whether it needs more than the machine has beside its runners of what does not change: GPUs
    /// may be found later.
    pub fn is_too_large(&self, largest: ResourceVector) -> bool {
        let is_constant = |kind| !matches!(kind, ResourceKind::Cuda | ResourceKind::Rocm);
        let load = self.load.as_ref();
        load.is_ok_and(|load| {
            let left = largest.minus(self.beside);
            load.short_of(&left).any(is_constant)
        })
    }
}

/// The latest end of a job that starts at `now` with this run time limit.
pub fn latest_end(now: u64, limit: Option<u64>) -> Option<u64> {
    limit.map(|limit| {
        now.saturating_add(limit)
            .saturating_add(STAGING_ALLOWANCE_SECONDS)
    })
}

/// The first container that waits for resources.
struct Head {
    container: ContainerUuid,
    load: ResourceVector,
    /// The container's latest start, and the resources that are free beside it then.
    start: Option<(u64, ResourceVector)>,
}

/// One answer for each of `waiting`, which is ordered by priority, highest first. `now` is on the
/// clock of `Running::ends`. `largest` is the capacity with all of the disk.
pub fn admit(
    capacity: ResourceVector,
    largest: ResourceVector,
    running: &[Running],
    waiting: &[Waiting],
    now: u64,
) -> Vec<Admission> {
    let mut running = running.to_vec();
    let mut head: Option<Head> = None;
    let mut answers = Vec::with_capacity(waiting.len());
    for next in waiting {
        let load = match &next.load {
            Ok(load) => *load,
            Err(why) => {
                answers.push(Admission::Never(why.clone()));
                continue;
            }
        };
        if !load.fits(&largest) {
            answers.push(Admission::Never(too_large(load, largest)));
            continue;
        }
        let beside = largest.minus(next.beside);
        if !load.fits(&beside) {
            answers.push(Admission::Never(too_large_beside(load, beside)));
            continue;
        }
        if !load.fits(&capacity) {
            answers.push(Admission::Later(needs_room(load, capacity)));
            continue;
        }
        let used = sum(&running);
        let free = capacity.minus(used);
        let ends = latest_end(now, next.limit);
        let fit = match &mut head {
            None if load.fits(&free) => Admission::Now,
            None => {
                head = Some(Head {
                    container: next.container.clone(),
                    load,
                    start: earliest_start(capacity, &running, load, now),
                });
                Admission::Later(shortage(load, free, capacity))
            }
            Some(_) if !load.fits(&free) => Admission::Later(shortage(load, free, capacity)),
            Some(head) => match keeps_head_start(head, capacity, used, load, ends) {
                true => Admission::Now,
                false => Admission::Later(format!(
                    "waits behind {}, which is next and needs the room",
                    head.container
                )),
            },
        };
        if fit == Admission::Now {
            running.push(Running { load, ends });
        }
        answers.push(fit);
    }
    answers
}

/// What these jobs hold together.
pub fn sum(running: &[Running]) -> ResourceVector {
    running.iter().map(|one| one.load).sum()
}

/// The latest time at which `load` fits, and the resources that are free beside it then.
fn earliest_start(
    capacity: ResourceVector,
    running: &[Running],
    load: ResourceVector,
    now: u64,
) -> Option<(u64, ResourceVector)> {
    let mut ends: Vec<u64> = running.iter().filter_map(|one| one.ends).collect();
    ends.sort_unstable();
    ends.into_iter().find_map(|end| {
        let still: Vec<Running> = running
            .iter()
            .filter(|one| one.ends.is_none_or(|at| at > end))
            .cloned()
            .collect();
        let free = capacity.minus(sum(&still));
        load.fits(&free).then(|| (end.max(now), free.minus(load)))
    })
}

/// Whether starting `load` now keeps the head's start. If so, takes `load` from the resources free
/// at that start.
fn keeps_head_start(
    head: &mut Head,
    capacity: ResourceVector,
    used: ResourceVector,
    load: ResourceVector,
    ends: Option<u64>,
) -> bool {
    let with_all = used.plus(head.load).plus(load);
    let touches_nothing_short = ResourceKind::ALL
        .into_iter()
        .all(|kind| load.get(kind) == 0 || with_all.get(kind) <= capacity.get(kind));
    let Some((start, spare)) = &mut head.start else {
        return touches_nothing_short;
    };
    if ends.is_some_and(|end| end <= *start) {
        return true;
    }
    let fits = load.fits(spare);
    if fits {
        *spare = spare.minus(load);
    }
    // Resources that are free even if no job ends are also free at the head's start.
    fits
}

/// What a container needs of a kind: of memory, with what crunch-run takes beside it.
fn describe(kind: ResourceKind, load: ResourceVector) -> String {
    let amount = kind.describe(load.get(kind));
    match kind {
        ResourceKind::Ram => format!("{amount} with crunch-run"),
        _ => amount,
    }
}

/// What `say` makes of each kind of which `load` needs more than there is, and of what it needs.
fn shortages(
    load: ResourceVector,
    there: ResourceVector,
    separator: &str,
    say: impl Fn(ResourceKind, String) -> String,
) -> String {
    let kinds = load.short_of(&there);
    let parts: Vec<String> = kinds.map(|kind| say(kind, describe(kind, load))).collect();
    parts.join(separator)
}

fn too_large(load: ResourceVector, capacity: ResourceVector) -> String {
    let parts = shortages(load, capacity, "; ", |kind, needed| {
        let whole = match kind {
            ResourceKind::Scratch => "the disk has",
            _ => "this machine has",
        };
        let has = kind.format_amount(capacity.get(kind));
        format!("{needed}, and {whole} {has}")
    });
    format!("it needs {parts}")
}

fn too_large_beside(load: ResourceVector, left: ResourceVector) -> String {
    let parts = shortages(load, left, "; ", |kind, needed| {
        let left = kind.format_amount(left.get(kind));
        format!("{needed}, and {left} is left")
    });
    format!(
        "the runner of its workflow waits for it and holds a part of this machine: it needs {parts} beside the runner"
    )
}

/// What is said of a container that the disk has no room for now.
fn needs_room(load: ResourceVector, capacity: ResourceVector) -> String {
    let kind = ResourceKind::Scratch;
    format!(
        "waits for room on the disk: it needs {}, and at most {} is free; remove files",
        describe(kind, load),
        kind.format_amount(capacity.get(kind))
    )
}

fn shortage(load: ResourceVector, free: ResourceVector, capacity: ResourceVector) -> String {
    let parts = shortages(load, free, " and ", |kind, needed| {
        let [free, all] = [free, capacity].map(|amounts| kind.format_amount(amounts.get(kind)));
        format!("{needed} ({free} of {all} free)")
    });
    format!("waits for {parts}")
}

#[cfg(test)]
mod tests;
