//! Finding a profiler, and checking its table.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use ccl_plugin::__ProfilerModule;
use ccl_plugin::profiler::c::{CclProfilerV1, PROFILER_SYMBOL, PROFILER_VERSION};
use ccl_plugin_nccl::profiler::Plugin;
use libloading::os::unix::Library;
use once_cell::sync::Lazy;

use super::nccl;
use crate::NetPlugin;
use crate::check::{all_there, check_layout, name_of, whole_table};
use crate::library::{address, open};
use crate::search::{Candidate, Place, Verdict, directories, places_for};

/// A profiler whose table was checked. Lives as long as the process.
pub(super) struct LoadedProfiler {
    pub(super) table: CclProfilerV1,
    pub(super) name: String,
    pub(super) file: Option<PathBuf>,
    pub(super) how: String,
    /// The contracts that its file offers, by symbol.
    versions: Vec<String>,
    /// The plugin behind the table, if it was made for NCCL: then it makes contexts, and not the table.
    pub(super) nccl: Option<&'static Plugin>,
}

/// Loads the first usable profiler that `spec` means: names and files separated by commas; else that of the
/// library of `net`, as with NCCL, where one file may have plugins of several kinds.
pub(super) fn load_profiler(
    spec: &str,
    net: Option<NetPlugin>,
) -> (Vec<Candidate>, Option<&'static LoadedProfiler>) {
    let directories = directories();
    let mut candidates = Vec::new();
    for entry in spec.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        for place in places_for("profiler", entry, &directories) {
            let (candidate, loaded) = try_place(&place);
            candidates.push(candidate);
            if loaded.is_some() {
                return (candidates, loaded);
            }
        }
    }
    let Some(place) = net.and_then(place_of) else { return (candidates, None) };
    let (mut candidate, loaded) = try_place(&place);
    candidate.verdict = match candidate.verdict {
        Verdict::Chosen(how) => Verdict::Chosen(format!("{how}; it is the network's library")),
        Verdict::Refused(why) => Verdict::Refused(format!("{why}; it is the network's library")),
    };
    candidates.push(candidate);
    (candidates, loaded)
}

/// Where a network came from, if that is not this program by its own table.
fn place_of(net: NetPlugin) -> Option<Place> {
    match net.file() {
        Some(file) => Some(Place::File(file.to_path_buf())),
        None => net.is_made_for_nccl().then_some(Place::Program),
    }
}

/// A profiler that is part of this program.
pub(super) fn link_profiler(table: &'static CclProfilerV1) -> Result<&'static LoadedProfiler, String> {
    // SAFETY: a static table of its own size.
    let (table, name) = unsafe { check(table) }?;
    let how = "linked in".to_string();
    let profiler = LoadedProfiler { table, name, file: None, how, versions: Vec::new(), nccl: None };
    Ok(Box::leak(Box::new(profiler)))
}

/// Reads and checks a table.
///
/// # Safety
///
/// `table` is aligned and readable for 8 bytes, and for as many as its first field says if that is
/// plausible; what it points to lives forever.
pub(super) unsafe fn check(table: *const CclProfilerV1) -> Result<(CclProfilerV1, String), String> {
    // SAFETY: the caller's contract; null entries are `None`.
    let (table, name) = unsafe {
        let table = whole_table(table, PROFILER_VERSION)?;
        (table, name_of(table.name)?)
    };
    all_there(&[
        ("init", table.init.is_none()),
        ("startEvent", table.start_event.is_none()),
        ("stopEvent", table.stop_event.is_none()),
        ("recordEventState", table.record_event_state.is_none()),
        ("finalize", table.finalize.is_none()),
    ])?;
    Ok((table, name.to_string()))
}

fn try_place(place: &Place) -> (Candidate, Option<&'static LoadedProfiler>) {
    let file = place.name();
    let key = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    // Held while loading: two threads that want the same file get the same profiler.
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(found) = loaded.get(&key) {
        let verdict = Verdict::Chosen(format!("profiler {}, {}, already loaded", found.name, found.how));
        return (Candidate { file: file.into(), versions: found.versions.clone(), verdict }, Some(found));
    }
    let library = match open(place) {
        Ok(library) => library,
        Err(why) => return (Candidate::refused(file, Vec::new(), why), None),
    };
    let versions = versions_of(&library);
    match profiler_of(&library, &versions) {
        Ok(Found { table, name, how, nccl }) => {
            let verdict = Verdict::Chosen(format!("profiler {name}, {how}"));
            let from = matches!(place, Place::File(_)).then(|| file.to_path_buf());
            let profiler = LoadedProfiler { table, name, file: from, how, versions: versions.clone(), nccl };
            let profiler: &'static LoadedProfiler = Box::leak(Box::new(profiler));
            loaded.insert(key, profiler);
            (Candidate { file: file.into(), versions, verdict }, Some(profiler))
        }
        Err(why) => (Candidate::refused(file, versions, why), None),
    }
}

fn versions_of(library: &Library) -> Vec<String> {
    let ours = std::iter::once(PROFILER_SYMBOL.to_string_lossy().into_owned());
    ours.chain(nccl::symbols()).filter(|symbol| !address(library, symbol).is_null()).collect()
}

/// What a library has for us.
struct Found {
    table: CclProfilerV1,
    name: String,
    how: String,
    nccl: Option<&'static Plugin>,
}

/// The layout check if the library was written in Rust, then the table itself; else NCCL's newest.
fn profiler_of(library: &Library, versions: &[String]) -> Result<Found, String> {
    let table: *const CclProfilerV1 = address(library, &PROFILER_SYMBOL.to_string_lossy()).cast();
    if table.is_null() {
        let (plugin, how) = nccl::profiler_of(library, versions)?;
        let name = plugin.name().to_string();
        return Ok(Found { table: *Plugin::table(), name, how, nccl: Some(plugin) });
    }
    // First, because a table of another layout may have anything where its name should be.
    let how = check_layout::<__ProfilerModule>(library)?.to_string();
    // SAFETY: by the contract of the symbol, a table of this type or of another size and version, which is found
    // out before anything else is read; libraries are never closed.
    unsafe { check(table) }.map(|(table, name)| Found { table, name, how, nccl: None })
}

/// Every profiler of this process: the profilers' part of the table of loaded plugins.
static LOADED: Lazy<Mutex<HashMap<PathBuf, &'static LoadedProfiler>>> = Lazy::new(Mutex::default);

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn stop(_: *mut std::ffi::c_void, _: *mut std::ffi::c_void, _: u64) -> i32 {
        0
    }

    fn verdict(table: &CclProfilerV1) -> String {
        // SAFETY: a whole table.
        unsafe { check(table) }.err().unwrap_or_default()
    }

    #[test]
    fn wrong_tables_are_refused_in_words() {
        let table = CclProfilerV1 { name: c"x".as_ptr(), stop_event: Some(stop), ..CclProfilerV1::EMPTY };
        assert!(verdict(&table).contains("the entry init"));
        assert!(verdict(&CclProfilerV1 { version: 2, ..table }).contains("version 1, found version 2"));
        assert!(verdict(&CclProfilerV1 { size: 40, ..table }).contains("found size 40"));
        assert!(verdict(&CclProfilerV1 { name: std::ptr::null(), ..table }).contains("a name, found a null"));
        assert!(verdict(&CclProfilerV1 { name: c"".as_ptr(), ..table }).contains("1 to 63 bytes"));
    }
}
