//! `telemetry-bench`, shortened to a few requests of each kind: whether it works, never how fast anything is.

use std::time::Duration;

use serde_json::Value;
use telemetry_rig::suite::TestResult;
use tokio::process::Command;
use tokio::time::timeout;

telemetry_rig::suite! {
    every_case_reports_and_nothing_is_refused needs [Relay, PeerGo];
}

const WITHIN: Duration = Duration::from_secs(50);

async fn every_case_reports_and_nothing_is_refused() -> TestResult {
    let run = Command::new(env!("CARGO_BIN_EXE_telemetry-bench"))
        .args(["--smoke", "--json", "--peers", "direct,go"])
        .kill_on_drop(true)
        .output();
    let output = timeout(WITHIN, run).await.map_err(|_| "no end")??;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["left_out"], Value::Array(Vec::new()), "{report:#}");
    assert_eq!(report["refusals"], Value::Array(Vec::new()), "{report:#}");
    for (case, rows) in
        [("cost", 6), ("latency", 3), ("memory", 2), ("handshakes", 2), ("growth", 10), ("batch_ids", 4)]
    {
        assert_eq!(report[case].as_array().map(Vec::len), Some(rows), "{case}: {report:#}");
    }
    for case in ["reload", "client"] {
        assert!(report[case].is_object(), "{case}: {report:#}");
    }
    for row in report["cost"].as_array().into_iter().flatten() {
        assert!(row["requests"].as_u64() > Some(0), "{row:#}");
    }
    Ok(())
}
