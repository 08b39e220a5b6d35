//! Puts containers in an order in which their owners take turns. Pure.
//!
//! Input: containers in the order of their owners, and what each owner has already. Output: their
//! order. An owner with fewer places comes first, in proportion to the weights. So the length of
//! one owner's queue delays no other.

use std::collections::BTreeMap;

use arvados_client::UserUuid;

use crate::model::owner::Weight;

/// Distance of two containers of an owner with weight 1.
pub const TURN: u64 = 1 << 16;

/// Who takes turns. Containers without a known user count as those of one.
pub type Owner<'a> = Option<&'a UserUuid>;

/// What an owner has, in turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    /// Turns that count.
    pub turns: u64,
    /// What decides between owners with equal turns.
    pub tie: u64,
}

/// The part of a turn that a container of this weight takes.
pub fn turn(weight: Weight) -> u64 {
    TURN / u64::from(weight.get())
}

/// Puts `items`, each with its owner and weight, in turns. Those of one owner keep their order.
pub fn in_turns<'a, T>(
    items: Vec<T>,
    owner: impl Fn(&T) -> (Owner<'a>, Weight),
    taken: &BTreeMap<Owner<'a>, Taken>,
) -> Vec<T> {
    let mut next: BTreeMap<Owner<'a>, Taken> = taken.clone();
    let placed = items.into_iter().map(|item| {
        let (owner, weight) = owner(&item);
        let taken = next.entry(owner).or_default();
        taken.turns += turn(weight);
        (*taken, item)
    });
    let mut placed: Vec<(Taken, T)> = placed.collect();
    placed.sort_by_key(|(taken, _)| *taken);
    placed.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(n: usize) -> UserUuid {
        UserUuid::parse(&format!("zzzzz-tpzed-{n:015}")).unwrap()
    }

    fn ordered(owners: &[usize], taken: &[(usize, u64, u64)], weights: [u16; 3]) -> Vec<usize> {
        let users: Vec<UserUuid> = (0..3).map(user).collect();
        let taken = taken.iter().map(|(owner, turns, tie)| {
            let taken = Taken {
                turns: turns * TURN,
                tie: tie * TURN,
            };
            (Some(&users[*owner]), taken)
        });
        let weight = |owner: usize| Weight::new(weights[owner]).unwrap();
        let of = |owner: &usize| (Some(&users[*owner]), weight(*owner));
        in_turns(owners.to_vec(), of, &taken.collect())
    }

    #[test]
    fn who_has_least_comes_first() {
        #[rustfmt::skip]
        type Case = (&'static [usize], &'static [(usize, u64, u64)], [u16; 3], &'static [usize]);
        #[rustfmt::skip]
        let rows: [Case; 6] = [
            (&[], &[], [1, 1, 1], &[]),
            (&[0, 0, 0, 1, 1], &[], [1, 1, 1], &[0, 1, 0, 1, 0]),
            (&[0, 0, 0, 1, 1], &[(0, 2, 0)], [1, 1, 1], &[1, 1, 0, 0, 0]),
            // Equal turns: who runs less.
            (&[0, 0, 1, 2], &[(0, 0, 8), (1, 0, 2), (2, 0, 3)], [1, 1, 1], &[1, 2, 0, 0]),
            (&[0, 0, 0, 0, 0, 0, 1, 1], &[], [3, 1, 1], &[0, 0, 0, 1, 0, 0, 0, 1]),
            // What the one has counts by weight.
            (&[0, 1], &[(0, 2, 0), (1, 1, 0)], [4, 1, 1], &[1, 0]),
        ];
        for (owners, taken, weights, expected) in rows {
            let ordered = ordered(owners, taken, weights);
            if weights[0] == 3 {
                let first: usize = ordered[..4].iter().filter(|owner| **owner == 0).count();
                assert_eq!((first, ordered.len()), (3, 8), "{ordered:?}");
            } else {
                assert_eq!(ordered, expected, "{owners:?} {taken:?}");
            }
        }
    }

    proptest! {
        /// However much one owner has queued, another's first is among the first three.
        #[test]
        fn nobody_waits_for_the_queue_of_another(mine in 0_usize..300, other in 0_usize..300) {
            let mut owners = vec![0; mine];
            owners.extend(vec![2; other]);
            owners.push(1);
            let ordered = ordered(&owners, &[], [1, 1, 1]);
            prop_assert_eq!(ordered.len(), mine + other + 1);
            prop_assert!(ordered.iter().position(|owner| *owner == 1) < Some(3));
        }
    }
}
