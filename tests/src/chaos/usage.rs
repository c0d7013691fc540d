//! What the processes hold of the machine over time, and whether it grows.

use std::time::Duration;

use serde::Serialize;

use crate::process::Usage;

/// What a process held at a moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct UsageSample {
    /// Seconds after the start.
    pub at_seconds: f64,
    /// The life of the process, from 0.
    pub life: usize,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Open files and sockets.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
}

/// What one process held.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessUsage {
    /// Its name.
    pub process: String,
    /// The most memory that was seen resident, in bytes.
    pub most_memory_bytes: u64,
    /// The most descriptors that were seen.
    pub most_descriptors: usize,
    /// How resident memory grew, in bytes an hour; `None` where no life was long enough to say.
    pub memory_bytes_per_hour: Option<f64>,
    /// How descriptors grew, an hour.
    pub descriptors_per_hour: Option<f64>,
    /// How threads grew, an hour.
    pub threads_per_hour: Option<f64>,
    /// All that was seen.
    pub samples: Vec<UsageSample>,
}

/// What a process takes in its first seconds is no growth.
const WARM_UP: Duration = Duration::from_secs(60);
/// Over a shorter time a slope says nothing.
const LONG_ENOUGH: Duration = Duration::from_secs(120);

impl UsageSample {
    pub(super) const fn new(at: Duration, life: usize, usage: &Usage) -> Self {
        Self {
            at_seconds: at.as_secs_f64(),
            life,
            memory_bytes: usage.memory_bytes,
            descriptors: usage.descriptors,
            threads: usage.threads,
        }
    }
}

impl ProcessUsage {
    pub(super) fn of(process: String, samples: Vec<UsageSample>) -> Self {
        let settled = last_life(&samples);
        #[expect(clippy::cast_precision_loss, reason = "no figure of a process nears 2^53")]
        Self {
            process,
            most_memory_bytes: samples.iter().map(|sample| sample.memory_bytes).max().unwrap_or_default(),
            most_descriptors: samples.iter().map(|sample| sample.descriptors).max().unwrap_or_default(),
            memory_bytes_per_hour: slope(settled, |sample| sample.memory_bytes as f64),
            descriptors_per_hour: slope(settled, |sample| sample.descriptors as f64),
            threads_per_hour: slope(settled, |sample| sample.threads as f64),
            samples,
        }
    }
}

/// The last life without its first minute.
fn last_life(samples: &[UsageSample]) -> &[UsageSample] {
    let Some(life) = samples.last().map(|sample| sample.life) else { return &[] };
    let born = samples.partition_point(|sample| sample.life < life);
    let settled = samples[born].at_seconds + WARM_UP.as_secs_f64();
    let settled = samples.partition_point(|sample| sample.at_seconds < settled || sample.life < life);
    &samples[settled..]
}

/// The slope of the line through the samples by least squares, an hour.
fn slope(samples: &[UsageSample], figure: fn(&UsageSample) -> f64) -> Option<f64> {
    let (first, last) = (samples.first()?, samples.last()?);
    if last.at_seconds - first.at_seconds < LONG_ENOUGH.as_secs_f64() {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "samples are few")]
    let mean = |of: &dyn Fn(&UsageSample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
    let (mean_at, mean_figure) = (mean(&|sample| sample.at_seconds), mean(&figure));
    let (mut above, mut below) = (0.0, 0.0);
    for sample in samples {
        let at = sample.at_seconds - mean_at;
        above += at * (figure(sample) - mean_figure);
        below += at * at;
    }
    Some(above / below * 3_600.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_seconds: f64, life: usize, memory_bytes: u64) -> UsageSample {
        UsageSample { at_seconds, life, memory_bytes, descriptors: 10, threads: 4 }
    }

    #[test]
    fn growth_is_that_of_the_last_life_after_its_first_minute() {
        let former = (0..100).map(|n| sample(f64::from(n) * 2.0, 0, 1_000_000));
        // The first minute takes a lot; then 10 bytes a second.
        let last = (0..200_u32).map(|n| {
            let at = f64::from(n) * 2.0;
            let grown = if n < 30 { u64::from(n) * 100_000 } else { 3_000_000 + u64::from(n) * 20 };
            sample(200.0 + at, 1, grown)
        });
        let usage = ProcessUsage::of("relay".to_owned(), former.chain(last).collect());
        assert!((usage.memory_bytes_per_hour.unwrap() - 36_000.0).abs() < 1.0, "{usage:?}");
        assert!(usage.descriptors_per_hour.unwrap().abs() < 1e-9);
    }

    #[test]
    fn a_short_life_says_nothing() {
        let usage = ProcessUsage::of("relay".to_owned(), (0..30).map(|n| sample(f64::from(n), 0, 1)).collect());
        assert_eq!(usage.memory_bytes_per_hour, None);
    }
}
