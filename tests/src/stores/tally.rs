//! Whether a store has everything once.

use std::collections::HashMap;
use std::hash::Hash;

/// How many of what is expected are not there, and how many things are there more than once.
pub(crate) fn lost_and_twice<K: Eq + Hash>(
    stored: impl IntoIterator<Item = K>,
    expected: impl IntoIterator<Item = K>,
) -> (usize, usize) {
    let mut times = HashMap::new();
    stored.into_iter().for_each(|item| *times.entry(item).or_insert(0_u64) += 1);
    let lost = expected.into_iter().filter(|item| !times.contains_key(item)).count();
    (lost, times.values().filter(|times| **times > 1).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_lost_and_what_comes_again_is_there_twice() {
        assert_eq!(lost_and_twice([1, 2, 2, 2, 4, 4, 9], 1..=5), (2, 2));
        assert_eq!(lost_and_twice([1, 2], 1..=2), (0, 0));
    }
}
