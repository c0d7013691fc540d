//! The demonstration, shortened: what it shows to a person holds.

use std::path::Path;
use std::time::Duration;

use telemetry_rig::demo::{self, ProgramLog, Show};
use telemetry_rig::rig::StoreKind;
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    the_demonstration_holds_with_the_built_in_store;
    the_demonstration_holds_with_the_real_stores needs [VictoriaMetrics, VictoriaLogs];
}

async fn the_demonstration_holds_with_the_built_in_store() -> TestResult {
    holds(StoreKind::BuiltIn).await
}

async fn the_demonstration_holds_with_the_real_stores() -> TestResult {
    holds(StoreKind::Real).await
}

async fn holds(stores: StoreKind) -> TestResult {
    let program = Path::new(env!("CARGO_BIN_EXE_telemetry-demo"));
    let report = demo::run(stores, Duration::from_secs(1), program, &ProgramLog::default(), &Show::new(true)).await?;
    assert!(report.ok, "{report}");
    Ok(())
}
