//! An adaptive limit for the number of concurrent tasks that ask the API server.

/// Number of such tasks. It is halved when the API is overloaded (429, 503) and then grows again
/// one by one (AIMD).
#[derive(Debug, Clone)]
pub struct AimdLimit {
    max: usize,
    current: usize,
    successes: usize,
}

impl AimdLimit {
    /// A limit that starts at its maximum.
    pub fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            current: max.max(1),
            successes: 0,
        }
    }

    /// Current number of tasks that may run at once.
    pub fn limit(&self) -> usize {
        self.current
    }

    /// Records that a task ended, and whether the API was overloaded.
    pub fn record(&mut self, overloaded: bool) {
        if overloaded {
            self.current = (self.current / 2).max(1);
            self.successes = 0;
            return;
        }
        self.successes += 1;
        if self.successes >= self.current && self.current < self.max {
            self.current += 1;
            self.successes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overloaded_server_gets_fewer_calls_at_once() {
        let mut limit = AimdLimit::new(8);
        let mut limits = Vec::new();
        for overloaded in [true, true, true, true, false, false, false, false] {
            limit.record(overloaded);
            limits.push(limit.limit());
        }
        assert_eq!(limits, [4, 2, 1, 1, 2, 2, 3, 3]);
        (0..100).for_each(|_| limit.record(false));
        assert_eq!(limit.limit(), 8);
    }
}
