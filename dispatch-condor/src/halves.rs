//! One of many is not taken: which? The halves are tried one after the other, and their halves, so that few commands find
//! it. Pure.

use std::ops::Range;

/// So many refusals in one search: then there is something else in the way.
const MOST_REFUSALS: u32 = 24;

/// Parts of a list that are still to be tried.
#[derive(Debug)]
pub struct Halves {
    /// The next one last.
    parts: Vec<Range<usize>>,
    refusals: u32,
}

impl Halves {
    /// All of so many, together.
    pub fn of(count: usize) -> Self {
        Self {
            parts: std::iter::once(0..count).collect(),
            refusals: 0,
        }
    }

    /// What is to be tried next. Each ends where the one after it begins.
    pub fn next(&mut self) -> Option<Range<usize>> {
        self.parts.pop()
    }

    /// This part was refused; whether its halves come next. Else it is what is refused.
    pub fn refused(&mut self, part: Range<usize>) -> bool {
        self.refusals += 1;
        let divides = part.len() > 1 && self.refusals < MOST_REFUSALS;
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

    /// How many commands it takes, and what is refused.
    fn search(count: usize, bad: &[usize]) -> (usize, Vec<usize>) {
        let (mut commands, mut refused, mut done) = (0, Vec::new(), 0);
        let mut halves = Halves::of(count);
        while let Some(part) = halves.next() {
            assert_eq!(part.start, done, "in order, none left out");
            commands += 1;
            if !bad.iter().any(|n| part.contains(n)) {
                done = part.end;
            } else if !halves.refused(part.clone()) {
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
