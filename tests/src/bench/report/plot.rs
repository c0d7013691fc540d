//! Charts, as one SVG file.

use std::path::Path;

use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::Rectangle;
use plotters::prelude::SVGBackend;
use plotters::style::{Color as _, FontTransform, IntoFont as _, RGBColor, WHITE};

use super::{CostRow, Report, Size};
use crate::bench::BenchError;
use crate::bench::targets::{StoreOfRun, TargetKind};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 320;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A bar, what it is called, and whose it is.
struct Bar {
    label: String,
    value: f64,
    target: TargetKind,
}

/// Draws what of `report` can be drawn into `file`.
///
/// # Errors
/// The file can't be written, or there is nothing to draw.
pub fn plot(report: &Report, file: &Path) -> Result<(), BenchError> {
    let charts = charts(report);
    if charts.is_empty() {
        return Err(BenchError::Plot("nothing was measured that could be drawn".to_owned()));
    }
    let rows = u32::try_from(charts.len()).unwrap_or(u32::MAX);
    let root = SVGBackend::new(file, (WIDTH, HEIGHT * rows)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    for (area, (title, bars)) in root.split_evenly((charts.len(), 1)).iter().zip(&charts) {
        draw(area, title, bars)?;
    }
    root.present().map_err(failed)
}

fn charts(report: &Report) -> Vec<(String, Vec<Bar>)> {
    let mut charts = Vec::new();
    let mut sizes: Vec<_> = report.cost.iter().map(|row| (row.store, row.body_bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for (store, bytes) in sizes.into_iter().filter(|(store, _)| *store == StoreOfRun::Real || !has_real(report)) {
        let of_size =
            |row: &&CostRow| row.store == store && row.body_bytes == bytes && row.target != TargetKind::Direct;
        let bars = report.cost.iter().filter(of_size).map(|row| Bar {
            label: format!("{} {} {}", row.target, row.connections, row.algorithm.as_str()),
            value: row.cpu_seconds_per_1000 * 1e3,
            target: row.target,
        });
        charts.push((format!("CPU us per request of {}, by connections and token", Size(bytes)), bars.collect()));
    }
    if !report.latency.is_empty() {
        let bars = report.latency.iter().flat_map(|row| {
            [("p50", row.p50_us), ("p99", row.p99_us)].map(|(which, value)| Bar {
                label: format!("{} {which}", row.target),
                value,
                target: row.target,
            })
        });
        charts.push(("latency at 200 requests a second, us".to_owned(), bars.collect()));
    }
    charts
}

fn has_real(report: &Report) -> bool {
    report.cost.iter().any(|row| row.store == StoreOfRun::Real)
}

fn draw(area: &Area<'_>, title: &str, bars: &[Bar]) -> Result<(), BenchError> {
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max) * 1.1;
    let count = i32::try_from(bars.len()).unwrap_or(i32::MAX);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 18))
        .margin(10)
        .x_label_area_size(70)
        .y_label_area_size(70)
        .build_cartesian_2d(0..count, 0.0..most.max(1.0))
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(bars.len())
        .x_label_formatter(&|index| {
            usize::try_from(*index)
                .ok()
                .and_then(|index| bars.get(index))
                .map_or_else(String::new, |bar| bar.label.clone())
        })
        .x_label_style((FONT, 11).into_font().transform(FontTransform::Rotate90))
        .draw()
        .map_err(failed)?;
    let boxes = (0_i32..).zip(bars).map(|(index, bar)| {
        let mut rectangle = Rectangle::new([(index, 0.0), (index + 1, bar.value)], color(bar.target).filled());
        rectangle.set_margin(0, 0, 2, 2);
        rectangle
    });
    chart.draw_series(boxes).map_err(failed)?;
    Ok(())
}

/// Colours that those who see few of them can tell apart.
const fn color(target: TargetKind) -> RGBColor {
    match target {
        TargetKind::Direct => RGBColor(120, 120, 120),
        TargetKind::Relay => RGBColor(0, 114, 178),
        TargetKind::Before => RGBColor(86, 180, 233),
        TargetKind::Go => RGBColor(230, 159, 0),
        TargetKind::Vmauth => RGBColor(0, 158, 115),
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Plot(error.to_string())
}
