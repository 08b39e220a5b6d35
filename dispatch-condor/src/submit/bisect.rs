//! Bisection: finds the rejected items of a list with few commands, by trying halves, and halves of
//! halves, in order. Pure.
//!
//! Input: the number of items, and where those of another user begin. A part with several users is
//! divided between two of them, so that what is rejected of one rejects nothing of another.

use std::ops::Range;

/// Maximum number of rejections among the items of one user; more have another cause.
const MAX_REJECTIONS: u32 = 24;

/// The parts of a list that are still to be tried.
#[derive(Debug)]
pub struct Bisect {
    /// In reverse order: the next part is the last.
    parts: Vec<Range<usize>>,
    /// Where the items of each user but the first begin, in order.
    borders: Vec<usize>,
    /// The number of borders before the newest rejected part, and rejections since the last one.
    rejections: (usize, u32),
}

impl Bisect {
    /// The whole list of this length as one part.
    pub fn new(count: usize, borders: Vec<usize>) -> Self {
        Self {
            parts: std::iter::once(0..count).collect(),
            borders,
            rejections: (0, 0),
        }
    }

    /// The next part to try. Parts come in order, without gaps.
    pub fn next(&mut self) -> Option<Range<usize>> {
        self.parts.pop()
    }

    /// Records that a part was rejected. Returns whether its halves come next; if not, the part
    /// itself is rejected.
    pub fn reject(&mut self, part: Range<usize>) -> bool {
        let middle = part.start + part.len() / 2;
        let user = self.borders.partition_point(|border| *border <= part.start);
        let within = self.borders[user..]
            .iter()
            .take_while(|border| **border < part.end);
        let border = within.min_by_key(|border| border.abs_diff(middle));
        let divide_at = match border {
            Some(border) => Some(*border),
            None => {
                let before = if self.rejections.0 == user {
                    self.rejections.1
                } else {
                    0
                };
                self.rejections = (user, before + 1);
                (part.len() > 1 && before + 1 < MAX_REJECTIONS).then_some(middle)
            }
        };
        if let Some(at) = divide_at {
            self.parts.push(at..part.end);
            self.parts.push(part.start..at);
        }
        divide_at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of commands, and the rejected items.
    fn search(count: usize, borders: &[usize], bad: &[usize]) -> (usize, Vec<usize>) {
        let (mut commands, mut refused, mut done) = (0, Vec::new(), 0);
        let mut bisect = Bisect::new(count, borders.to_vec());
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
                search(count, &[], bad),
                (commands, bad.to_vec()),
                "{bad:?} of {count}"
            );
        }
    }

    #[test]
    fn what_is_refused_of_one_user_refuses_nothing_of_another() {
        for (first, last) in [(0, 100), (100, 300), (300, 500)] {
            let all: Vec<usize> = (first..last).collect();
            let (commands, refused) = search(500, &[100, 300], &all);
            assert_eq!(refused, all);
            assert!(commands < 45, "{commands} commands");
        }
        let (commands, refused) = search(3, &[1, 2], &[1]);
        assert_eq!((commands, refused), (5, vec![1]));
    }

    #[test]
    fn where_all_are_refused_the_search_ends() {
        let all: Vec<usize> = (0..500).collect();
        let (commands, refused) = search(500, &[], &all);
        assert_eq!(refused, all);
        assert!(commands < 40, "{commands} commands");
    }
}
