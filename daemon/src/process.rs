//! What the process holds of its machine, under the names that every Prometheus client uses. Linux only (proc(5)); elsewhere
//! there are no such series.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The clock ticks of a second in `/proc`, the same on every Linux (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Reads `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and `process_max_fds` when it is
/// asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(seconds) = cpu_seconds() {
            let help = "Processor time of the process";
            let counter = ConstCounter::new(seconds);
            counter.encode(encoder.encode_descriptor(
                "process_cpu",
                help,
                Some(&Unit::Seconds),
                MetricType::Counter,
            )?)?;
        }
        let levels = [
            ("process_resident_memory_bytes", "Memory that is resident", memory_bytes()),
            ("process_open_fds", "Open files and sockets", open_files()),
            ("process_max_fds", "How many those may be", max_files()),
        ];
        for (name, help, level) in levels {
            if let Some(level) = level {
                ConstGauge::new(level).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
            }
        }
        Ok(())
    }
}

/// Fields 14 and 15 of `stat`, after the name in parentheses, which may hold anything.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(|field| field.parse::<u32>().ok());
    Some((f64::from(ticks.next()??) + f64::from(ticks.next()??)) / TICKS)
}

fn memory_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<i64>().ok()? * 1024)
}

fn open_files() -> Option<i64> {
    // One of them reads the folder.
    i64::try_from(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1)).ok()
}

fn max_files() -> Option<i64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_there() {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(ProcessCollector));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in
            ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_open_fds ", "process_max_fds "]
        {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
        }
        assert!(memory_bytes().unwrap() > 1 << 20 && open_files().unwrap() >= 3);
    }
}
