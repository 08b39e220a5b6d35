//! Time that a job gets in addition to the run time limit of its container, to fetch inputs and
//! save results.
//!
//! Input: the admin's setting and the request of a container. Output: seconds. A scheduler starts
//! short jobs in gaps (backfill) and before maintenance, so a short job must not ask for an hour.

use std::str::FromStr;
use std::time::Duration;

use units::{DurationRange, UnitError};

use crate::model::resources::ResourceRequest;

/// Longest time that [`StagingAllowance::Auto`] adds.
const LONGEST: u64 = 3600;
/// What [`StagingAllowance::Auto`] adds to each job.
const SHORTEST: u64 = 300;
/// What [`StagingAllowance::Auto`] adds for each GiB of disk.
const SECONDS_PER_GIB: u64 = 30;

/// The range of a time that the admin sets.
const RANGE: DurationRange =
    DurationRange::new(Duration::ZERO, Duration::from_secs(30 * 24 * 3600));

/// How much time a job gets in addition to the run time limit of its container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StagingAllowance {
    /// Five minutes, the run time limit once more, and half a minute for each GiB of disk, but at
    /// most an hour. A container with a failed attempt gets the hour: that attempt may have been
    /// too short.
    #[default]
    Auto,
    /// The same for every container.
    Fixed(Duration),
}

impl StagingAllowance {
    /// Seconds to add for this container.
    pub fn seconds(self, needs: &ResourceRequest) -> u64 {
        let limit = needs.max_run_time.unwrap_or(0);
        match self {
            Self::Fixed(time) => time.as_secs(),
            Self::Auto if needs.tried_before => LONGEST,
            Self::Auto => (needs.disk().div_ceil(1 << 30))
                .saturating_mul(SECONDS_PER_GIB)
                .saturating_add(limit)
                .saturating_add(SHORTEST)
                .min(LONGEST),
        }
    }
}

impl FromStr for StagingAllowance {
    type Err = UnitError;

    /// Parses `auto` or a time from 0 to 30 days.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text {
            "auto" => Ok(Self::Auto),
            time => RANGE.parser()(time).map(Self::Fixed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_job_asks_for_less_than_an_hour() {
        const GIB: u64 = 1 << 30;
        for (setting, limit, disk, tried_before, expected) in [
            ("auto", 300, 0, false, 600),
            ("auto", 300, GIB + 1, false, 660),
            ("auto", 1800, 0, false, 2100),
            ("auto", 300, 100 * GIB, false, 3600),
            ("auto", u64::MAX, u64::MAX, false, 3600),
            ("auto", 300, 0, true, 3600),
            ("0", 300, GIB, true, 0),
            ("2h", 300, 0, false, 7200),
        ] {
            let needs = ResourceRequest {
                max_run_time: Some(limit),
                scratch: disk,
                tried_before,
                ..ResourceRequest::default()
            };
            let setting: StagingAllowance = setting.parse().unwrap();
            assert_eq!(setting.seconds(&needs), expected, "{setting:?} {needs:?}");
        }
        for wrong in ["", "Auto", "-1s", "31d", "an hour"] {
            assert!(wrong.parse::<StagingAllowance>().is_err(), "{wrong}");
        }
    }
}
