//! The tuner that the tests of `ccl-plugin-host` load, for communicators.

#[path = "../../plugins/host/tests/plugins/advising.rs"]
mod advising;

// What the tuner logs with.
use tracing as _;
