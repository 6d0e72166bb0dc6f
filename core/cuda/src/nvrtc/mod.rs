//! NVRTC, the compiler that programs load: sources in, machine code or PTX out. It needs no driver and no device.

mod table;

use std::ffi::{CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub use self::table::NVRTC_SYMBOLS;
use self::table::{Program, Table};
use crate::load::reason;

/// The oldest NVRTC that ccl uses.
pub const MINIMUM_NVRTC: (u32, u32) = (12, 0);

/// A loaded NVRTC. Cheap to clone; usable from every thread, though it compiles one program at a time. The library is
/// never unloaded.
#[derive(Clone)]
pub struct Nvrtc {
    table: Arc<Table>,
    version: (u32, u32),
    file: PathBuf,
}

/// Sources that are compiled as one.
#[derive(Clone, Copy, Debug)]
pub struct NvrtcSource<'a> {
    /// What messages call it.
    pub name: &'a str,
    /// The text.
    pub text: &'a str,
    /// What it includes, as (name as it stands in `#include`, text).
    pub headers: &'a [(&'a str, &'a str)],
}

/// What code is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvrtcTarget {
    /// A cubin for devices of this capability, times ten: 90 is 9.0.
    Machine(u32),
    /// PTX for devices from this capability on.
    Portable(u32),
}

/// What came of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcCode {
    /// A cubin, or PTX without a zero at its end.
    pub image: Vec<u8>,
    /// What the compiler said although it succeeded; often nothing.
    pub log: String,
}

/// Why there is no NVRTC in a library. Not an error: most machines have none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcAbsent {
    /// No such library.
    #[error("{library} cannot be loaded ({reason})")]
    Library {
        /// What was looked for.
        library: String,
        /// What the dynamic loader said.
        reason: String,
    },
    /// A function is missing that every NVRTC has.
    #[error("{library} is no NVRTC of version {}.{} or newer: it lacks {symbol}", MINIMUM_NVRTC.0, MINIMUM_NVRTC.1)]
    MissingSymbol {
        /// Which library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// Older than what ccl uses.
    #[error(
        "{library} is NVRTC {}.{}, expected {}.{} or newer", found.0, found.1, MINIMUM_NVRTC.0, MINIMUM_NVRTC.1
    )]
    TooOld {
        /// Which library.
        library: String,
        /// Its version.
        found: (u32, u32),
    },
    /// It does not say its version.
    #[error("{library} cannot be used: {error}")]
    Failed {
        /// Which library.
        library: String,
        /// What it said.
        error: NvrtcError,
    },
}

/// A call of NVRTC that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// NVRTC answered with a code.
    #[error("{call} failed with {name} ({code}){}{}", if .log.is_empty() { "" } else { ": " }, beginning(.log))]
    Failed {
        /// The function.
        call: &'static str,
        /// Its code; newer ones may answer with codes that nobody knows here.
        code: i32,
        /// NVRTC's name for the code.
        name: String,
        /// What the compiler said, all of it; empty unless a compilation failed.
        log: String,
    },
    /// A text with a zero byte in it.
    #[error("{call}: expected {what} without zero bytes, found one")]
    Zero {
        /// The function that was not called.
        call: &'static str,
        /// Which text.
        what: &'static str,
    },
}

