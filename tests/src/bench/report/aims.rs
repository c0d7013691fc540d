//! What the project wants of itself, beside what was measured.

use std::fmt;

use super::{CostRow, Report, cost};
use crate::bench::targets::{StoreOfRun, TargetKind};

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// One aim: what, the bound, and what was measured, if it was.
struct Aim {
    what: &'static str,
    bound: f64,
    is_least: bool,
    measured: Option<f64>,
}

pub(super) fn write(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let aims: Vec<_> = aims(report).into_iter().filter(|aim| aim.measured.is_some()).collect();
    if !aims.is_empty() {
        writeln!(f, "\naims                                                      aim   measured")?;
    }
    for aim in aims {
        let measured = aim.measured.unwrap_or_default();
        let met = if aim.is_least { measured >= aim.bound } else { measured <= aim.bound };
        let (sign, met) = (if aim.is_least { ">=" } else { "<=" }, if met { "" } else { "  not met" });
        writeln!(f, "  {:<50} {sign} {:>6.3} {measured:>10.3}{met}", aim.what, aim.bound)?;
    }
    Ok(())
}

fn aims(report: &Report) -> Vec<Aim> {
    let small = usual(report, 1 << 10);
    let large = usual(report, 1 << 20);
    let ratio = |row: Option<&CostRow>, to: TargetKind, of: fn(&CostRow) -> f64| {
        let row = row?;
        let other = of(cost::beside(&report.cost, row, to)?);
        (other > 0.0).then(|| of(row) / other)
    };
    let cpu: fn(&CostRow) -> f64 = |row| row.cpu_seconds_per_1000;
    let speed: fn(&CostRow) -> f64 = |row| row.requests_per_second;
    let most = |what, bound, measured| Aim { what, bound, is_least: false, measured };
    let least = |what, bound, measured| Aim { what, bound, is_least: true, measured };
    let latency = report.latency.iter().find(|row| row.target == TargetKind::Relay);
    let memory = report.memory.iter().find(|row| row.target == TargetKind::Relay);
    let handshakes = |target| report.handshakes.iter().find(|row| row.target == target).map(|row| row.per_second);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let peak = memory.map(|row| row.peak_with_large_bodies_bytes as f64 / MIB);
    vec![
        most("CPU per 1 KiB request, of go's", 0.125, ratio(small, TargetKind::Go, cpu)),
        most("CPU per 1 KiB request, of vmauth's", 0.25, ratio(small, TargetKind::Vmauth, cpu)),
        most("CPU per MiB at 1 MiB, of go's", 1.0 / 3.0, ratio(large, TargetKind::Go, cpu)),
        least("requests/s at 1 KiB, of go's", 3.0, ratio(small, TargetKind::Go, speed)),
        least("requests/s at 1 KiB, of the store's alone", 0.6, ratio(small, TargetKind::Direct, speed)),
        most("added p50 at 200/s, us", 250.0, latency.and_then(|row| row.added_p50_us)),
        most("memory of an idle runner, KiB", 40.0, memory.map(|row| row.idle_bytes_per_runner / KIB)),
        least(
            "handshakes/s, of go's",
            1.0,
            handshakes(TargetKind::Relay).zip(handshakes(TargetKind::Go)).map(|(relay, go)| relay / go),
        ),
        most("peak memory with eight bodies of 32 MiB, MiB", 256.0 + 64.0, peak),
        most(
            "a writer's call without network, p99 us",
            5.0,
            report.client.as_ref().map(|client| client.offline_p99_us),
        ),
    ]
}

/// The relay with the real store, ten connections and RS256.
fn usual(report: &Report, bytes: usize) -> Option<&CostRow> {
    report.cost.iter().find(|row| {
        row.target == TargetKind::Relay
            && row.store == StoreOfRun::Real
            && row.body_bytes == bytes
            && row.connections == 10
    })
}
