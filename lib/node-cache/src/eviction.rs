//! Limits of the cache's size, and the choice of entries to remove.

use std::str::FromStr;
use std::time::SystemTime;

use bytesize::ByteSize;

/// A number of bytes, or a percentage of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeOrPercent {
    /// Bytes.
    Bytes(u64),
    /// Percentage of the file system that the cache is on.
    Percent(u8),
}

impl SizeOrPercent {
    /// In bytes, on a file system of `total` bytes.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total / 100 * u64::from(percent),
        }
    }
}

impl FromStr for SizeOrPercent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = || format!("{text:?} is neither a size like 50GiB nor a share like 20%");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: u8 = percent.trim().parse().map_err(|_| hint())?;
            return match percent {
                0..=100 => Ok(Self::Percent(percent)),
                _ => Err(hint()),
            };
        }
        units::parse_size(text)
            .map(Self::Bytes)
            .map_err(|error| format!("{error}, or a share of the file system like 20%"))
    }
}

impl std::fmt::Display for SizeOrPercent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => ByteSize(*bytes).fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Limits of the cache's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the cache.
    pub size: SizeOrPercent,
    /// Minimum free space of its file system.
    pub free: SizeOrPercent,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            size: SizeOrPercent::Percent(20),
            free: SizeOrPercent::Percent(10),
        }
    }
}

/// Size of a file system in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    /// Free for this user.
    pub free: u64,
}

impl Limits {
    /// Number of bytes to remove from a cache of `size` bytes.
    pub fn excess(&self, size: u64, space: Space) -> u64 {
        let too_large = size.saturating_sub(self.size.of(space.total));
        let too_full = self.free.of(space.total).saturating_sub(space.free);
        too_large.max(too_full).min(size)
    }

    /// Whether an entry of `size` bytes may be added, after `added` bytes, without evicting others.
    pub fn has_room(&self, size: u64, added: u64, space: Space) -> bool {
        self.free.of(space.total).saturating_add(size) <= space.free
            && size.saturating_add(added) <= self.size.of(space.total)
    }
}

/// Least recently used entries that free `excess` bytes, as indices of `entries`. An entry is its
/// size and time of last use.
pub fn lru_victims(entries: &[(u64, SystemTime)], excess: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|block_path| entries[*block_path].1);
    let mut freed = 0;
    order
        .into_iter()
        .take_while(|block_path| {
            let goes = freed < excess;
            freed += entries[*block_path].0;
            goes
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_share_is_an_amount_or_a_part() {
        for (text, share) in [
            ("50GiB", SizeOrPercent::Bytes(50 * GIB)),
            ("50G", SizeOrPercent::Bytes(50 * GIB)),
            ("0", SizeOrPercent::Bytes(0)),
            ("20%", SizeOrPercent::Percent(20)),
            ("100 %", SizeOrPercent::Percent(100)),
        ] {
            assert_eq!(text.parse(), Ok(share), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "many", "50", "5 apples"] {
            let error = text.parse::<SizeOrPercent>().unwrap_err();
            assert!(error.contains("20%"), "{text}: {error}");
        }
    }

    #[test]
    fn both_limits_count_and_only_the_cache_can_give() {
        let limits = Limits {
            size: SizeOrPercent::Bytes(20),
            free: SizeOrPercent::Percent(10),
        };
        let space = |free| Space { total: 1000, free };
        for (size, free, excess) in [
            (20, 500, 0),
            (25, 500, 5),
            (20, 95, 5),
            (25, 93, 7),
            (25, 99, 5),
            (3, 0, 3),
            (0, 0, 0),
        ] {
            assert_eq!(limits.excess(size, space(free)), excess, "{size} {free}");
        }
        assert!(limits.has_room(20, 0, space(120)));
        assert!(!limits.has_room(20, 0, space(119)));
        assert!(!limits.has_room(21, 0, space(900)));
        assert!(limits.has_room(10, 10, space(900)));
        assert!(!limits.has_room(10, 11, space(900)));
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let entries = [(10, at(30)), (5, at(10)), (7, at(20))];
        for (excess, gone) in [
            (0, vec![]),
            (1, vec![1]),
            (5, vec![1]),
            (6, vec![1, 2]),
            (13, vec![1, 2, 0]),
            (99, vec![1, 2, 0]),
        ] {
            assert_eq!(lru_victims(&entries, excess), gone, "{excess}");
        }
    }

    proptest! {
        #[test]
        fn enough_goes_and_nothing_used_later_than_what_stays(
            entries in prop::collection::vec((0u64..100, 0u64..50), 0..20),
            excess in 0u64..500,
        ) {
            let entries: Vec<_> = entries.into_iter()
                .map(|(size, s)| (size, SystemTime::UNIX_EPOCH + Duration::from_secs(s)))
                .collect();
            let gone = lru_victims(&entries, excess);
            let freed: u64 = gone.iter().map(|n| entries[*n].0).sum();
            let all: u64 = entries.iter().map(|(size, _)| size).sum();
            prop_assert!(freed >= excess.min(all));
            if let Some(last) = gone.last() {
                prop_assert!(freed - entries[*last].0 < excess, "one too many");
                let read_local = (0..entries.len()).filter(|n| !gone.contains(n));
                prop_assert!(read_local.into_iter().all(|n| entries[n].1 >= entries[*last].1));
            }
        }
    }
}
