//! Real input: this host's own figures.

use std::fs;

use telemetry_proto::exposition::Point;

/// Reads the figures of the host: load, memory, CPU time. Where the system does not tell, a figure is left out.
#[derive(Debug, Default)]
pub(super) struct HostFigures {
    next: usize,
}

impl HostFigures {
    /// All figures as they are now.
    pub(super) fn all(&self) -> impl Iterator<Item = Point<'static>> + use<> {
        load().into_iter().chain(memory()).chain(cpu())
    }

    /// One figure after the other.
    pub(super) fn any(&mut self) -> Point<'static> {
        let figures: Vec<_> = self.all().collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        self.next += 1;
        let chosen = figures.get(self.next % figures.len().max(1)).cloned();
        #[expect(clippy::cast_precision_loss, reason = "no host has 2^52 cores")]
        chosen.unwrap_or_else(|| Point::new("host_cores", cores as f64))
    }
}

fn load() -> Vec<Point<'static>> {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let values = text.split_whitespace().take(3).zip(["1m", "5m", "15m"]);
    values.filter_map(|(v, over)| Some(Point::new("host_load", v.parse().ok()?).label("over", over))).collect()
}

fn memory() -> Vec<Point<'static>> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let points = lines.filter_map(|(name, value)| {
        let kib: f64 = value.split_whitespace().next()?.parse().ok()?;
        Some(Point::new("host_memory_bytes", kib * 1024.0).label("kind", name.to_owned()))
    });
    points.collect()
}

fn cpu() -> Vec<Point<'static>> {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with("cpu"));
    let points = lines.flat_map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let cpu = words.next().unwrap_or_default();
        let modes = words.zip(["user", "nice", "system", "idle", "iowait"]);
        modes.filter_map(move |(ticks, mode)| {
            let seconds = ticks.parse::<f64>().ok()? / 100.0;
            Some(Point::new("host_cpu_seconds_total", seconds).label("cpu", cpu.clone()).label("mode", mode))
        })
    });
    points.collect()
}
