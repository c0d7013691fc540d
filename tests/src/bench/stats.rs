//! Medians and percentiles.

use std::time::Duration;

/// The middle value, or the mean of the two in the middle; 0 of nothing.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => f64::midpoint(values[len / 2 - 1], values[len / 2]),
        len => values[len / 2],
    }
}

/// The value that this share of `sorted` does not exceed; 0 of nothing.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 100.0]) - 3.0).abs() < f64::EPSILON);
        assert!((median([1.0, 2.0, 4.0, 100.0]) - 3.0).abs() < f64::EPSILON);
        assert!(median([]).abs() < f64::EPSILON);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Duration::from_millis(100));
        assert_eq!(percentile(&values, 99), Duration::from_millis(198));
        assert_eq!(percentile(&values[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
