//! A tuner that was loaded.

use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::{fmt, ptr};

use ccl_plugin::Code;
use ccl_plugin::c::CclSettingV1;
use ccl_plugin::tuner::c::{CclTunerCommV1, CclTunerV1};

use super::context::{TunerContext, text};
use super::load::{LoadedTuner, link, load_file, load_tuner};
use super::{Comm, nccl};
use crate::log::{Host, LogFn};
use crate::net::NetPlugin;
use crate::search::Candidate;

/// A tuner plugin, checked and ready to make contexts. Lives as long as the process; copies are the same plugin.
#[derive(Clone, Copy)]
pub struct TunerPlugin(&'static LoadedTuner);

/// A tuner that could not be had, or failed, in words that name it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TunerError(String);

impl TunerPlugin {
    /// Loads the first usable tuner of `spec`: names ("rules"), files ("libfoo.so") or paths, separated by commas. A
    /// name means `libccl-tuner-<name>.so` or `libccl_tuner_<name>.so` in `LD_LIBRARY_PATH`, around the executable, or
    /// where the system's loader looks; else what it means to NCCL, which is a file of that name or
    /// `libnccl-tuner-<name>.so`. `STATIC_PLUGIN` is a tuner in the program itself.
    ///
    /// A library with the symbol `cclTuner_v1` is used by it. Of one made for NCCL the newest of `ncclTunerPlugin_v2`
    /// to `_v6` is taken.
    ///
    /// Returns every candidate that was considered, and the tuner or an error that repeats why each was refused. Runs
    /// the initialisers of the libraries it opens. Blocks for the disk.
    pub fn load(spec: &str) -> (Vec<Candidate>, Result<TunerPlugin, TunerError>) {
        let (candidates, loaded) = load_tuner(spec);
        let result = loaded.map(TunerPlugin).ok_or_else(|| {
            let lines: Vec<String> = candidates.iter().map(ToString::to_string).collect();
            TunerError(format!("no usable tuner in \"{spec}\": {}", lines.join("; ")))
        });
        (candidates, result)
    }

    /// The tuner in the file of a network, as NCCL's plugins have it; `None` for a network that is linked in.
    pub fn beside(network: NetPlugin) -> Option<(Candidate, Option<TunerPlugin>)> {
        let (candidate, loaded) = load_file(network.file()?);
        Some((candidate, loaded.map(TunerPlugin)))
    }

    /// The tuner of a table that is part of this program; each call makes another.
    ///
    /// # Errors
    ///
    /// The table is not one of this contract.
    pub fn linked(table: &'static CclTunerV1) -> Result<TunerPlugin, TunerError> {
        link(table).map(TunerPlugin).map_err(TunerError)
    }

    /// The tuner's name.
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// The file it came from; `None` if it is linked in.
    pub fn file(&self) -> Option<&'static Path> {
        self.0.file.as_deref()
    }

    /// The symbol of the contract it implements: `cclTuner_v1`, or one of NCCL's.
    pub fn contract(&self) -> String {
        self.0.nccl.map_or_else(|| "cclTuner_v1".to_string(), nccl::symbol_of)
    }

    /// How it was checked, for the log.
    pub fn checked_by(&self) -> &'static str {
        &self.0.how
    }

    /// Whether it was given up: see [`TunerPlugin::give_up`].
    pub fn is_given_up(&self) -> bool {
        // Relaxed: a hint; one more question to a late tuner ends as the last one did.
        self.0.is_late.load(Ordering::Relaxed)
    }

    /// Remembers, for the life of the process, that a context of this plugin did not return in time.
    pub fn give_up(&self) {
        self.0.is_late.store(true, Ordering::Relaxed);
    }

    /// Makes a context, which stays on this thread. Blocks for as long as the plugin does.
    ///
    /// # Errors
    ///
    /// The plugin's; what it said went to `log`.
    pub fn init(
        &self,
        comm: &Comm<'_>,
        settings: &[(&str, &str)],
        log: LogFn,
    ) -> Result<TunerContext, TunerError> {
        let texts = settings.iter().map(|(key, value)| (text(key), text(value)));
        let texts: Vec<(CString, CString)> = texts.collect();
        let pairs: Vec<CclSettingV1> = texts
            .iter()
            .map(|(key, value)| CclSettingV1 { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let (name, reach) = (comm.name.map(text), text(comm.reach));
        let told = CclTunerCommV1 {
            size: size_of::<CclTunerCommV1>() as u32,
            rank: comm.rank,
            nranks: comm.nranks,
            nnodes: comm.nnodes,
            comm_id: comm.comm_id,
            name: name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            reach: reach.as_ptr(),
            min_node_ranks: comm.min_node_ranks,
            max_node_ranks: comm.max_node_ranks,
            max_channels: comm.max_channels,
            reserved: 0,
            chunk_bytes: comm.chunk_bytes,
        };
        let host = Host::leak(self.name(), log);
        // SAFETY: `host` was just made.
        let table = unsafe { &raw const (*host).table };
        let (first, count, mut raw) = (pairs.as_ptr(), pairs.len() as u32, ptr::null_mut());
        let code = match (self.0.nccl, self.table().init) {
            // SAFETY: as for the table's entry, below.
            (Some(plugin), _) => unsafe { plugin.init((table, &told), (first, count), &raw mut raw) },
            // SAFETY: `host` lives until the context is finalised; the rest is valid during the call, `count` settings.
            (None, Some(init)) => unsafe { init(table, &told, first, count, &raw mut raw) },
            (None, None) => Code::UNSUPPORTED.0,
        };
        if code == 0 {
            // SAFETY: `host` came from `Host::leak`, `raw` from this plugin's `init`.
            return Ok(unsafe { TunerContext::from_raw(*self, raw, host) });
        }
        // SAFETY: made above; a failed init keeps nothing of it.
        drop(unsafe { Box::from_raw(host) });
        Err(self.failed("init", code))
    }

    /// Its table, checked. For whoever checks plugins.
    pub fn table(&self) -> &'static CclTunerV1 {
        &self.0.table
    }

    #[cold]
    pub(super) fn failed(&self, call: &str, code: i32) -> TunerError {
        TunerError(format!("tuner {}: {call}: expected success, found {}", self.name(), Code(code)))
    }
}

impl PartialEq for TunerPlugin {
    fn eq(&self, other: &TunerPlugin) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for TunerPlugin {}

impl fmt::Debug for TunerPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunerPlugin").field("name", &self.name()).field("file", &self.file()).finish()
    }
}
