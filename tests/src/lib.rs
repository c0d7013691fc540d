//! Rig, end-to-end suites, demo.
