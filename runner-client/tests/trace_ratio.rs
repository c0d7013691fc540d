//! Processes that know nothing of each other decide alike what is recorded.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use telemetry_runner_client::trace::{TraceId, is_sampled};

const IDS: usize = 100_000;
/// Set in the processes that the test starts: the ratio that their coordinator told them.
const RATIO: &str = "TELEMETRY_TEST_RATIO";

/// No test, but one of the processes: reads IDs, and writes for each whether it would be recorded.
#[test]
fn another_process() {
    let Ok(ratio) = std::env::var(RATIO) else { return };
    let ratio: f64 = ratio.parse().unwrap();
    let mut ids = Vec::new();
    std::io::stdin().lock().read_to_end(&mut ids).unwrap();
    let decide = |id: &[u8; 16]| if is_sampled(TraceId::from_bytes(*id).unwrap(), ratio) { '1' } else { '0' };
    let decisions: String = ids.as_chunks::<16>().0.iter().map(decide).collect();
    // On a line of its own, among what the test harness writes.
    println!("\n={decisions}");
}

#[test]
fn two_processes_with_one_ratio_agree_on_100_000_trace_ids() {
    let ids: Vec<u8> = (0..IDS).flat_map(|_| TraceId::random().to_bytes()).collect();
    for ratio in ["0.01", "0.5"] {
        let [first, second] = [decisions(ratio, &ids), decisions(ratio, &ids)];
        assert_eq!(first.len(), IDS);
        assert!(first == second, "two processes with the ratio {ratio} disagree");
        let recorded = first.bytes().filter(|decision| *decision == b'1').count();
        let expected = ratio.parse::<f64>().unwrap() * 100_000.0;
        // Ten standard deviations, and then some.
        assert!((recorded as f64 - expected).abs() < 2_000.0_f64.min(expected), "{recorded} of {expected}");
    }
    assert_ne!(decisions("0.01", &ids), decisions("0.02", &ids), "the ratio matters");
}

/// What a new process decides.
fn decisions(ratio: &str, ids: &[u8]) -> String {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process", "--nocapture"])
        .env(RATIO, ratio)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(ids).unwrap();
    drop(stdin);
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix('=')).unwrap().to_owned()
}
