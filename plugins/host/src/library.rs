//! Opening a library, once and for ever.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ccl_plugin::__NetModule;
use ccl_plugin::c::{CclNetV1, NET_SYMBOL};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use once_cell::sync::Lazy;

use crate::check::{CheckedNet, check_layout, check_net};
use crate::fault::{FaultNet, FaultRules};
use crate::nccl;
use crate::net::NetPlugin;
use crate::search::{Candidate, Place, Verdict, directories, places_for};

/// A network whose table was checked. Lives as long as the process.
pub(crate) struct LoadedNet {
    pub(crate) checked: CheckedNet,
    pub(crate) file: Option<PathBuf>,
    pub(crate) how: String,
    /// The contracts that its file offers, by symbol.
    versions: Vec<String>,
    /// The plugin behind the table, if it was made for NCCL: then it makes contexts, and not the table.
    pub(crate) nccl: Option<&'static ccl_plugin_nccl::net::Plugin>,
    pub(crate) wraps: Option<Wrapped>,
}

/// A network with faults around another.
pub(crate) struct Wrapped {
    pub(crate) inner: NetPlugin,
    rules: FaultRules,
    /// What its `init` is told to find this.
    pub(crate) name: String,
}

/// Loads the first usable network that `spec` means: names and files separated by commas.
pub(crate) fn load_net(spec: &str) -> (Vec<Candidate>, Option<&'static LoadedNet>) {
    let directories = directories();
    let mut candidates = Vec::new();
    for entry in spec.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        for place in places_for("net", entry, &directories) {
            let (candidate, loaded) = try_place(&place);
            candidates.push(candidate);
            if loaded.is_some() {
                return (candidates, loaded);
            }
        }
    }
    (candidates, None)
}

/// A network that is part of this program; the same table gives the same network.
pub(crate) fn link_net(table: &'static CclNetV1) -> Result<&'static LoadedNet, String> {
    let key = Key::Linked(std::ptr::from_ref(table) as usize);
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(found) = loaded.get(&key) {
        return Ok(found);
    }
    // SAFETY: a static table of its own size.
    let checked = unsafe { check_net(table) }?;
    let how = "linked in".to_string();
    let net: &'static LoadedNet = Box::leak(Box::new(LoadedNet {
        checked,
        file: None,
        how,
        versions: Vec::new(),
        nccl: None,
        wraps: None,
    }));
    loaded.insert(key, net);
    Ok(net)
}

/// A network with faults around another; the same again for the same rules.
pub(crate) fn wrap_net(inner: NetPlugin, text: &str) -> Result<&'static LoadedNet, String> {
    let rules = FaultRules::parse(text)?;
    let name = format!("{:p}?{text}", inner.table());
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(found) = loaded.get(&Key::Faulty(name.clone())) {
        return Ok(found);
    }
    // SAFETY: a static table of its own size.
    let mut checked = unsafe { check_net(ccl_plugin::net::table::<FaultNet>()) }?;
    // What ranks compare: those with faults and those without speak the same over the wire.
    checked.name = inner.name().to_string();
    let how = format!("{}, with faults on purpose: {text}", inner.checked_by());
    let wraps = Some(Wrapped { inner, rules, name: name.clone() });
    let (file, versions) = (inner.file().map(Path::to_path_buf), Vec::new());
    let net = LoadedNet { checked, file, how, versions, nccl: None, wraps };
    let net: &'static LoadedNet = Box::leak(Box::new(net));
    loaded.insert(Key::Faulty(name), net);
    Ok(net)
}

/// The network, and its faults, that a name from [`Wrapped`] means.
pub(crate) fn wrapped(name: &str) -> Option<(NetPlugin, FaultRules)> {
    let loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let wraps = loaded.get(&Key::Faulty(name.to_string()))?.wraps.as_ref()?;
    Some((wraps.inner, wraps.rules))
}

