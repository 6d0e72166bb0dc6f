//! A tuner's context.

use std::ffi::{CString, c_void};
use std::ptr;

use ccl_plugin::Code;
use ccl_plugin::tuner::c::{CclTunerCallV1, CclTunerCandidateV1};

use super::plugin::{TunerError, TunerPlugin};
use super::{Call, Candidate};
use crate::log::Host;

/// A context. Dropping it finalises it, and waits for the plugin to do so.
pub struct TunerContext {
    plugin: TunerPlugin,
    raw: *mut c_void,
    host: *mut Host,
}

impl TunerContext {
    /// # Safety
    ///
    /// `raw` came from `init` of this plugin with the table of `host`, which came from `Host::leak`.
    pub(super) unsafe fn from_raw(plugin: TunerPlugin, raw: *mut c_void, host: *mut Host) -> TunerContext {
        TunerContext { plugin, raw, host }
    }

    /// Asks for advice on one call: costs, channels and chunks of `candidates` are what the plugin makes of them, or as
    /// they were if it fails. Blocks for as long as the plugin does.
    ///
    /// # Errors
    ///
    /// The plugin's; what it said went to the log.
    pub fn advise(&mut self, call: &Call<'_>, candidates: &mut [Candidate<'_>]) -> Result<(), TunerError> {
        let Some(advise) = self.plugin.table().advise else {
            return Err(self.plugin.failed("advise", Code::UNSUPPORTED.0));
        };
        let (collective, dtype) = (text(call.collective), call.dtype.map(text));
        let asked = CclTunerCallV1 {
            size: size_of::<CclTunerCallV1>() as u32,
            pipelined: call.pipelined,
            collective: collective.as_ptr(),
            dtype: dtype.as_ref().map_or(ptr::null(), |dtype| dtype.as_ptr()),
            bytes: call.bytes,
            least_bytes: call.least_bytes,
            most_bytes: call.most_bytes,
            mapped: call.mapped.into(),
            reserved: 0,
        };
        let names: Vec<_> =
            candidates.iter().map(|one| (text(one.algorithm), one.protocol.map(text))).collect();
        let mut copies: Vec<CclTunerCandidateV1> = candidates
            .iter()
            .zip(&names)
            .map(|(one, (algorithm, protocol))| CclTunerCandidateV1 {
                size: size_of::<CclTunerCandidateV1>() as u32,
                channels: one.channels,
                algorithm: algorithm.as_ptr(),
                protocol: protocol.as_ref().map_or(ptr::null(), |protocol| protocol.as_ptr()),
                cost_ns: one.cost_ns,
                chunk_bytes: one.chunk_bytes,
            })
            .collect();
        let places: Vec<*mut CclTunerCandidateV1> = copies.iter_mut().map(ptr::from_mut).collect();
        // SAFETY: a context that is not finalised; structs of the stated sizes, as many pointers as stated, strings
        // that live through the call.
        let code = unsafe { advise(self.raw, &asked, places.as_ptr(), places.len() as u32) };
        if code != 0 {
            return Err(self.plugin.failed("advise", code));
        }
        for (one, copy) in candidates.iter_mut().zip(&copies) {
            (one.cost_ns, one.channels, one.chunk_bytes) = (copy.cost_ns, copy.channels, copy.chunk_bytes);
        }
        Ok(())
    }
}

impl Drop for TunerContext {
    fn drop(&mut self) {
        if let Some(finalize) = self.plugin.table().finalize {
            // SAFETY: a context of this plugin that is not finalised, since only this does so.
            unsafe { finalize(self.raw) };
        }
        // SAFETY: from `Host::leak`, and of no use after `finalize`.
        drop(unsafe { Box::from_raw(self.host) });
    }
}

impl std::fmt::Debug for TunerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunerContext").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

/// For C, without the NUL bytes that it cannot have.
pub(super) fn text(text: &str) -> CString {
    let mut bytes = text.as_bytes().to_vec();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}
