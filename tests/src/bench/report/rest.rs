//! The tables of the other cases.

use std::fmt;

use super::{Report, Size};

const KIB: f64 = 1024.0;

pub(super) fn write(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    if !report.latency.is_empty() {
        writeln!(f, "\nlatency at a fixed rate, us      p50      p99  added p50  added p99")?;
    }
    for row in &report.latency {
        let added = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
        let (p50, p99) = (added(row.added_p50_us), added(row.added_p99_us));
        writeln!(f, "  {:<26} {:>8.0} {:>8.0} {p50:>10} {p99:>10}", row.target, row.p50_us, row.p99_us)?;
    }
    if !report.memory.is_empty() {
        writeln!(
            f,
            "\nmemory             before MiB  idle KiB/runner  active KiB/runner  peak with large bodies, MiB"
        )?;
    }
    for row in &report.memory {
        writeln!(
            f,
            "  {:<6} {:>5} runners {:>7} {:>16.1} {:>18.1} {:>9} ({} of {})",
            row.target,
            row.runners,
            row.before_bytes >> 20,
            row.idle_bytes_per_runner / KIB,
            row.active_bytes_per_runner / KIB,
            row.peak_with_large_bodies_bytes >> 20,
            row.large_bodies,
            Size(row.large_body_bytes),
        )?;
    }
    if !report.handshakes.is_empty() {
        writeln!(f, "\nfull handshakes      a second   CPU ms each")?;
    }
    for row in &report.handshakes {
        writeln!(f, "  {:<16} {:>10.0} {:>13.2}", row.target, row.per_second, row.cpu_ms_each)?;
    }
    if let Some(row) = &report.reload {
        writeln!(
            f,
            "\na reload with {} runners: {:.3} s, {:.3} s of CPU; slowest request around it {:.1} ms",
            row.runners, row.seconds, row.cpu_seconds, row.worst_request_ms
        )?;
    }
    if !(report.growth.is_empty() && report.batch_ids.is_empty()) {
        writeln!(f, "\nhow cost grows                           CPU us/request   memory MiB")?;
    }
    for row in report.growth.iter().chain(&report.batch_ids) {
        let memory = row.memory_bytes >> 20;
        writeln!(f, "  {:<28} {:>9} {:>14.1} {memory:>12}", row.what, row.count, row.cpu_us_per_request)?;
    }
    if let Some(client) = &report.client {
        writeln!(
            f,
            "\nclient: {:.2} us of CPU a point, {:.2} us a record, written to acknowledged; a call without network p50 {:.2} us, p99 {:.2} us",
            client.cpu_us_per_point, client.cpu_us_per_record, client.offline_p50_us, client.offline_p99_us
        )?;
    }
    Ok(())
}
