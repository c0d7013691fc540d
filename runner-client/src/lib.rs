//! The runner's side: writers that deliver telemetry to the coordinator.
