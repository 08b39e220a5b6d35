//! Finds the part of a queue that is in order already, so that only the other jobs are moved. Pure.

/// The indices of the longest part of `keys` that rises strictly.
pub fn longest_in_order<K: Ord>(keys: &[K]) -> Vec<usize> {
    // For each length, the part whose last key is smallest; and the predecessor of each key in its
    // part.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(keys.len());
    for (n, key) in keys.iter().enumerate() {
        let length = ends.partition_point(|end| keys[*end] < *key);
        before.push(length.checked_sub(1).map(|last| ends[last]));
        match ends.get_mut(length) {
            Some(end) => *end = n,
            None => ends.push(n),
        }
    }
    let mut part: Vec<usize> =
        std::iter::successors(ends.last().copied(), |n| before[*n]).collect();
    part.reverse();
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_rising_part_is_found() {
        for (keys, part) in [
            (&[][..], &[][..]),
            (&[7], &[0]),
            (&[1, 1, 1], &[2]),
            (&[5, 1, 2, 9, 3, 4], &[1, 2, 4, 5]),
            (&[3, 2, 1], &[2]),
        ] {
            assert_eq!(longest_in_order(keys), part, "{keys:?}");
        }
    }
}
