//! The trait a tuner implements.

use std::ffi::CStr;

use super::types::{Call, Candidate, Comm};
use crate::error::Result;
use crate::settings::Settings;

/// A tuner: one value for each communicator, made, asked and dropped by one thread of the host on rank 0.
///
/// Nothing a tuner does, late or wrong, fails the communicator: after an error or a panic it goes without.
pub trait Tuner: Sized + 'static {
    /// The tuner's name.
    const NAME: &'static CStr;

    /// A context. `settings` may have `config_file`, a path. May block for the disk; the host waits ten seconds for
    /// the whole of a context.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from advising: the communicator goes without.
    fn init(comm: &Comm<'_>, settings: &Settings) -> Result<Self>;

    /// Advice on one call: changes costs, channels and chunks of `candidates`, of which there is at least one. Equal
    /// questions get equal answers.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from advising: nothing it has advised this communicator is taken.
    fn advise(&mut self, call: &Call<'_>, candidates: &mut [Candidate<'_>]) -> Result<()>;
}
