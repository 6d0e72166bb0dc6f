//! A network that was loaded or linked in.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::{fmt, fs, ptr};

use ccl_plugin::Code;
use ccl_plugin::c::{CclErrorV1, CclHostV1, CclNetV1, CclSettingV1, NET_SYMBOL};

use crate::error::{Detail, NetError};
use crate::fault::SETTING;
use crate::library::{LoadedNet, link_net, load_net, wrap_net};
use crate::log::{Host, LogFn};
use crate::net::context::NetContext;
use crate::search::Candidate;

/// A network plugin, checked and ready to make contexts. Lives as long as the process; copies are
/// the same plugin.
#[derive(Clone, Copy)]
pub struct NetPlugin(&'static LoadedNet);

impl NetPlugin {
    /// The network of a table that is part of this program.
    ///
    /// # Errors
    ///
    /// [`NetError::Load`] if the table is not one of this contract.
    pub fn linked(table: &'static CclNetV1) -> Result<NetPlugin, NetError> {
        link_net(table).map(NetPlugin).map_err(|words| NetError::load("link", words))
    }

    /// Loads the first usable network of `spec`: names ("socket"), files ("libfoo.so") or paths,
    /// separated by commas. A name means `libccl-net-<name>.so` or `libccl_net_<name>.so` in
    /// `LD_LIBRARY_PATH`, around the executable, or where the system's loader looks; else what it means to NCCL, which
    /// is a file of that name or `libnccl-net-<name>.so`. `STATIC_PLUGIN` is a network in the program itself.
    ///
    /// A library with the symbol `cclNet_v1` is used by it. Of one made for NCCL the newest of `ncclNetPlugin_v6` to
    /// `_v12` is taken, initialised and asked for its devices; without any it is refused.
    ///
    /// Returns every candidate that was considered, and the network or an error that repeats why
    /// each was refused. Runs the initialisers of the libraries it opens. Blocks for the disk.
    pub fn load(spec: &str) -> (Vec<Candidate>, Result<NetPlugin, NetError>) {
        let (candidates, loaded) = load_net(spec);
        let result = loaded.map(NetPlugin).ok_or_else(|| {
            let lines: Vec<String> = candidates.iter().map(ToString::to_string).collect();
            NetError::load("load", format!("no usable network in \"{spec}\": {}", lines.join("; ")))
        });
        (candidates, result)
    }

    /// The same network with faults on purpose, as `fault:NAME?RULES` in `CCL_NET_PLUGIN`: pairs such as
    /// `delay_us=200&drop_after=10`, joined by `&`.
    ///
    /// | key | at each end of each connection |
    /// |---|---|
    /// | `delay_us` | a receive is reported done so many microseconds late |
    /// | `drop_after` | the connection breaks after so many messages |
    /// | `error_from_test` | the test of the request of this number, from 0, fails |
    /// | `reorder` | 1: some receives are reported done after younger ones |
    /// | `corrupt_bit` | one bit of the first message with bytes changes, from this number on |
    /// | `seed` | where random numbers begin |
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`], naming what cannot be read.
    pub fn with_faults(self, rules: &str) -> Result<NetPlugin, NetError> {
        let refused = |words: String| NetError::usage("fault", "", format!("\"{rules}\": {words}"));
        wrap_net(self, rules).map(NetPlugin).map_err(refused)
    }

    /// The network's name, as `CCL_NET` names it.
    pub fn name(&self) -> &'static str {
        &self.0.checked.name
    }

    /// The file it came from; `None` if it is linked in.
    pub fn file(&self) -> Option<&'static Path> {
        self.0.file.as_deref()
    }

    /// The symbol of the contract it implements: `cclNet_v1`, or one of NCCL's.
    pub fn contract(&self) -> String {
        self.0.nccl.map_or_else(
            || NET_SYMBOL.to_string_lossy().into_owned(),
            |plugin| ccl_plugin_nccl::net::symbol(plugin.version()),
        )
    }

    /// Whether it was made for NCCL: its connections are between two ends only, and cannot be given up.
    pub fn is_made_for_nccl(&self) -> bool {
        self.0.nccl.is_some()
    }

    /// The version of ccl's contract by which it is called.
    pub fn version(&self) -> u32 {
        self.table().version
    }

    /// Whether its connections can be turned: [`SendComm::turn`](crate::SendComm::turn) works at every end.
    pub fn turns(&self) -> bool {
        self.table().turn.is_some()
    }

    /// Whether it sends from anywhere: [`SendComm::send_from`](crate::SendComm::send_from) works at every end.
    pub fn sends_from(&self) -> bool {
        self.table().isend_from.is_some()
    }

    /// Whether it says where news come from: [`SendComm::watch`](crate::SendComm::watch) works at every end.
    pub fn is_watchable(&self) -> bool {
        self.table().watch.is_some()
    }

    /// How it was checked, for the log.
    pub fn checked_by(&self) -> &'static str {
        &self.0.how
    }

    /// BLAKE3 of its file, or of its name and contract if it is linked in: ranks compare it.
    ///
    /// # Errors
    ///
    /// [`NetError::Load`] if the file cannot be read again. Blocks for the disk.
    pub fn digest(&self) -> Result<[u8; 32], NetError> {
        if let Some(wraps) = &self.0.wraps {
            return wraps.inner.digest();
        }
        let Some(file) = self.file() else {
            let text = format!("linked {} {}", self.name(), self.version());
            return Ok(*blake3::hash(text.as_bytes()).as_bytes());
        };
        let bytes = fs::read(file)
            .map_err(|error| NetError::load("digest", format!("{}: {error}", file.display())))?;
        Ok(*blake3::hash(&bytes).as_bytes())
    }

    /// Makes a context; a process may have any number of them.
    ///
    /// # Errors
    ///
    /// The plugin's, for instance [`NetError::Usage`] for a setting it cannot read.
    pub fn init(&self, settings: &[(&str, &str)], log: LogFn) -> Result<NetContext, NetError> {
        let texts = self
            .own_settings()
            .iter()
            .chain(settings)
            .map(|(key, value)| Ok((CString::new(*key)?, CString::new(*value)?)))
            .collect::<Result<Vec<_>, std::ffi::NulError>>()
            .map_err(|_| NetError::usage(self.name(), "init", "a setting contains a NUL byte"))?;
        let pairs: Vec<CclSettingV1> = texts
            .iter()
            .map(|(key, value)| CclSettingV1 { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let host = Host::leak(self.name(), log);
        let mut raw = ptr::null_mut();
        // SAFETY: `host` was just made.
        let table = unsafe { &raw const (*host).table };
        let (first, count) = (pairs.as_ptr(), pairs.len() as u32);
        // SAFETY: the host's table outlives the context; `count` settings, and a place for the context.
        let made = match unsafe { self.init_raw(table, first, count, &raw mut raw) } {
            0 => Ok(()),
            code => Err(self.failed("init", code)),
        };
        // SAFETY: `host` came from `Host::leak`, `raw` from this plugin's `init`.
        made.and_then(|()| unsafe { NetContext::from_raw(*self, raw, host) }).inspect_err(|_| {
            // SAFETY: made above; a failed init keeps nothing of it.
            drop(unsafe { Box::from_raw(host) });
        })
    }

    /// What the entry `init` does, for whoever calls the table itself: those made for NCCL share one table, whose own
    /// `init` cannot tell which of them is meant. Returns the code.
    ///
    /// # Safety
    ///
    /// As `ccl_net.h` asks of a host that calls `init`.
    pub unsafe fn init_raw(
        &self,
        host: *const CclHostV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut *mut c_void,
    ) -> i32 {
        match (self.0.nccl, self.table().init) {
            // SAFETY: the caller's contract.
            (Some(plugin), _) => unsafe { plugin.init(host, settings, count, out) },
            // SAFETY: as above.
            (None, Some(init)) => unsafe { init(host, settings, count, out) },
            (None, None) => Code::INTERNAL.0,
        }
    }

    /// Settings that its `init` is always given, before those of the caller: for whoever calls the table itself.
    pub fn own_settings(&self) -> Option<(&'static str, &'static str)> {
        self.0.wraps.as_ref().map(|wraps| (SETTING, wraps.name.as_str()))
    }

    /// Its table, checked; entries that it lacks are `None`. For whoever checks plugins or wraps one.
    pub fn table(&self) -> &'static CclNetV1 {
        &self.0.checked.table
    }

    /// The error for a code; asks the plugin for its words on this thread.
    #[cold]
    pub(crate) fn failed(&self, call: &'static str, code: i32) -> NetError {
        let mut words = CclErrorV1 {
            size: size_of::<CclErrorV1>() as u32,
            code: 0,
            os_error: 0,
            reserved: 0,
            peer: [0; _],
            message: [0; _],
        };
        if let Some(last_error) = self.table().last_error {
            // SAFETY: a writable struct of the stated size.
            unsafe { last_error(&raw mut words) };
        }
        let known = words.code == code;
        let message = if known { text(&words.message) } else { String::new() };
        NetError::from_code(Detail {
            plugin: self.name().to_string(),
            call,
            message: if message.is_empty() { ccl_plugin::Code(code).to_string() } else { message },
            peer: Some(text(&words.peer)).filter(|peer| known && !peer.is_empty()),
            os_error: Some(words.os_error).filter(|errno| known && *errno != 0),
            code,
        })
    }

    #[cold]
    pub(crate) fn missing(&self, call: &'static str) -> NetError {
        NetError::from_code(Detail {
            plugin: self.name().to_string(),
            call,
            message: "this network does not offer it".to_string(),
            code: ccl_plugin::Code::UNSUPPORTED.0,
            ..Detail::default()
        })
    }
}

impl PartialEq for NetPlugin {
    fn eq(&self, other: &NetPlugin) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for NetPlugin {}

impl fmt::Debug for NetPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetPlugin").field("name", &self.name()).field("file", &self.file()).finish()
    }
}

/// The text of a fixed array that should have a NUL; a plugin may have forgotten it.
pub(super) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned())
}
