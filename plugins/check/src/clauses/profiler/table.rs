//! The table, the mask, and structs that grow.

use std::time::{Duration, Instant};

use ccl_plugin::profiler::Kind;
use ccl_plugin::profiler::c::{CclProfilerCommV1, CclProfilerEventV1};

use super::context::Stage;
use super::script::group;
use crate::breach::{Outcome, breach, expect, skip};

/// Whoever gets here has loaded it, which looks at the table.
pub(super) fn table(stage: &Stage) -> Outcome<String> {
    let plugin = stage.plugin;
    Ok(format!("profiler {}, {}, {}", plugin.name(), plugin.contract(), plugin.checked_by()))
}

pub(super) fn mask(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(0)?;
    let begun = Instant::now();
    let limit = FOR_THE_MASK.min(stage.pulse.patience);
    while context.interest().bits() == 0 && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    let bits = context.interest().bits();
    context.expect_fences()?;
    if bits == 0 {
        return breach(format!(
            "expected init, or a thread within {limit:?} of it, to write the mask, found 0: it hears nothing"
        ));
    }
    let known = Kind::ALL.iter().fold(0, |known, kind| known | kind.bit());
    expect(bits & known != 0, || {
        format!("expected a mask with one of the bits {known:#x}, found {bits:#x}: it hears of launches only")
    })?;
    context.launch();
    context.expect_fences()?;
    context.finalize(0);
    let asked: Vec<_> = Kind::ALL.iter().filter(|kind| bits & kind.bit() != 0).collect();
    Ok(format!("asks for {asked:?}"))
}

pub(super) fn later_structs(stage: &Stage) -> Outcome<String> {
    if stage.plugin.is_made_for_nccl() {
        return skip("NCCL's structs have no size");
    }
    let (comm, event) = (size_of::<CclProfilerCommV1>(), size_of::<CclProfilerEventV1>());
    let code = |code: i32| ccl_plugin::Code(code);
    let mut context = stage.try_context(0, comm + LATER_BYTES).or_else(|found| {
        breach(format!(
            "expected init to take a communicator's description of {} bytes, found {}",
            comm + LATER_BYTES,
            code(found)
        ))
    })?;
    for kind in [Kind::GroupApi, Kind::Group] {
        let exact = context.start(kind as u32, None, group());
        let longer = context.start_sized(kind as u32, None, group(), event + LATER_BYTES);
        expect(longer.is_taken() == exact.is_taken(), || {
            format!(
                "expected an event of {} bytes to be treated as one of {event}, found it refused",
                event + LATER_BYTES
            )
        })?;
        context.stop(longer);
        context.stop(exact);
    }
    context.finalize(0);
    Ok(format!("a description and events that are {LATER_BYTES} bytes longer"))
}

/// How long a mask may take that a thread of the plugin writes.
const FOR_THE_MASK: Duration = Duration::from_secs(2);
const LATER_BYTES: usize = 32;
