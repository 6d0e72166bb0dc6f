//! A profiler that was loaded.

use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::{fmt, ptr};

use ccl_plugin::c::CclHostV1;
use ccl_plugin::profiler::c::{CclProfilerCommV1, CclProfilerV1, PROFILER_SYMBOL};

use super::context::{ProfilerContext, Watched};
use super::interest::Interest;
use super::load::{LoadedProfiler, link_profiler, load_profiler};
use crate::NetPlugin;
use crate::log::{Host, LogFn};
use crate::search::Candidate;

/// A profiler plugin, checked and ready to make contexts. Lives as long as the process; copies are the
/// same plugin.
#[derive(Clone, Copy)]
pub struct ProfilerPlugin(&'static LoadedProfiler);

/// A profiler that could not be had, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProfilerError(String);

impl ProfilerPlugin {
    /// Loads the first usable profiler of `spec`: names ("trace"), files ("libfoo.so") or paths,
    /// separated by commas. A name means `libccl-profiler-<name>.so` or `libccl_profiler_<name>.so` in
    /// `LD_LIBRARY_PATH`, around the executable, or where the system's loader looks; else what it means to NCCL, which
    /// is a file of that name or `libnccl-profiler-<name>.so`. `STATIC_PLUGIN` is a profiler in the program itself.
    ///
    /// A library with the symbol `cclProfiler_v1` is used by it. Of one made for NCCL the newest of `ncclProfiler_v1` to
    /// `_v6` is taken; without any it is refused.
    ///
    /// Returns every candidate that was considered, and the profiler or an error that repeats why each
    /// was refused. Runs the initialisers of the libraries it opens. Blocks for the disk.
    pub fn load(spec: &str) -> (Vec<Candidate>, Result<ProfilerPlugin, ProfilerError>) {
        ProfilerPlugin::load_beside(spec, None)
    }

    /// The same, and at last the library that `net` came from, which may have a profiler as well.
    pub fn load_beside(
        spec: &str,
        net: Option<NetPlugin>,
    ) -> (Vec<Candidate>, Result<ProfilerPlugin, ProfilerError>) {
        let (candidates, loaded) = load_profiler(spec, net);
        let result = loaded.map(ProfilerPlugin).ok_or_else(|| {
            let lines: Vec<String> = candidates.iter().map(ToString::to_string).collect();
            ProfilerError(format!("no usable profiler in \"{spec}\": {}", lines.join("; ")))
        });
        (candidates, result)
    }

    /// The profiler of a table that is part of this program; each call makes another.
    ///
    /// # Errors
    ///
    /// The table is not one of this contract.
    pub fn linked(table: &'static CclProfilerV1) -> Result<ProfilerPlugin, ProfilerError> {
        link_profiler(table).map(ProfilerPlugin).map_err(ProfilerError)
    }

    /// The profiler's name.
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// The file it came from; `None` if it is linked in.
    pub fn file(&self) -> Option<&'static Path> {
        self.0.file.as_deref()
    }

    /// The symbol of the contract it implements: `cclProfiler_v1`, or one of NCCL's.
    pub fn contract(&self) -> String {
        self.0.nccl.map_or_else(
            || PROFILER_SYMBOL.to_string_lossy().into_owned(),
            |plugin| ccl_plugin_nccl::profiler::symbol(plugin.version()),
        )
    }

    /// Whether it was made for NCCL: then it takes times itself, when it is called.
    pub fn is_made_for_nccl(&self) -> bool {
        self.0.nccl.is_some()
    }

    /// How it was checked, for the log.
    pub fn checked_by(&self) -> &'static str {
        &self.0.how
    }

    /// Makes a context for a communicator.
    ///
    /// Leaks the eight bytes of its mask, unless the plugin was made for NCCL, which has one for all: the plugin may write to them for as long as the process lives.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn init(&self, watched: Watched, log: LogFn) -> Result<ProfilerContext, ProfilerError> {
        let host = Host::leak(self.name(), log);
        let mask = if self.is_made_for_nccl() { &UNUSED } else { Box::leak(Box::new(AtomicU64::new(0))) };
        let interest = self.interest(mask);
        let comm = CclProfilerCommV1 {
            size: size_of::<CclProfilerCommV1>() as u32,
            rank: watched.rank,
            nranks: watched.nranks,
            nnodes: watched.nnodes,
            comm_id: watched.comm_id,
            process: u64::from(std::process::id()),
            name: ptr::null(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: `host` was just made.
        let table = unsafe { &raw const (*host).table };
        // SAFETY: `host` lives until the context is finalised; the mask lives on.
        let code = unsafe { self.init_raw(table, &comm, mask.as_ptr(), &raw mut raw) };
        if code == 0 {
            // SAFETY: `host` came from `Host::leak`, `raw` from this plugin's `init`.
            return Ok(unsafe { ProfilerContext::from_raw(*self, raw, host, interest, watched.rank) });
        }
        // SAFETY: made above; a failed init keeps nothing of it.
        drop(unsafe { Box::from_raw(host) });
        let found = ccl_plugin::Code(code);
        Err(ProfilerError(format!(
            "profiler {}: init: expected success, found {found}: see its log",
            self.name()
        )))
    }

    /// Its table, checked: for whoever checks plugins. `init` of one made for NCCL is [`ProfilerPlugin::init_raw`].
    pub fn table(&self) -> &'static CclProfilerV1 {
        &self.0.table
    }

    /// What a context asks for that was made with this mask.
    pub fn interest(&self, mask: &'static AtomicU64) -> Interest {
        self.0.nccl.map_or(Interest::of_word(mask), Interest::of_nccl)
    }

    /// The entry `init`, or what stands in its place: for whoever checks plugins.
    ///
    /// # Safety
    ///
    /// As `ccl_profiler.h` asks of a host.
    pub unsafe fn init_raw(
        &self,
        host: *const CclHostV1,
        comm: *const CclProfilerCommV1,
        mask: *mut u64,
        context: *mut *mut c_void,
    ) -> i32 {
        match (self.0.nccl, self.0.table.init) {
            // SAFETY: the caller's contract.
            (Some(plugin), _) => unsafe { plugin.init(host, comm, mask, context) },
            // SAFETY: as above.
            (None, Some(init)) => unsafe { init(host, comm, mask, context) },
            (None, None) => ccl_plugin::Code::UNSUPPORTED.0,
        }
    }
}

impl PartialEq for ProfilerPlugin {
    fn eq(&self, other: &ProfilerPlugin) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for ProfilerPlugin {}

impl fmt::Debug for ProfilerPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfilerPlugin").field("name", &self.name()).field("file", &self.file()).finish()
    }
}

/// The mask of contexts that have another.
static UNUSED: AtomicU64 = AtomicU64::new(0);
