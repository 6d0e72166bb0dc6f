//! Opening a library, once and for ever.

use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use abi_stable::library::{AbiHeaderRef, ROOT_MODULE_LOADER_NAME_WITH_NUL};
use ccl_plugin::__NetModule;
use ccl_plugin::c::{CclNetV1, NET_SYMBOL};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use once_cell::sync::Lazy;

use crate::check::{CheckedNet, check_net};
use crate::fault::{FaultNet, FaultRules};
use crate::net::NetPlugin;
use crate::search::{Candidate, Verdict, directories, files_for};

/// A network whose table was checked. Lives as long as the process.
pub(crate) struct LoadedNet {
    pub(crate) checked: CheckedNet,
    pub(crate) file: Option<PathBuf>,
    pub(crate) how: String,
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
        for file in files_for("net", entry, &directories) {
            let (candidate, loaded) = try_file(&file);
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
    let net: &'static LoadedNet =
        Box::leak(Box::new(LoadedNet { checked, file: None, how: "linked in".to_string(), wraps: None }));
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
    let net: &'static LoadedNet =
        Box::leak(Box::new(LoadedNet { checked, file: inner.file().map(Path::to_path_buf), how, wraps }));
    loaded.insert(Key::Faulty(name), net);
    Ok(net)
}

/// The network, and its faults, that a name from [`Wrapped`] means.
pub(crate) fn wrapped(name: &str) -> Option<(NetPlugin, FaultRules)> {
    let loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let wraps = loaded.get(&Key::Faulty(name.to_string()))?.wraps.as_ref()?;
    Some((wraps.inner, wraps.rules))
}

fn try_file(file: &Path) -> (Candidate, Option<&'static LoadedNet>) {
    let key = Key::File(file.canonicalize().unwrap_or_else(|_| file.to_path_buf()));
    // Held while loading: two threads that want the same file get the same network.
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(found) = loaded.get(&key) {
        let verdict = Verdict::Chosen(format!("{}, already loaded", found.how));
        let versions = vec![NET_SYMBOL.to_string_lossy().into_owned()];
        return (Candidate { file: file.to_path_buf(), versions, verdict }, Some(found));
    }
    let library = match open(file) {
        Ok(library) => library,
        Err(why) => return (Candidate::refused(file, Vec::new(), why), None),
    };
    let versions = versions_of(&library);
    match net_of(&library, &versions) {
        Ok((checked, how)) => {
            let file = file.to_path_buf();
            let verdict = Verdict::Chosen(format!("network {}, {how}", checked.name));
            let net: &'static LoadedNet =
                Box::leak(Box::new(LoadedNet { checked, file: Some(file.clone()), how, wraps: None }));
            loaded.insert(key, net);
            (Candidate { file, versions, verdict }, Some(net))
        }
        Err(why) => (Candidate::refused(file, versions, why), None),
    }
}

/// Opens without ever closing: even a library we refuse may have started threads.
fn open(file: &Path) -> Result<ManuallyDrop<Library>, String> {
    // SAFETY: initialisers run with this process's rights; loading a plugin is asking for that.
    let opened = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    opened.map(ManuallyDrop::new).map_err(|error| {
        let words = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("cannot be opened: {words}")
    })
}

fn versions_of(library: &Library) -> Vec<String> {
    let nccl = (6..=12).map(|version| format!("ncclNetPlugin_v{version}"));
    let ours = std::iter::once(NET_SYMBOL.to_string_lossy().into_owned());
    ours.chain(nccl).filter(|symbol| has(library, symbol)).collect()
}

fn has(library: &Library, symbol: &str) -> bool {
    // SAFETY: only the address is looked at.
    unsafe { library.get::<*const u8>(symbol.as_bytes()) }.is_ok_and(|address| !address.is_null())
}

/// The layout check if the library was written in Rust, then the table itself.
fn net_of(library: &Library, versions: &[String]) -> Result<(CheckedNet, String), String> {
    let symbol = |name: &CStr| {
        // SAFETY: by the contract, the symbol is a table of this type or of another size and
        // version, which `check_net` finds out before it reads further.
        unsafe { library.get::<*const CclNetV1>(name.to_bytes_with_nul()) }.map(|found| *found)
    };
    let table = match symbol(NET_SYMBOL) {
        Ok(table) if !table.is_null() => table,
        _ if versions.is_empty() => return Err(format!("exports no {}", NET_SYMBOL.to_string_lossy())),
        _ => return Err("only offers NCCL's contract, for which there is no adapter here".to_string()),
    };
    // First, because a table of another layout may have anything where its name should be.
    let how = check_layout(library)?;
    // SAFETY: by the contract of the symbol; libraries are never closed.
    unsafe { check_net(table) }.map(|checked| (checked, how.to_string()))
}

/// Compares layouts through `abi_stable` if the library has its header.
fn check_layout(library: &Library) -> Result<&'static str, String> {
    // SAFETY: `abi_stable` exports its header under this name; the reference is its address.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL.as_bytes()) };
    let Ok(header) = header else { return Ok("a C table") };
    (*header)
        .upgrade()
        .and_then(|header| header.init_root_module::<__NetModule>())
        .map(|_| "a Rust table whose layout matches")
        .map_err(|error| format!("its layout does not match this host's: {}", one_line(&error.to_string())))
}

/// Layout reports fill pages; the log wants a line.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = words.join(" ");
    if line.len() > LINE_BYTES {
        let cut = (0..=LINE_BYTES).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(cut);
        line.push('…');
    }
    line
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Linked(usize),
    File(PathBuf),
    Faulty(String),
}

const LINE_BYTES: usize = 600;

/// Every network of this process, the one global of ccl.
static LOADED: Lazy<Mutex<HashMap<Key, &'static LoadedNet>>> = Lazy::new(Mutex::default);
