//! The users of the node that the users of a container are, if its users are not the node's. Pure.
//!
//! Users 0 to 65535 of a container become one of 2,245 ranges, chosen at random. They lie above
//! what sssd and systemd give to people, services and containers, and below systemd's range of
//! foreign images (systemd.io, "Users, Groups, UIDs and GIDs on systemd systems"). Higher users,
//! which are mostly owners of files in an image, become one range for all containers, above what is
//! a user anywhere.

/// Size of a container's range, and of the map of users that every Linux has.
const SIZE: u32 = 1 << 16;
/// The first range: above 2,000,200,000, the last user of sssd's default.
const FIRST: u32 = 30_521 * SIZE;
/// Where the range of all containers begins, less `SIZE`.
const SHARED: u32 = 1 << 31;
/// Where systemd's foreign images begin (FOREIGN_UID_BASE).
const END: u32 = 0x7FFE_0000;
const RANGES: u32 = (END - FIRST) / SIZE;

/// How users and groups of a container are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdMap {
    root: u32,
}

/// A range of the map: `size` users from `inside` on become those from `outside` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub inside: u32,
    pub outside: u32,
    pub size: u32,
}

impl IdMap {
    /// One of all maps, by a random number.
    pub fn choose(random: u32) -> Self {
        Self {
            root: FIRST + random % RANGES * SIZE,
        }
    }

    /// The user of the node that is the container's root.
    pub fn root(self) -> u32 {
        self.root
    }

    pub fn ranges(self) -> [Range; 2] {
        [
            Range {
                inside: 0,
                outside: self.root,
                size: SIZE,
            },
            Range {
                inside: SIZE,
                outside: SHARED + SIZE,
                // The last number means "no user".
                size: u32::MAX - SHARED - SIZE,
            },
        ]
    }

    /// The user of the node that user `id` of the container is.
    pub fn outside(self, id: u32) -> Option<u32> {
        let holds = |range: &Range| (range.inside..range.inside + range.size).contains(&id);
        let range = self.ranges().into_iter().find(holds)?;
        Some(range.outside + (id - range.inside))
    }

    /// Text for uid_map and gid_map (user_namespaces(7)).
    pub fn text(self) -> String {
        let line = |r: Range| format!("{} {} {}\n", r.inside, r.outside, r.size);
        self.ranges().map(line).concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn users_of_containers_are_nobody_else_on_the_node() {
        for (random, root) in [
            (0, 2_000_224_256),
            (1, 2_000_289_792),
            (RANGES - 1, 2_147_287_040),
            (RANGES, 2_000_224_256),
        ] {
            let map = IdMap::choose(random);
            assert_eq!(map.root(), root, "{random}");
            for (id, expected) in [
                (0, Some(root)),
                (1000, Some(root + 1000)),
                (65_535, Some(root + 65_535)),
                (65_536, Some(SHARED + 65_536)),
                (1_234_567, Some(SHARED + 1_234_567)),
                (SHARED - 2, Some(u32::MAX - 1)),
                (SHARED - 1, None),
                (u32::MAX, None),
            ] {
                assert_eq!(map.outside(id), expected, "{random} {id}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_two_users_become_one(random in any::<u32>(), one in any::<u32>(), two in any::<u32>()) {
            let map = IdMap::choose(random);
            if let (Some(first), Some(second)) = (map.outside(one), map.outside(two)) {
                prop_assert_eq!(one == two, first == second);
                let is_private = (FIRST..END).contains(&first);
                prop_assert!(is_private || (SHARED + SIZE..u32::MAX).contains(&first));
            }
        }
    }
}
