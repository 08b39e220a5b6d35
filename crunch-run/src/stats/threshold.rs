//! When memory use has passed a share of what was asked for, it is said once per share.

/// Percentages of the memory limit that are worth a line in the log.
#[derive(Debug, Clone)]
pub struct MemoryThresholds {
    limit: u64,
    /// Ascending; those that were passed are gone.
    left: Vec<u64>,
}

impl MemoryThresholds {
    /// `limit` in bytes; 0 means there is none and nothing is ever said.
    pub fn new(limit: u64, percentages: &[u64]) -> Self {
        let mut left = if limit == 0 {
            Vec::new()
        } else {
            percentages.to_vec()
        };
        left.sort_unstable();
        Self { limit, left }
    }

    /// The line to log for this use, if a further threshold was passed. Several passed at once
    /// make one line, with the highest.
    pub fn passed(&mut self, rss: u64) -> Option<String> {
        let used = u128::from(rss) * 100;
        let count = self
            .left
            .partition_point(|p| used > u128::from(self.limit) * u128::from(*p));
        let percentage = self.left.drain(..count).next_back()?;
        Some(format!(
            "Container using over {percentage}% of memory (rss {rss}/{} bytes)",
            self.limit
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_threshold_is_said_once() {
        let mut thresholds = MemoryThresholds::new(1000, &[99, 90, 95]);
        let cases = [
            (900, None),
            (
                901,
                Some("Container using over 90% of memory (rss 901/1000 bytes)"),
            ),
            (902, None),
            (800, None),
            (
                995,
                Some("Container using over 99% of memory (rss 995/1000 bytes)"),
            ),
            (1000, None),
            (999, None),
        ];
        for (rss, expected) in cases {
            assert_eq!(thresholds.passed(rss).as_deref(), expected, "{rss}");
        }
    }

    #[test]
    fn several_passed_at_once_make_one_line() {
        // Use is two thirds of the limit all along.
        let cases: [(&[u64], usize); 4] =
            [(&[55], 1), (&[85], 0), (&[45, 60, 75, 90], 1), (&[], 0)];
        for (percentages, expected) in cases {
            let mut thresholds = MemoryThresholds::new(1500, percentages);
            let lines = (0..3).filter(|_| thresholds.passed(1000).is_some()).count();
            assert_eq!(lines, expected, "{percentages:?}");
        }
        assert_eq!(MemoryThresholds::new(0, &[1]).passed(u64::MAX), None);
    }
}