fn try_place(place: &Place) -> (Candidate, Option<&'static LoadedNet>) {
    let name = place.name();
    let (key, file) = match place {
        Place::File(file) => {
            (Key::File(file.canonicalize().unwrap_or_else(|_| file.clone())), Some(file.clone()))
        }
        Place::Program => (Key::Program, None),
    };
    // Held while loading: two threads that want the same file get the same network.
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(found) = loaded.get(&key) {
        let verdict =
            Verdict::Chosen(format!("network {}, {}, already loaded", found.checked.name, found.how));
        return (Candidate { file: name.into(), versions: found.versions.clone(), verdict }, Some(found));
    }
    let library = match open(place) {
        Ok(library) => library,
        Err(why) => return (Candidate::refused(name, Vec::new(), why), None),
    };
    let versions = versions_of(&library);
    match net_of(&library, &versions) {
        Ok(Found { checked, how, nccl }) => {
            let verdict = Verdict::Chosen(format!("network {}, {how}", checked.name));
            let file =
                file.map(|file| where_found(&library, &versions).filter(|_| is_bare(&file)).unwrap_or(file));
            let net = LoadedNet { checked, file, how, versions: versions.clone(), nccl, wraps: None };
            let net: &'static LoadedNet = Box::leak(Box::new(net));
            loaded.insert(key, net);
            (Candidate { file: name.into(), versions, verdict }, Some(net))
        }
        Err(why) => (Candidate::refused(name, versions, why), None),
    }
}

/// Whether a file exports one of these symbols. Loads it for good, which runs its initialisers.
///
/// # Errors
///
/// It cannot be opened.
pub fn exported(file: &Path, mut symbols: impl Iterator<Item = String>) -> Result<bool, String> {
    let library = open(&Place::File(file.to_path_buf()))?;
    Ok(symbols.any(|symbol| !address(&library, &symbol).is_null()))
}

/// Opens without ever closing: even a library we refuse may have started threads.
pub(crate) fn open(place: &Place) -> Result<ManuallyDrop<Library>, String> {
    let opened = match place {
        // SAFETY: initialisers run with this process's rights; loading a plugin is asking for that.
        Place::File(file) => unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) },
        Place::Program => Ok(Library::this()),
    };
    opened.map(ManuallyDrop::new).map_err(|error| {
        let words = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("cannot be opened: {words}")
    })
}

/// Whether the system's loader looks for a file of this name.
fn is_bare(file: &Path) -> bool {
    file.parent().is_none_or(|parent| parent.as_os_str().is_empty())
}

/// The file that a library with one of these symbols was loaded from, as the system's loader knows it.
fn where_found(library: &Library, symbols: &[String]) -> Option<PathBuf> {
    let known = address(library, symbols.first()?);
    // SAFETY: all zeros is an empty answer, and `dladdr` only looks the address up.
    let (found, at) = unsafe {
        let mut at: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(known, &raw mut at), at)
    };
    if found == 0 || at.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the library: for ever.
    let name = unsafe { CStr::from_ptr(at.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn versions_of(library: &Library) -> Vec<String> {
    let ours = std::iter::once(NET_SYMBOL.to_string_lossy().into_owned());
    ours.chain(nccl::symbols()).filter(|symbol| !address(library, symbol).is_null()).collect()
}

/// Where a symbol is; null if there is none.
pub(crate) fn address(library: &Library, symbol: &str) -> *const c_void {
    // SAFETY: only the address is looked at.
    unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.map_or(std::ptr::null(), |found| *found)
}

/// What a library has for us.
pub(crate) struct Found {
    pub(crate) checked: CheckedNet,
    pub(crate) how: String,
    pub(crate) nccl: Option<&'static ccl_plugin_nccl::net::Plugin>,
}

/// The layout check if the library was written in Rust, then the table itself; else NCCL's newest.
fn net_of(library: &Library, versions: &[String]) -> Result<Found, String> {
    let table: *const CclNetV1 = address(library, &NET_SYMBOL.to_string_lossy()).cast();
    if table.is_null() {
        return nccl::net_of(library, versions);
    }
    // First, because a table of another layout may have anything where its name should be.
    let how = check_layout::<__NetModule>(library)?.to_string();
    // SAFETY: by the contract of the symbol, a table of this type or of another size and version, which is found
    // out before anything else is read; libraries are never closed.
    unsafe { check_net(table) }.map(|checked| Found { checked, how, nccl: None })
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Linked(usize),
    File(PathBuf),
    Program,
    Faulty(String),
}

/// Every network of this process, the one global of ccl.
static LOADED: Lazy<Mutex<HashMap<Key, &'static LoadedNet>>> = Lazy::new(Mutex::default);