impl Nvrtc {
    /// Loads the library at `path`, or of this name if it has no folder. The answer for a path is kept.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn load(path: &Path) -> Result<Self, NvrtcAbsent> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = loaded.iter().find(|(known, _)| known == path) {
            return answer.clone();
        }
        let answer = open(path);
        match &answer {
            Ok(nvrtc) => {
                tracing::debug!(library = %nvrtc.file.display(), version = ?nvrtc.version, "NVRTC loaded")
            }
            Err(absent) => tracing::debug!("{absent}"),
        }
        loaded.push((path.to_owned(), answer.clone()));
        answer
    }

    /// Its version: (13, 0).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Where it was found, as far as the system tells.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The capabilities that it compiles for, times ten, in ascending order.
    ///
    /// # Errors
    ///
    /// NVRTC's.
    pub fn capabilities(&self) -> Result<Vec<u32>, NvrtcError> {
        let mut count = 0;
        // SAFETY: NVRTC stores one number.
        unsafe { self.table.nvrtcGetNumSupportedArchs(&raw mut count) }?;
        let mut found: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: NVRTC stores as many numbers as it just said.
        unsafe { self.table.nvrtcGetSupportedArchs(found.as_mut_ptr()) }?;
        let mut found: Vec<u32> = found.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Compiles for a target, with further options such as `--std=c++17`. Takes seconds, and a processor.
    ///
    /// # Errors
    ///
    /// What the compiler said.
    pub fn compile(
        &self,
        source: &NvrtcSource<'_>,
        target: NvrtcTarget,
        options: &[String],
    ) -> Result<NvrtcCode, NvrtcError> {
        let arch = match target {
            NvrtcTarget::Machine(capability) => format!("--gpu-architecture=sm_{capability}"),
            NvrtcTarget::Portable(capability) => format!("--gpu-architecture=compute_{capability}"),
        };
        let options: Vec<&str> = options.iter().map(String::as_str).chain([arch.as_str()]).collect();
        let compilation = Compilation::new(&self.table, source)?;
        compilation.compile(&options)?;
        let (table, program) = (&*self.table, compilation.program);
        let image = match target {
            NvrtcTarget::Machine(_) => fetched(
                // SAFETY: the program lives; NVRTC stores one number.
                |bytes| unsafe { table.nvrtcGetCUBINSize(program, bytes) },
                // SAFETY: the program lives; there is room for as many bytes as NVRTC said.
                |image| unsafe { table.nvrtcGetCUBIN(program, image) },
            ),
            NvrtcTarget::Portable(_) => fetched(
                // SAFETY: as above.
                |bytes| unsafe { table.nvrtcGetPTXSize(program, bytes) },
                // SAFETY: as above.
                |text| unsafe { table.nvrtcGetPTX(program, text) },
            )
            .map(without_zero),
        }?;
        Ok(NvrtcCode { image, log: compilation.log() })
    }
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc")
            .field("version", &self.version)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// One program of NVRTC's.
struct Compilation<'a> {
    table: &'a Table,
    program: Program,
}

impl<'a> Compilation<'a> {
    fn new(table: &'a Table, source: &NvrtcSource<'_>) -> Result<Self, NvrtcError> {
        let zero = |what| move |_| NvrtcError::Zero { call: "nvrtcCreateProgram", what };
        let text = CString::new(source.text).map_err(zero("a source"))?;
        let name = CString::new(source.name).map_err(zero("the name of a source"))?;
        let each = |part: fn(&(&str, &str)) -> String| {
            let texts = source.headers.iter().map(|header| CString::new(part(header)));
            texts.collect::<Result<Vec<_>, _>>().map_err(zero("a header"))
        };
        let (names, texts) = (each(|header| header.0.to_owned())?, each(|header| header.1.to_owned())?);
        let (name_list, text_list) = (pointers(&names), pointers(&texts));
        let count = c_int::try_from(names.len()).unwrap_or(c_int::MAX);
        let mut program = std::ptr::null_mut();
        // SAFETY: every text ends with a zero and outlives the call, which copies it; both lists have `count` entries.
        unsafe {
            table.nvrtcCreateProgram(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                text_list.as_ptr(),
                name_list.as_ptr(),
            )
        }?;
        Ok(Self { table, program })
    }

    fn compile(&self, options: &[&str]) -> Result<(), NvrtcError> {
        let zero = |_| NvrtcError::Zero { call: "nvrtcCompileProgram", what: "an option" };
        let options = options.iter().map(|option| CString::new(*option)).collect::<Result<Vec<_>, _>>();
        let options = options.map_err(zero)?;
        let list = pointers(&options);
        let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program lives; `count` options, each of which ends with a zero.
        let done = unsafe { self.table.nvrtcCompileProgram(self.program, count, list.as_ptr()) };
        done.map_err(|error| match error {
            NvrtcError::Failed { call, code, name, .. } => {
                NvrtcError::Failed { call, code, name, log: self.log() }
            }
            other => other,
        })
    }

