//! Many runners at once, shortened: `telemetry-crowd` measures thousands.

use std::time::Duration;

use telemetry_rig::suite::TestResult;
use telemetry_rig::{crowd, storm};

telemetry_rig::suite! {
    metrics_do_not_grow_with_the_number_of_runners needs [Relay];
    a_storm_of_returning_runners_is_over_soon_and_delivers_everything_once needs [Relay];
}

async fn metrics_do_not_grow_with_the_number_of_runners() -> TestResult {
    let few = crowd::run(4, |_| {}).await.map_err(|error| error.to_string())?;
    let many = crowd::run(120, |_| {}).await.map_err(|error| error.to_string())?;
    print!("{many}");
    assert_eq!((few.runners, many.runners), (4, 120));
    // Digits of counters, and a label that is seen with more of them.
    assert!(many.metrics_bytes < few.metrics_bytes + 2_048, "{} to {} bytes", few.metrics_bytes, many.metrics_bytes);
    assert!(many.metrics_bytes < 1 << 20);
    if let Some(page) = many.page {
        assert_eq!(page.rows, 120);
    }
    Ok(())
}

async fn a_storm_of_returning_runners_is_over_soon_and_delivers_everything_once() -> TestResult {
    // More than may wait at the relay, so that some are told to come back.
    let report = storm::run(400, |_, _| {}).await.map_err(|error| error.to_string())?;
    print!("{report}");
    assert_eq!((report.lost, report.twice), (0, 0));
    for back in &report.returns {
        assert!(back.under_way > 0 && back.is_good(Duration::from_secs(20)), "{back:?}");
    }
    Ok(())
}
