//! What the test tiers share.

pub mod exercise;
mod installed;
pub mod npm;
pub mod program;
pub mod python;
mod stolen;

use std::io::Write;

pub use stolen::Stolen;

/// Says loudly that the calling test does not run here, and why; the caller returns afterwards.
///
/// The line goes to standard error past the capture of the test harness, and on a line of its own:
/// `scripts/test` counts and repeats every line that begins with `SKIPPED`.
pub fn skip(test: &str, reason: &str) {
    // With nowhere to say it there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {reason}");
}
