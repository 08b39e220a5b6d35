//! Which waiting containers may start: highest priority first, with backfill that cannot delay the first that waits.
//!
//! The first container that does not fit is the *head*. Its start is known when enough of what runs has a run time
//! limit. A container behind it starts before it only if
//!
//! - it takes nothing the head is short of: of every kind it takes, the head would still have enough if nothing that
//!   runs now ever ended; or
//! - its own limit ends it before the head's start; or
//! - what it takes is still spare at the head's start, beside the head.
//!
//! So the head's start, by the limits of what runs, never becomes later. A container without a limit counts as one
//! that never ends.

use arvados_client::ContainerUuid;
use dispatch_core::needs::Fit;

use crate::load::{Kind, Load};

/// Seconds added to a run time limit for fetching inputs and saving results.
const ALLOWANCE: u64 = 600;

/// Something that takes room now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// What it takes.
    pub load: Load,
    /// When it ends at the latest, in seconds; none: nobody knows.
    pub ends: Option<u64>,
}

/// Something that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Which container.
    pub container: ContainerUuid,
    /// What it takes, or why no machine can give it.
    pub load: Result<Load, String>,
    /// Its run time limit, in seconds.
    pub limit: Option<u64>,
}

/// The latest end of something that starts at `now` with this run time limit.
pub fn latest_end(now: u64, limit: Option<u64>) -> Option<u64> {
    limit.map(|limit| now.saturating_add(limit).saturating_add(ALLOWANCE))
}

/// The first that waits for room.
struct Head {
    container: ContainerUuid,
    load: Load,
    /// When, at the latest, and what is spare beside it then.
    start: Option<(u64, Load)>,
}

/// One answer for each of `waiting`, which comes highest priority first. `now` is in the seconds of `Running::ends`.
pub fn admit(capacity: Load, running: &[Running], waiting: &[Waiting], now: u64) -> Vec<Fit> {
    let mut running = running.to_vec();
    let mut head: Option<Head> = None;
    let mut answers = Vec::with_capacity(waiting.len());
    for next in waiting {
        let load = match &next.load {
            Ok(load) => *load,
            Err(why) => {
                answers.push(Fit::Never(why.clone()));
                continue;
            }
        };
        if !load.fits(&capacity) {
            answers.push(Fit::Never(too_large(load, capacity)));
            continue;
        }
        let used = sum(&running);
        let free = capacity.minus(used);
        let ends = latest_end(now, next.limit);
        let fit = match &mut head {
            None if load.fits(&free) => Fit::Now,
            None => {
                head = Some(Head {
                    container: next.container.clone(),
                    load,
                    start: start_of(capacity, &running, load, now),
                });
                Fit::Later(short(load, free, capacity))
            }
            Some(_) if !load.fits(&free) => Fit::Later(short(load, free, capacity)),
            Some(head) => match is_harmless(head, capacity, used, load, ends) {
                true => Fit::Now,
                false => Fit::Later(format!(
                    "waits behind {}, which is next and needs the room",
                    head.container
                )),
            },
        };
        if fit == Fit::Now {
            running.push(Running { load, ends });
        }
        answers.push(fit);
    }
    answers
}

fn sum(running: &[Running]) -> Load {
    running
        .iter()
        .fold(Load::default(), |sum, one| sum.plus(one.load))
}

/// When `load` fits at the latest, and what is spare beside it then.
fn start_of(capacity: Load, running: &[Running], load: Load, now: u64) -> Option<(u64, Load)> {
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

/// Whether starting `load` now leaves the head's start where it is. Takes what it uses of the head's spare room.
fn is_harmless(head: &mut Head, capacity: Load, used: Load, load: Load, ends: Option<u64>) -> bool {
    let with_all = used.plus(head.load).plus(load);
    let touches_nothing_short = Kind::ALL
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
    // What is not short even if nothing ends is spare at the head's start too.
    fits
}

fn too_large(load: Load, capacity: Load) -> String {
    let parts: Vec<String> = load
        .short_of(&capacity)
        .map(|kind| {
            format!(
                "{}, and this machine has {}",
                kind.words(load.get(kind)),
                kind.figure(capacity.get(kind))
            )
        })
        .collect();
    format!("it needs {}", parts.join("; "))
}

fn short(load: Load, free: Load, capacity: Load) -> String {
    let parts: Vec<String> = load
        .short_of(&free)
        .map(|kind| {
            format!(
                "{} ({} of {} free)",
                kind.words(load.get(kind)),
                kind.figure(free.get(kind)),
                kind.figure(capacity.get(kind))
            )
        })
        .collect();
    format!("waits for {}", parts.join(" and "))
}

#[cfg(test)]
mod tests;
