//! The table of costs.

use std::fmt;

use super::{CostRow, Size};
use crate::bench::targets::TargetKind;

const MIB: f64 = 1024.0 * 1024.0;

pub(super) fn write(f: &mut fmt::Formatter<'_>, rows: &[CostRow]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "\n{:<5} {:>7} {:>6} {:<6} {:<7} {:>9} {:>9} {:>11} {:>10} {:>9} {:>7}",
        "store", "body", "conns", "token", "target", "req/s", "MiB/s", "CPU us/req", "CPU s/GiB", "peak MiB", "CPU/go"
    )?;
    let mut last = None;
    for row in rows {
        let cell = (row.store, row.body_bytes, row.connections, row.algorithm);
        if last.is_some_and(|last| last != cell) {
            writeln!(f)?;
        }
        last = Some(cell);
        let ratio = match beside(rows, row, TargetKind::Go) {
            Some(go) if go.cpu_seconds_per_1000 > 0.0 && row.target != TargetKind::Direct => {
                format!("{:.2}", row.cpu_seconds_per_1000 / go.cpu_seconds_per_1000)
            }
            _ => "-".to_owned(),
        };
        writeln!(
            f,
            "{:<5} {:>7} {:>6} {:<6} {:<7} {:>9.0} {:>9.1} {:>11.1} {:>10.2} {:>9.0} {:>7}",
            row.store,
            Size(row.body_bytes),
            row.connections,
            row.algorithm.as_str(),
            row.target,
            row.requests_per_second,
            row.bytes_per_second / MIB,
            row.cpu_seconds_per_1000 * 1e3,
            row.cpu_seconds_per_gib,
            Mib(row.peak_memory_bytes),
            ratio
        )?;
    }
    Ok(())
}

/// The row of another target in the same cell.
pub(super) fn beside<'a>(rows: &'a [CostRow], row: &CostRow, target: TargetKind) -> Option<&'a CostRow> {
    rows.iter().find(|other| {
        other.target == target
            && (other.store, other.body_bytes, other.connections, other.algorithm)
                == (row.store, row.body_bytes, row.connections, row.algorithm)
    })
}

struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad_integral(true, "", &(self.0 >> 20).to_string())
    }
}
