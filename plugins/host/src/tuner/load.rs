//! Finding a tuner, and checking its table.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use ccl_plugin::__TunerModule;
use ccl_plugin::tuner::c::{CclTunerV1, TUNER_SYMBOL, TUNER_VERSION};
use libloading::os::unix::Library;
use once_cell::sync::Lazy;

use super::nccl;
use crate::check::{all_there, check_layout, name_of, whole_table};
use crate::library::{address, open};
use crate::search::{Candidate, Place, Verdict, directories, places_for};

/// A tuner whose table was checked. Lives as long as the process.
pub(super) struct LoadedTuner {
    pub(super) table: CclTunerV1,
    pub(super) name: String,
    pub(super) file: Option<PathBuf>,
    pub(super) how: String,
    /// The contracts that its file offers, by symbol.
    versions: Vec<String>,
    /// The plugin behind the table, if it was made for NCCL: then it makes contexts, and not the table.
    pub(super) nccl: Option<&'static ccl_plugin_nccl::tuner::Plugin>,
    /// Whether a context of it did not return in time.
    pub(super) is_late: AtomicBool,
}

/// What a library has for us.
pub(super) struct Found {
    pub(super) table: CclTunerV1,
    pub(super) name: String,
    pub(super) how: String,
    pub(super) nccl: Option<&'static ccl_plugin_nccl::tuner::Plugin>,
}

/// Loads the first usable tuner that `spec` means: names and files separated by commas.
pub(super) fn load_tuner(spec: &str) -> (Vec<Candidate>, Option<&'static LoadedTuner>) {
    let directories = directories();
    let mut candidates = Vec::new();
    for entry in spec.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        for place in places_for("tuner", entry, &directories) {
            let (candidate, loaded) = try_place(&place);
            candidates.push(candidate);
            if loaded.is_some() {
                return (candidates, loaded);
            }
        }
    }
    (candidates, None)
}

/// The tuner of a library that was opened for something else.
pub(super) fn load_file(file: &Path) -> (Candidate, Option<&'static LoadedTuner>) {
    try_place(&Place::File(file.to_path_buf()))
}

/// A tuner that is part of this program; each call makes another.
pub(super) fn link(table: &'static CclTunerV1) -> Result<&'static LoadedTuner, String> {
    // SAFETY: a static table of its own size.
    let (table, name) = unsafe { check(table) }?;
    Ok(leak(Found { table, name, how: "linked in".to_string(), nccl: None }, None, Vec::new()))
}

fn try_place(place: &Place) -> (Candidate, Option<&'static LoadedTuner>) {
    let name = place.name();
    let (key, file) = match place {
        Place::File(file) => (file.canonicalize().unwrap_or_else(|_| file.clone()), Some(file.clone())),
        Place::Program => (PathBuf::new(), None),
    };
    // Held while loading: two threads that want the same file get the same tuner.
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(found) = loaded.get(&key) {
        let verdict = Verdict::Chosen(format!("tuner {}, {}, already loaded", found.name, found.how));
        return (Candidate { file: name.into(), versions: found.versions.clone(), verdict }, Some(found));
    }
    let library = match open(place) {
        Ok(library) => library,
        Err(why) => return (Candidate::refused(name, Vec::new(), why), None),
    };
    let versions = versions_of(&library);
    match tuner_of(&library, &versions) {
        Ok(found) => {
            let verdict = Verdict::Chosen(format!("tuner {}, {}", found.name, found.how));
            let tuner = leak(found, file, versions.clone());
            loaded.insert(key, tuner);
            (Candidate { file: name.into(), versions, verdict }, Some(tuner))
        }
        Err(why) => (Candidate::refused(name, versions, why), None),
    }
}

fn leak(found: Found, file: Option<PathBuf>, versions: Vec<String>) -> &'static LoadedTuner {
    let Found { table, name, how, nccl } = found;
    Box::leak(Box::new(LoadedTuner {
        table,
        name,
        file,
        how,
        versions,
        nccl,
        is_late: AtomicBool::new(false),
    }))
}

fn versions_of(library: &Library) -> Vec<String> {
    let ours = std::iter::once(TUNER_SYMBOL.to_string_lossy().into_owned());
    ours.chain(nccl::symbols()).filter(|symbol| !address(library, symbol).is_null()).collect()
}

/// The layout check if the library was written in Rust, then the table itself; else NCCL's newest.
fn tuner_of(library: &Library, versions: &[String]) -> Result<Found, String> {
    let table: *const CclTunerV1 = address(library, &TUNER_SYMBOL.to_string_lossy()).cast();
    if table.is_null() {
        return nccl::tuner_of(library, versions);
    }
    // First, because a table of another layout may have anything where its name should be.
    let how = check_layout::<__TunerModule>(library)?.to_string();
    // SAFETY: by the contract of the symbol, a table of this type or of another size and version, which is found
    // out before anything else is read; libraries are never closed.
    unsafe { check(table) }.map(|(table, name)| Found { table, name, how, nccl: None })
}

/// Reads and checks a table.
///
/// # Safety
///
/// `table` is aligned and readable for 8 bytes, and for as many as its first field says if that is
/// plausible; what it points to lives forever.
unsafe fn check(table: *const CclTunerV1) -> Result<(CclTunerV1, String), String> {
    // SAFETY: the caller's contract; null entries are `None`.
    let (table, name) = unsafe {
        let table = whole_table(table, TUNER_VERSION)?;
        (table, name_of(table.name)?)
    };
    all_there(&[
        ("init", table.init.is_none()),
        ("advise", table.advise.is_none()),
        ("finalize", table.finalize.is_none()),
    ])?;
    Ok((table, name.to_string()))
}

/// Every tuner of this process, the tuners' part of the table of loaded plugins; the program's own has no path.
static LOADED: Lazy<Mutex<HashMap<PathBuf, &'static LoadedTuner>>> = Lazy::new(Mutex::default);

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn finalize(_: *mut std::ffi::c_void) -> i32 {
        0
    }

    fn verdict(table: &CclTunerV1) -> String {
        // SAFETY: a whole table.
        unsafe { check(table) }.err().unwrap_or_default()
    }

    #[test]
    fn wrong_tables_are_refused_in_words() {
        let table = CclTunerV1 { name: c"x".as_ptr(), finalize: Some(finalize), ..CclTunerV1::EMPTY };
        assert!(verdict(&table).contains("the entry init"));
        assert!(verdict(&CclTunerV1 { version: 2, ..table }).contains("version 1, found version 2"));
        assert!(verdict(&CclTunerV1 { size: 16, ..table }).contains("found size 16"));
        assert!(verdict(&CclTunerV1 { name: std::ptr::null(), ..table }).contains("a name, found a null"));
        assert!(verdict(&CclTunerV1 { name: c"".as_ptr(), ..table }).contains("1 to 63 bytes"));
    }
}
