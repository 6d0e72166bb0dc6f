//! The entries of the table as they are, with what they return looked at.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use ccl_plugin::CclHostV1;
use ccl_plugin_host::env::EnvTable;

use crate::breach::{Failed, Outcome, Stop, breach};
use crate::host::{host, last_line};
use crate::pulse::Pulse;

/// A plugin with its context; finalised when dropped.
pub(crate) struct Source {
    table: EnvTable,
    context: *mut c_void,
    pulse: Arc<Pulse>,
    /// What the plugin has until `finalize`.
    _host: Box<CclHostV1>,
}

// SAFETY: the contract lets `getEnv` be called from any thread.
unsafe impl Send for Source {}
// SAFETY: as above, at the same time as well; nothing else is called but when it is dropped.
unsafe impl Sync for Source {}

/// An answer that is a text of the plugin's.
pub(crate) struct Answer {
    text: *const c_char,
    /// What it was when it was given.
    copy: CString,
}

impl Source {
    pub(super) fn start(table: EnvTable, pulse: &Arc<Pulse>) -> Outcome<Source> {
        let host = host();
        // SAFETY: the host's table lives until `finalize`; a clause has one context at a time, in its own process.
        let made = pulse.during("init", || unsafe { table.init(&raw const *host, "0.1.0") });
        let context = made.map_err(|(code, words)| {
            let said = last_line().map(|line| format!("; its log: {line}")).unwrap_or_default();
            let message = format!("{words}{said}");
            Stop::from(Failed { call: "init", code, told: code, message, ..Failed::default() })
        })?;
        Ok(Source { table, context, pulse: Arc::clone(pulse), _host: host })
    }

    /// What it says of a name of which `found` is known; nothing if that is null or `found` itself.
    pub(super) fn ask(&self, name: &str, found: Option<&str>) -> Outcome<Option<Answer>> {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let (asked, known) = (text(name), found.map(text));
        let known = known.as_ref().map_or(ptr::null(), |known| known.as_ptr());
        let get_env = self.table.entries().get_env.expect("a required entry, which was checked");
        // SAFETY: a context that is not finalised, texts that end in NUL.
        let answer = self.pulse.during("getEnv", || unsafe { get_env(self.context, asked.as_ptr(), known) });
        if answer.is_null() || answer == known {
            return Ok(None);
        }
        // SAFETY: the contract: a text that ends in NUL.
        let copy = unsafe { CStr::from_ptr(answer) }.to_owned();
        plausible(name, &copy)?;
        Ok(Some(Answer { text: answer, copy }))
    }

    /// What an answer has become; nothing if it is what it was.
    pub(super) fn change(&self, answer: &Answer) -> Option<String> {
        // SAFETY: by the contract the text lives until `finalize`, which has not been called.
        let now = unsafe { CStr::from_ptr(answer.text) };
        (now != answer.copy.as_c_str()).then(|| format!("expected {:?} to stay, found {now:?}", answer.copy))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let finalize = self.table.entries().finalize.expect("a required entry, which was checked");
        // SAFETY: a context that is not finalised, and not used again.
        let code = self.pulse.during("finalize", || unsafe { finalize(self.context) });
        if code != 0 {
            let failed = Failed { call: "finalize", code, told: code, ..Failed::default() };
            self.pulse.complain(format!("expected ending to succeed, found {failed}"));
        }
    }
}

/// A text that can be a value.
fn plausible(name: &str, answer: &CStr) -> Outcome<()> {
    let bytes = answer.to_bytes();
    let short: String = name.chars().take(SHOWN).collect();
    if bytes.len() > MOST_BYTES {
        return breach(format!("{short}: expected at most {MOST_BYTES} bytes, found {}", bytes.len()));
    }
    match answer.to_str() {
        Err(_) => breach(format!("{short}: expected a value in UTF-8, found {answer:?}")),
        Ok(text) if text.contains(['\n', '\r']) => {
            breach(format!("{short}: expected a value of one line, found {answer:?}"))
        }
        Ok(_) => Ok(()),
    }
}

/// Longer values can only be a mistake.
const MOST_BYTES: usize = 64 << 10;
/// As much of a name is told.
const SHOWN: usize = 40;
