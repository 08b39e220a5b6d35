//! Bisection: finds the rejected items of a list with few commands, by trying halves, and halves of
//! halves, in order. Pure.

use std::ops::Range;

/// Maximum number of rejections in one search; more have another cause.
const MAX_REJECTIONS: u32 = 24;

/// The parts of a list that are still to be tried.
#[derive(Debug)]
pub struct Bisect {
    /// In reverse order: the next part is the last.
    parts: Vec<Range<usize>>,
    rejections: u32,
}

impl Bisect {
    /// The whole list of this length as one part.
    pub fn new(count: usize) -> Self {
        Self {
            parts: std::iter::once(0..count).collect(),
            rejections: 0,
        }
    }

    /// The next part to try. Parts come in order, without gaps.
    pub fn next(&mut self) -> Option<Range<usize>> {
        self.parts.pop()
    }

    /// Records that a part was rejected. Returns whether its halves come next; if not, the part
    /// itself is rejected.
    pub fn reject(&mut self, part: Range<usize>) -> bool {
        self.rejections += 1;
        let divides = part.len() > 1 && self.rejections < MAX_REJECTIONS;
        if divides {
            let middle = part.start + part.len() / 2;
            self.parts.push(middle..part.end);
            self.parts.push(part.start..middle);
        }
        divides
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of commands, and the rejected items.
    fn search(count: usize, bad: &[usize]) -> (usize, Vec<usize>) {
        let (mut commands, mut refused, mut done) = (0, Vec::new(), 0);
        let mut bisect = Bisect::new(count);
        while let Some(part) = bisect.next() {
            assert_eq!(part.start, done, "in order, none left out");
            commands += 1;
            if !bad.iter().any(|n| part.contains(n)) {
                done = part.end;
            } else if !bisect.reject(part.clone()) {
                done = part.end;
                refused.extend(part);
            }
        }
        assert_eq!(done, count);
        (commands, refused)
    }

    #[test]
    fn few_commands_find_the_one_that_is_not_taken() {
        let rows: [(usize, &[usize], usize); 5] = [
            (500, &[], 1),
            (500, &[0], 17),
            (500, &[499], 19),
            (2, &[1], 3),
            (1, &[0], 1),
        ];
        for (count, bad, commands) in rows {
            assert_eq!(
                search(count, bad),
                (commands, bad.to_vec()),
                "{bad:?} of {count}"
            );
        }
    }

    #[test]
    fn where_all_are_refused_the_search_ends() {
        let all: Vec<usize> = (0..500).collect();
        let (commands, refused) = search(500, &all);
        assert_eq!(refused, all);
        assert!(commands < 40, "{commands} commands");
    }
}
