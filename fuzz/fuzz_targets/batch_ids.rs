#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| telemetry_fuzz::run(telemetry_relay::fuzzing::TARGETS, "batch_ids", data));
