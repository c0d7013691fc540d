#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| telemetry_fuzz::run(telemetry_h3::fuzzing::TARGETS, "fields", data));
