//! Finding an env plugin: each is loaded and initialised once, whatever asks for it.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Mutex, Once, PoisonError, TryLockError};

use once_cell::sync::Lazy;

use super::plugin::{Answer, Running};
use super::table::{EnvTable, versions_of};
use crate::library::{address, open};
use crate::log::{LogFn, LogLine};
use crate::search::{Candidate, Place, Verdict, directories, places_for};

/// An env plugin that is initialised. Lives as long as the process; copies are the same plugin.
#[derive(Clone, Copy)]
pub struct EnvPlugin(&'static Running);

impl EnvPlugin {
    /// Loads and initialises the first usable plugin of `spec`: names ("vault"), files or paths, separated by commas. A
    /// name means `libccl-env-<name>.so`, `libccl_env_<name>.so`, or as NCCL has it, `libnccl-env-<name>.so`.
    ///
    /// Returns every candidate that was considered. The same `spec` gives the same again, also where there was none: a
    /// plugin that failed is not tried twice. Blocks for the disk and for `init`.
    pub fn load(spec: &str) -> (Vec<Candidate>, Option<EnvPlugin>) {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = loaded.by_spec.get(spec) {
            return outcome.clone();
        }
        let outcome = loaded.search(spec);
        loaded.by_spec.insert(spec.to_owned(), outcome.clone());
        outcome
    }

    /// What it calls itself.
    pub fn name(&self) -> &'static str {
        self.0.table.name
    }

    /// What it says of the setting `name`, of which the environment or a file says `found`. Any thread may call it. After
    /// the plugin's end, when the process exits, it leaves everything as it is.
    ///
    /// # Errors
    ///
    /// It answered with what is no text; in words.
    pub fn ask(&self, name: &str, found: Option<&str>) -> Result<Answer, String> {
        self.0.ask(name, found)
    }

    /// Gives what the plugin logged in `init` to this process's `tracing`, once: settings are read before there is a log.
    pub fn tell_what_it_said(&self) {
        for (level, message) in
            std::mem::take(&mut *self.0.said.lock().unwrap_or_else(PoisonError::into_inner))
        {
            let (plugin, message) = (self.name(), message.as_str());
            LogFn::tracing().give(&LogLine { plugin, level, file: None, line: 0, message });
        }
    }
}

impl fmt::Debug for EnvPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnvPlugin").field(&self.name()).finish()
    }
}

#[derive(Default)]
struct Loaded {
    by_spec: HashMap<String, (Vec<Candidate>, Option<EnvPlugin>)>,
    /// By the table's address, since a library may be reached by several names.
    started: HashMap<usize, Result<EnvPlugin, String>>,
}

impl Loaded {
    fn search(&mut self, spec: &str) -> (Vec<Candidate>, Option<EnvPlugin>) {
        let directories = directories();
        let mut candidates = Vec::new();
        for entry in spec.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            for place in places_for("env", entry, &directories) {
                let (candidate, found) = self.try_place(&place);
                candidates.push(candidate);
                if found.is_some() {
                    return (candidates, found);
                }
            }
        }
        (candidates, None)
    }

    fn try_place(&mut self, place: &Place) -> (Candidate, Option<EnvPlugin>) {
        let file = place.name().to_path_buf();
        let library = match open(place) {
            Ok(library) => library,
            Err(why) => return (Candidate::refused(file, Vec::new(), why), None),
        };
        let versions = versions_of(&library);
        let Some(best) = best(&versions) else {
            let why = EnvTable::of(&library, &versions).err().unwrap_or_default();
            return (Candidate::refused(file, versions, why), None);
        };
        let start = || {
            let running = Running::start(EnvTable::of(&library, &versions)?)?;
            finalize_at_exit();
            Ok(EnvPlugin(Box::leak(Box::new(running))))
        };
        let started = self.started.entry(address(&library, best) as usize).or_insert_with(start).clone();
        match started {
            Ok(plugin) => {
                let verdict =
                    Verdict::Chosen(format!("env plugin {}, {}", plugin.name(), plugin.0.table.how));
                (Candidate { file, versions, verdict }, Some(plugin))
            }
            Err(why) => (Candidate::refused(file, versions, why), None),
        }
    }
}

/// The symbol whose table is taken: ours stands first, NCCL's newest last.
fn best(versions: &[String]) -> Option<&str> {
    versions.iter().find(|symbol| symbol.starts_with("ccl")).or(versions.last()).map(String::as_str)
}

/// Sees to it that every plugin is told when the process exits.
fn finalize_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that unwinds nowhere and may be called at any time. That it could not be noted, for want of
        // memory, costs the plugin its `finalize`.
        unsafe { atexit(finalize_all) };
    });
}

extern "C" fn finalize_all() {
    let loaded = match LOADED.try_lock() {
        Ok(loaded) => loaded,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Somebody is loading one: it is not waited for.
        Err(TryLockError::WouldBlock) => return,
    };
    for plugin in loaded.started.values().flatten() {
        plugin.0.finalize();
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Every env plugin of this process: their part of the table of loaded plugins.
static LOADED: Lazy<Mutex<Loaded>> = Lazy::new(Mutex::default);
