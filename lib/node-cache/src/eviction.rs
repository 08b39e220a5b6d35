//! Limits of the cache's size.

use std::str::FromStr;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn what_stays_is_within_both_limits_and_no_more_goes(
            size in 0u64..1000, free in 0u64..1000, most in 0u64..1000, least in 0u64..1000,
        ) {
            let limits = Limits {
                size: SizeOrPercent::Bytes(most),
                free: SizeOrPercent::Bytes(least),
            };
            let excess = limits.excess(size, Space { total: 2000, free });
            let fits = |gone: u64| size - gone <= most && free + gone >= least;
            prop_assert!(excess == size || (excess < size && fits(excess)));
            prop_assert!(excess == 0 || !fits(excess - 1), "one too many");
        }
    }
}
