//! An env plugin at work.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::table::EnvTable;
use crate::log::{Host, LogFn, LogLine};

/// What a plugin says of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It leaves it as it is.
    Kept,
    /// It has no value, whatever was found.
    Nothing,
    /// It has this value.
    Value(String),
}

/// A line that a plugin logged.
pub(super) type Said = (tracing::Level, String);

/// A plugin with its context.
pub(super) struct Running {
    pub(super) table: EnvTable,
    context: *mut c_void,
    /// The process that initialised it, which is the one to finalise it.
    process: u32,
    /// What it logged in `init`, until somebody tells it: settings are read before there is a log.
    pub(super) said: Mutex<Vec<Said>>,
    /// Whether it may be called: read by those who call, written by the one who ends it.
    alive: RwLock<bool>,
}

// SAFETY: the contract lets `getEnv` be called from any thread.
unsafe impl Send for Running {}
// SAFETY: as above, at the same time as well; `finalize` is called under the lock of `alive`, once.
unsafe impl Sync for Running {}

impl Running {
    /// Initialises a plugin, which has no context yet; why that failed, with what it logged.
    pub(super) fn start(table: EnvTable) -> Result<Running, String> {
        let said = Arc::new(Mutex::new(Some(Vec::new())));
        let (lines, tracing) = (Arc::clone(&said), LogFn::tracing());
        let log = LogFn::new(move |line: &LogLine<'_>| {
            match &mut *lines.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(lines) => lines.push((line.level, line.message.to_owned())),
                None => tracing.give(line),
            }
        });
        let host = Host::leak(table.name, log);
        // SAFETY: the host's table lives as long as the process, or is not used after a failed init; the caller has
        // each plugin initialised once.
        let made = unsafe { table.init(&raw const (*host).table, env!("CARGO_PKG_VERSION")) };
        let said: Vec<Said> = said.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        match made {
            Ok(context) => {
                let (process, said, alive) = (std::process::id(), Mutex::new(said), RwLock::new(true));
                Ok(Running { table, context, process, said, alive })
            }
            Err((_, why)) => {
                // SAFETY: made above; a failed init keeps nothing of it.
                drop(unsafe { Box::from_raw(host) });
                let said = said.into_iter().filter(|(level, _)| *level <= tracing::Level::WARN);
                Err(std::iter::once(why).chain(said.map(|(_, line)| line)).collect::<Vec<_>>().join("; "))
            }
        }
    }

    /// What it says of a setting of which `found` is known; in words what is wrong with what it says.
    pub(super) fn ask(&self, name: &str, found: Option<&str>) -> Result<Answer, String> {
        // Nothing that has a NUL in it can be asked about.
        let (Ok(name), Ok(known)) = (CString::new(name), found.map(CString::new).transpose()) else {
            return Ok(Answer::Kept);
        };
        let alive = self.alive.read().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return Ok(Answer::Kept);
        }
        let known = known.as_ref().map_or(ptr::null(), |known| known.as_ptr());
        let get_env = self.table.entries().get_env.expect("a required entry, which was checked");
        // SAFETY: a context that is not finalised, which the lock held here says; texts that end in NUL.
        let answer = unsafe { get_env(self.context, name.as_ptr(), known) };
        if answer == known {
            return Ok(Answer::Kept);
        }
        if answer.is_null() {
            return Ok(Answer::Nothing);
        }
        // SAFETY: the contract: a text that ends in NUL and lives until `finalize`, which waits for the lock.
        let answer = unsafe { CStr::from_ptr(answer) };
        match answer.to_str() {
            Ok(text) if Some(text) == found => Ok(Answer::Kept),
            Ok(text) if text.trim().is_empty() => Ok(Answer::Nothing),
            Ok(text) => Ok(Answer::Value(text.to_owned())),
            Err(_) => Err(format!("expected a value in UTF-8, found {answer:?}")),
        }
    }

    /// Ends it, when the process exits. A call that does not return is waited for a moment only.
    pub(super) fn finalize(&self) {
        if self.process != std::process::id() {
            return;
        }
        let begun = Instant::now();
        loop {
            if let Ok(mut alive) = self.alive.try_write() {
                let finalize = self.table.entries().finalize.filter(|_| std::mem::take(&mut *alive));
                // SAFETY: a context that is not finalised, which `alive` said, and is not used again.
                finalize.map(|finalize| unsafe { finalize(self.context) });
                return;
            }
            if begun.elapsed() > FOR_CALLS {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How long the end of the process waits for calls that are running.
const FOR_CALLS: Duration = Duration::from_secs(1);
