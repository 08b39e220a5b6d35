//! Whose turn it is when several dispatchers of one machine wait for the same resources: that of
//! the one whose first job has waited longest. Pure.
//!
//! Input: what the others want, since when, and what is left of the machine. Output: the resources
//! that are left to them, and what this dispatcher says that it wants.

use arvados_client::ContainerUuid;

use crate::machine_claims::Want;
use crate::resources::{ResourceKind, ResourceVector};

/// The first job that waits, and since when: milliseconds since the machine was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub container: ContainerUuid,
    pub since: u64,
}

/// The resources that are left to others, whose jobs have waited longer than ours. `left` is what
/// is left of the machine beside the jobs of others: a want that does not fit there waits for a
/// third one, and gets nothing by our waiting.
pub fn left_to_others(
    wants: &[Want],
    head: Option<&Head>,
    left: ResourceVector,
    now: u64,
) -> ResourceVector {
    let ours = head.map_or(now, |head| head.since);
    wants
        .iter()
        .filter(|want| want.since < ours)
        .map(load_of)
        .filter(|load| load.fits(&left))
        .sum()
}

/// What is said to others: the load of the first job that waits, if it would start without them.
pub fn want(
    head: &Head,
    load: ResourceVector,
    free_without_others: ResourceVector,
) -> Option<Want> {
    let of = |kind| load.get(kind);
    load.fits(&free_without_others).then(|| Want {
        cpus: of(ResourceKind::Cpus),
        ram: of(ResourceKind::Ram),
        cuda: of(ResourceKind::Cuda),
        rocm: of(ResourceKind::Rocm),
        since: head.since,
    })
}

fn load_of(want: &Want) -> ResourceVector {
    ResourceVector::new(want.cpus, want.ram, 0, want.cuda, want.rocm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(cpus: u64) -> ResourceVector {
        ResourceVector::new(cpus, 0, 0, 0, 0)
    }

    fn wanted(cpus: u64, since: u64) -> Want {
        Want {
            cpus,
            ram: 0,
            cuda: 0,
            rocm: 0,
            since,
        }
    }

    #[test]
    fn who_waits_longest_is_next() {
        let head = |since| Head {
            container: ContainerUuid::generate("zzzzz"),
            since,
        };
        // what others want, since when our first job waits, what is left to others of 4 CPUs
        for (wants, ours, left) in [
            (vec![], None, 0),
            (vec![wanted(1, 5)], None, 1),
            (vec![wanted(1, 5)], Some(9), 1),
            (vec![wanted(1, 5)], Some(5), 0),
            (vec![wanted(1, 5)], Some(3), 0),
            (vec![wanted(1, 5), wanted(2, 8), wanted(1, 12)], Some(9), 3),
            // It waits for a third one.
            (vec![wanted(5, 5)], None, 0),
        ] {
            let ours = ours.map(head);
            let found = left_to_others(&wants, ours.as_ref(), cpus(4), 100);
            assert_eq!(found, cpus(left), "{wants:?} {ours:?}");
        }
    }

    #[test]
    fn a_job_that_waits_for_our_own_wants_nothing_of_others() {
        let head = Head {
            container: ContainerUuid::generate("zzzzz"),
            since: 7,
        };
        assert_eq!(want(&head, cpus(2), cpus(2)), Some(wanted(2, 7)));
        assert_eq!(want(&head, cpus(2), cpus(1)), None);
    }
}
