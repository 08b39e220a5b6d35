//! The time limits of the partitions where a job may run. Pure.
//!
//! Input: the time that a container asks for, and the limits. Output: the time limit of its job,
//! and when Slurm warns it of the end.

/// Time limits in minutes; none means unlimited, or not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionTimes {
    /// The longest limit.
    pub longest: Option<u64>,
    /// The shortest limit of a job that asks for none.
    pub shortest: Option<u64>,
}

/// The part of a job's time, as a divisor, that lies after the warning at most.
const MAX_WARNING_PART: u64 = 4;

impl PartitionTimes {
    /// The limits of these partitions; none of a partition means unlimited.
    pub fn of(limits: &[Option<u64>]) -> Self {
        let known = || limits.iter().flatten().copied();
        let is_unlimited = limits.contains(&None);
        Self {
            longest: known().max().filter(|_| !is_unlimited),
            shortest: known().min(),
        }
    }

    /// The same, where jobs that ask for no time get only this many minutes.
    pub fn with_default(self, minutes: Option<u64>) -> Self {
        let shortest = [self.shortest, minutes].into_iter().flatten().min();
        Self { shortest, ..self }
    }

    /// The time limit of a job in minutes: `needed` of the container and `more` for its files, as
    /// far as a partition gives them.
    pub fn job_minutes(self, needed: u64, more: u64) -> u64 {
        let longest = self.longest.unwrap_or(u64::MAX);
        needed.saturating_add(more).min(longest.max(needed))
    }

    /// Seconds before its end at which a job is warned. `wanted` is the admin's setting, and
    /// `minutes` the time limit of the job; without one, the partition's applies.
    pub fn warning_seconds(self, wanted: u64, minutes: Option<u64>) -> u64 {
        let minutes = minutes.or(self.shortest).unwrap_or(u64::MAX);
        wanted.min(minutes.saturating_mul(60) / MAX_WARNING_PART)
    }
}

/// The partitions that these arguments of sbatch name for every container.
pub fn fixed_partitions(arguments: &[String]) -> Vec<String> {
    let value = |argument: &String| {
        let value = match argument.strip_prefix("--partition=") {
            Some(value) => value,
            None => argument.strip_prefix("-p")?,
        };
        (!value.is_empty() && !value.contains('%')).then(|| value.to_owned())
    };
    let last = arguments.iter().filter_map(value).next_back();
    let names = last.iter().flat_map(|names| names.split(','));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_no_more_time_than_its_partition_gives() {
        // limits, minutes of the container, minutes of the job, seconds of the warning
        let day = Some(1440);
        for (limits, needed, job, warning) in [
            (&[None][..], 1440, 1500, 120),
            (&[], 1440, 1500, 120),
            (&[day], 1440, 1440, 120),
            (&[day], 1400, 1440, 120),
            (&[day], 1000, 1060, 120),
            (&[day, None], 1440, 1500, 120),
            (&[day, Some(30)], 10, 70, 120),
            (&[Some(30)], 1, 30, 120),
            (&[Some(4)], 1, 4, 60),
            // It does not fit, and Slurm says so.
            (&[Some(30)], 31, 31, 120),
        ] {
            let times = PartitionTimes::of(limits);
            let minutes = times.job_minutes(needed, 60);
            assert_eq!(minutes, job, "{limits:?} {needed}");
            let seconds = times.warning_seconds(120, Some(minutes));
            assert_eq!(seconds, warning, "{limits:?} {needed}");
        }
        let times = PartitionTimes::of(&[Some(2), day]);
        assert_eq!(times.warning_seconds(120, None), 30);
        assert_eq!(times.warning_seconds(0, None), 0);
        let times = PartitionTimes::of(&[day]).with_default(Some(2));
        assert_eq!(times.warning_seconds(120, None), 30);
        assert_eq!(times.warning_seconds(120, Some(60)), 120);
        assert_eq!(times.longest, day);
        assert_eq!(PartitionTimes::of(&[day]).with_default(None).shortest, day);
        assert_eq!(PartitionTimes::default().warning_seconds(120, None), 120);
    }

    #[test]
    fn the_admins_partition_is_the_last_one() {
        let named = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            fixed_partitions(&arguments)
        };
        assert_eq!(named(&["--partition=%P", "--mem=%M"]), Vec::<String>::new());
        assert_eq!(named(&["-pa", "--partition=b,c"]), ["b", "c"]);
        assert_eq!(named(&["-pgpu"]), ["gpu"]);
    }
}
