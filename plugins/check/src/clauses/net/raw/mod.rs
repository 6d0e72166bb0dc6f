//! The entries of the table as they are, with what they return looked at and nothing made up for.

mod comm;
mod context;

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ccl_plugin::c::{CclErrorV1, CclNetV1};
use ccl_plugin_host::NetPlugin;

pub(crate) use comm::{Pending, RecvEnd, SendEnd};
pub(crate) use context::{Connecting, Context, Listener, empty_properties};

use crate::breach::Failed;
use crate::pulse::Pulse;

/// A plugin's table, and who notes what is called.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) entries: &'static CclNetV1,
    /// Whose table it is; contexts begin with it.
    pub(crate) plugin: NetPlugin,
    pub(crate) pulse: Arc<Pulse>,
}

impl Table {
    pub(crate) fn new(plugin: NetPlugin, pulse: Arc<Pulse>) -> Table {
        Table { entries: plugin.table(), plugin, pulse }
    }

    /// Runs a call of the plugin; an error with its words if it returns a code.
    pub(crate) fn call(&self, call: &'static str, run: impl FnOnce() -> i32) -> Result<(), Failed> {
        match self.pulse.during(call, run) {
            0 => Ok(()),
            code => Err(self.words(call, code)),
        }
    }

    /// As [`Table::call`], for an entry after which there is nobody to tell.
    fn close(&self, call: &'static str, run: impl FnOnce() -> i32) {
        if let Err(failed) = self.call(call, run) {
            self.pulse.complain(format!("expected closing to succeed, found {failed}"));
        }
    }

    fn words(&self, call: &'static str, code: i32) -> Failed {
        let (_, words) = self.last_error(size_of::<CclErrorV1>());
        let (message, peer) = (text(&words.message), text(&words.peer));
        Failed { call, code, told: words.code, message, peer }
    }

    /// What `last_error` returns and fills in if it may fill that many bytes.
    pub(crate) fn last_error(&self, size: usize) -> (i32, CclErrorV1) {
        let mut words = CclErrorV1 {
            size: size as u32,
            code: 0,
            os_error: 0,
            reserved: 0,
            peer: [0; _],
            message: [0; _],
        };
        let entry = self.entries.last_error.expect("a required entry, which was checked");
        // SAFETY: a writable struct of at least the stated size.
        let code = self.pulse.during("last_error", || unsafe { entry(&raw mut words) });
        (code, words)
    }
}

/// The text of an array that may lack its NUL.
pub(crate) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

/// A required entry of a table that was checked.
macro_rules! entry {
    ($table:expr, $entry:ident) => {
        $table.entries.$entry.expect("a required entry, which was checked")
    };
}
/// An optional entry; without it the clause is skipped.
macro_rules! optional {
    ($table:expr, $entry:ident) => {
        match $table.entries.$entry {
            Some(entry) => entry,
            None => return crate::breach::skip(concat!("has no ", stringify!($entry))),
        }
    };
}
pub(crate) use {entry, optional};