    /// What the compiler said; empty if it does not even say that.
    fn log(&self) -> String {
        let (table, program) = (self.table, self.program);
        let log = fetched(
            // SAFETY: the program lives; NVRTC stores one number.
            |bytes| unsafe { table.nvrtcGetProgramLogSize(program, bytes) },
            // SAFETY: the program lives; there is room for as many bytes as NVRTC said.
            |text| unsafe { table.nvrtcGetProgramLog(program, text) },
        );
        String::from_utf8_lossy(&without_zero(log.unwrap_or_default())).trim().to_owned()
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        if let Err(error) = unsafe { self.table.nvrtcDestroyProgram(&raw mut self.program) } {
            tracing::debug!(%error, "a program of NVRTC's is left");
        }
    }
}

/// Bytes that NVRTC writes once it has said how many there are.
fn fetched(
    size: impl Fn(*mut usize) -> Result<(), NvrtcError>,
    write: impl Fn(*mut c_char) -> Result<(), NvrtcError>,
) -> Result<Vec<u8>, NvrtcError> {
    let mut bytes = 0;
    size(&raw mut bytes)?;
    let mut found = vec![0; bytes];
    if bytes > 0 {
        write(found.as_mut_ptr().cast())?;
    }
    Ok(found)
}

fn without_zero(mut text: Vec<u8>) -> Vec<u8> {
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    text
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// The first lines of what a compiler said.
fn beginning(log: &str) -> String {
    let lines: Vec<&str> = log.lines().take(LOG_LINES).collect();
    let more = log.lines().count().saturating_sub(LOG_LINES);
    match more {
        0 => lines.join("\n"),
        more => format!("{}\n({more} more lines)", lines.join("\n")),
    }
}

fn open(path: &Path) -> Result<Nvrtc, NvrtcAbsent> {
    let shown = path.display().to_string();
    let opened = library(path).map_err(|reason| NvrtcAbsent::Library { library: shown.clone(), reason })?;
    let table = Table::find(&opened, &shown)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC stores two numbers.
    unsafe { table.nvrtcVersion(&raw mut major, &raw mut minor) }
        .map_err(|error| NvrtcAbsent::Failed { library: shown.clone(), error })?;
    let version = (major.max(0).cast_unsigned(), minor.max(0).cast_unsigned());
    if version < MINIMUM_NVRTC {
        return Err(NvrtcAbsent::TooOld { library: shown, found: version });
    }
    let file = mapped(path).unwrap_or_else(|| path.to_owned());
    // Python packages put this part beside the library, where the library itself does not look.
    if let Some(folder) = file.parent().filter(|folder| folder.is_absolute()) {
        let part = folder.join(format!("libnvrtc-builtins.so.{}.{}", version.0, version.1));
        let _ = library(&part);
    }
    Ok(Nvrtc { table: Arc::new(table), version, file })
}

/// Loads a library for good.
fn library(path: &Path) -> Result<ManuallyDrop<libloading::Library>, String> {
    // SAFETY: loading runs the library's initialisers; it is NVIDIA's compiler, or what the caller puts in its place.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    opened.map(|opened| ManuallyDrop::new(opened.into())).map_err(|error| reason(&error))
}

/// Where a library of this process lies that was loaded by its name.
fn mapped(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let files = maps.lines().filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])));
    // The name is that of a link to a file with a longer one.
    let is_it =
        |file: &&Path| file.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name));
    files.into_iter().find(is_it).map(Path::to_owned)
}

const LOG_LINES: usize = 20;

/// Every library that was tried.
static LOADED: Mutex<Vec<(PathBuf, Result<Nvrtc, NvrtcAbsent>)>> = Mutex::new(Vec::new());
