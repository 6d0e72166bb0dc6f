//! Where a tuner writes: its table is called as it stands, with bytes around each struct that nobody may touch.

use std::ffi::{CString, c_void};
use std::ptr;

use ccl_plugin::Code;
use ccl_plugin::c::{CclHostV1, CclSettingV1};
use ccl_plugin::tuner::c::{CclTunerCallV1, CclTunerCandidateV1, CclTunerCommV1};

use super::stage::Stage;
use crate::breach::{Outcome, breach, expect, skip};

pub(super) fn outside(stage: &Stage) -> Outcome<String> {
    if stage.plugin.contract() != "cclTuner_v1" {
        return skip("is made for NCCL: it writes into a table that is the host's own");
    }
    let context = Raw::new(stage)?;
    for bytes in [64, 4096, 1 << 20] {
        context.advise(bytes)?;
    }
    Ok("three calls, with guards around each struct".to_owned())
}

/// A struct between bytes that nobody may touch.
#[repr(C)]
#[derive(Clone, Copy)]
struct Guarded<T> {
    low: [u8; GUARD_BYTES],
    value: T,
    high: [u8; GUARD_BYTES],
}

impl<T> Guarded<T> {
    fn new(value: T) -> Guarded<T> {
        Guarded { low: [GUARD; GUARD_BYTES], value, high: [GUARD; GUARD_BYTES] }
    }

    fn expect_guards(&self, what: &str) -> Outcome<()> {
        let touched = self.low.iter().chain(&self.high).any(|byte| *byte != GUARD);
        expect(!touched, || format!("expected nothing written around {what}, found bytes changed"))
    }
}

/// A context without the host's types around it. Ended when it is dropped.
struct Raw<'a> {
    stage: &'a Stage,
    context: *mut c_void,
    // What the plugin may read until `finalize`.
    _host: Box<CclHostV1>,
}

impl<'a> Raw<'a> {
    fn new(stage: &'a Stage) -> Outcome<Raw<'a>> {
        let host = Box::new(CclHostV1 {
            size: size_of::<CclHostV1>() as u32,
            version: 1,
            context: ptr::null_mut(),
            enabled: Some(never),
            log: Some(nowhere),
        });
        let comm = CclTunerCommV1 {
            size: size_of::<CclTunerCommV1>() as u32,
            rank: 0,
            nranks: 4,
            nnodes: 1,
            comm_id: 3,
            name: ptr::null(),
            reach: c"memory".as_ptr(),
            min_node_ranks: 4,
            max_node_ranks: 4,
            max_channels: 2,
            reserved: 0,
            chunk_bytes: 32 << 10,
        };
        let text = |text: &String| CString::new(text.as_str()).unwrap_or_default();
        let texts: Vec<_> = stage.settings.iter().map(|(key, value)| (text(key), text(value))).collect();
        let pair =
            |(key, value): &(CString, CString)| CclSettingV1 { key: key.as_ptr(), value: value.as_ptr() };
        let pairs: Vec<_> = texts.iter().map(pair).collect();
        let Some(init) = stage.plugin.table().init else { return skip("it has no init") };
        let mut context = ptr::null_mut();
        let (first, count) = (pairs.as_ptr(), pairs.len() as u32);
        // SAFETY: the host lives as long as the context; the rest is valid during the call, `count` settings.
        let code =
            stage.pulse.during("init", || unsafe { init(&*host, &comm, first, count, &raw mut context) });
        if code != 0 {
            return breach(format!("expected no error, found {} in init", Code(code)));
        }
        Ok(Raw { stage, context, _host: host })
    }

    /// Asks about three candidates, and compares what the tuner may not change.
    fn advise(&self, bytes: u64) -> Outcome<()> {
        let Some(advise) = self.stage.plugin.table().advise else { return skip("it has no advise") };
        let call = CclTunerCallV1 {
            size: size_of::<CclTunerCallV1>() as u32,
            pipelined: 1,
            collective: c"all_reduce".as_ptr(),
            dtype: ptr::null(),
            bytes,
            least_bytes: bytes / 2,
            most_bytes: bytes,
            mapped: 0,
            reserved: 0,
        };
        let candidate = |algorithm: &'static std::ffi::CStr| {
            Guarded::new(CclTunerCandidateV1 {
                size: size_of::<CclTunerCandidateV1>() as u32,
                channels: 1,
                algorithm: algorithm.as_ptr(),
                protocol: ptr::null(),
                cost_ns: 1000.0,
                chunk_bytes: 0,
            })
        };
        let mut candidates = [c"ring", c"double_tree", c"two_shot"].map(candidate);
        let before = candidates;
        let places = candidates.each_mut().map(|one| &raw mut one.value);
        let mut offered = Guarded::new(places);
        let asked = Guarded::new(call);
        let count = places.len() as u32;
        // SAFETY: a context that is not finalised, `count` pointers to structs of the stated sizes.
        let code = self.stage.pulse.during("advise", || unsafe {
            advise(self.context, &asked.value, (&raw mut offered.value).cast(), count)
        });
        if code != 0 {
            return breach(format!("expected no error, found {} in advise", Code(code)));
        }
        asked.expect_guards("the call")?;
        offered.expect_guards("the list of candidates")?;
        expect(offered.value == places, || {
            "expected the list of candidates as it was, found it changed".to_owned()
        })?;
        for (after, before) in candidates.iter().zip(&before) {
            after.expect_guards("a candidate")?;
            let kept = |one: &CclTunerCandidateV1| (one.size, one.algorithm, one.protocol);
            expect(kept(&after.value) == kept(&before.value), || {
                "expected size, algorithm and protocol of a candidate as they were, found them changed"
                    .to_owned()
            })?;
        }
        Ok(())
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        if let Some(finalize) = self.stage.plugin.table().finalize {
            // SAFETY: a context that is not finalised, since only this does so.
            self.stage.pulse.during("finalize", || unsafe { finalize(self.context) });
        }
    }
}

unsafe extern "C" fn never(_: *mut c_void, _: i32) -> i32 {
    0
}

unsafe extern "C" fn nowhere(
    _: *mut c_void,
    _: i32,
    _: *const std::ffi::c_char,
    _: u32,
    _: *const std::ffi::c_char,
) {
}

const GUARD: u8 = 0x5a;
const GUARD_BYTES: usize = 64;
