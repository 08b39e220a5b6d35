//! Logs once when memory use exceeds each of several percentages of the request.

/// Percentages of the memory limit that are logged once.
#[derive(Debug, Clone)]
pub struct MemoryThresholds {
    limit: u64,
    /// Thresholds not exceeded yet, in ascending order.
    left: Vec<u64>,
}

impl MemoryThresholds {
    /// `limit` in bytes. 0 means no limit, and nothing is logged.
    pub fn new(limit: u64, percentages: &[u64]) -> Self {
        let mut left = if limit == 0 {
            Vec::new()
        } else {
            percentages.to_vec()
        };
        left.sort_unstable();
        Self { limit, left }
    }

    /// Returns one line for each threshold that `rss` newly exceeds.
    pub fn passed(&mut self, rss: u64) -> Vec<String> {
        let (used, limit) = (u128::from(rss) * 100, self.limit);
        let count = self
            .left
            .partition_point(|p| used > u128::from(limit) * u128::from(*p));
        self.left
            .drain(..count)
            .map(|percentage| {
                format!("Container using over {percentage}% of memory (rss {rss}/{limit} bytes)")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_threshold_is_said_once() {
        let mut thresholds = MemoryThresholds::new(1000, &[99, 90, 95]);
        let line = |percentage: u64, rss: u64| {
            format!("Container using over {percentage}% of memory (rss {rss}/1000 bytes)")
        };
        let cases = [
            (900, vec![]),
            (901, vec![line(90, 901)]),
            (902, vec![]),
            (800, vec![]),
            (995, vec![line(95, 995), line(99, 995)]),
            (1000, vec![]),
            (999, vec![]),
        ];
        for (rss, expected) in cases {
            assert_eq!(thresholds.passed(rss), expected, "{rss}");
        }
    }

    #[test]
    fn a_use_of_two_thirds_passes_what_lies_below_it() {
        // Values of a machine with 12 GB in use and a limit of one and a half times that.
        let used = 12_591_513_600;
        let cases: [(&[u64], usize); 5] = [
            (&[55], 1),
            (&[85], 0),
            (&[95, 97, 99], 0),
            (&[45, 60, 75, 90], 2),
            (&[1, 2, 3], 3),
        ];
        for (percentages, expected) in cases {
            let mut thresholds = MemoryThresholds::new(used / 2 * 3, percentages);
            let lines: usize = (0..3).map(|_| thresholds.passed(used).len()).sum();
            assert_eq!(lines, expected, "{percentages:?}");
        }
        assert!(MemoryThresholds::new(0, &[1]).passed(u64::MAX).is_empty());
    }
}
