//! The trait a source of settings implements.

use std::borrow::Cow;
use std::ffi::CStr;

use crate::error::Result;

/// An env plugin: one value for the process, asked by any thread, by several at the same time.
///
/// A panic ends its part: from then on settings are what they would be without it.
pub trait Env: Send + Sync + Sized + 'static {
    /// The plugin's name.
    const NAME: &'static CStr;

    /// Makes it ready, once in a process; `release` is that of ccl. Whatever has to be fetched is fetched here: whoever
    /// reads settings waits for `get`.
    ///
    /// # Errors
    ///
    /// It cannot work: settings then come from where they would without it.
    fn init(release: &str) -> Result<Self>;

    /// The value of the setting `name`; `found` is what the environment or the files say. `found` itself leaves that as it
    /// is; nothing, or an empty text, means that the setting has no value, whatever was found.
    fn get<'a>(&self, name: &str, found: Option<&'a str>) -> Option<Cow<'a, str>>;

    /// The process exits.
    fn finalize(self) {}
}
