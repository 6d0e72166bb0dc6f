//! The steps that short calls consist of, with no more around them than they need.
//!
//! A call of 8 bytes between two ranks is a few dozen nanoseconds of the memory's time: each of the instructions
//! between a message that arrives and the one that answers it is time that both ranks wait. So tapes of one lane whose
//! steps have one input or two and one output go through here; they do what [`super::step`] does with the same steps.

use ccl_plan::Rank;

use super::host::Stop;
use super::reduce::{self, Finish};
use super::step::Bindings;
use super::tape::{Entry, Form, Spot};
use crate::error::Error;
use crate::transport::{Fabric, Quick};

/// What came of a step.
pub(super) enum Taken {
    /// It is done.
    Yes,
    /// This peer has not done its part.
    NotYet(Rank),
    /// It is none of those that are done here.
    Otherwise,
}

/// Takes one step of a call, if every edge is ready; `cells` is the start of its lane's scratch.
#[inline(always)]
pub(super) fn take(
    call: Bindings<'_>,
    entry: &Entry,
    fabric: &mut Fabric,
    cells: *mut u8,
) -> Result<Taken, Stop> {
    match entry.form {
        Form::Copy => few::<1, 1>(call, entry, fabric, cells),
        Form::Spread => few::<1, 2>(call, entry, fabric, cells),
        Form::Fold => few::<2, 1>(call, entry, fabric, cells),
        Form::FoldSpread => few::<2, 2>(call, entry, fabric, cells),
        Form::Signal => few::<0, 1>(call, entry, fabric, cells),
        Form::Wait => few::<1, 0>(call, entry, fabric, cells),
        Form::General => Ok(Taken::Otherwise),
    }
}

/// A step of so many inputs and outputs.
#[inline(always)]
fn few<const INPUTS: usize, const OUTPUTS: usize>(
    call: Bindings<'_>,
    entry: &Entry,
    fabric: &mut Fabric,
    cells: *mut u8,
) -> Result<Taken, Stop> {
    let (sources, targets) = (entry.first_inputs::<INPUTS>(), entry.first_outputs::<OUTPUTS>());
    let mut inputs = [std::ptr::null::<u8>(); INPUTS];
    for (address, spot) in inputs.iter_mut().zip(sources) {
        *address = match *spot {
            Spot::Send(offset) => call.bound.send.wrapping_add(offset),
            Spot::Recv(offset) => call.bound.recv.wrapping_add(offset).cast_const(),
            Spot::Scratch(offset) => cells.wrapping_add(offset).cast_const(),
            Spot::From(edge, peer) => match fabric.receiver(edge).expect_short(entry.bytes, call.tag)? {
                Quick::At(found) => found.as_ptr().cast_const(),
                Quick::NotYet => return Ok(Taken::NotYet(peer)),
                Quick::Otherwise => return Ok(Taken::Otherwise),
            },
            Spot::To(..) => return Err(Error::bug("a send edge as an input").into()),
        };
    }
    let mut outputs = [std::ptr::null_mut::<u8>(); OUTPUTS];
    for (address, spot) in outputs.iter_mut().zip(targets) {
        *address = match *spot {
            Spot::Recv(offset) => call.bound.recv.wrapping_add(offset),
            Spot::Scratch(offset) => cells.wrapping_add(offset),
            Spot::To(edge, peer) => match fabric.sender(edge).acquire_short(entry.bytes)? {
                Quick::At(address) => address.as_ptr(),
                Quick::NotYet => return Ok(Taken::NotYet(peer)),
                Quick::Otherwise => return Ok(Taken::Otherwise),
            },
            Spot::Send(_) | Spot::From(..) => return Err(Error::bug("an input as an output").into()),
        };
    }
    if OUTPUTS > 0 && INPUTS > 0 {
        // SAFETY: user addresses come from a request whose lengths were checked against the layout that cut this step
        // and whose borrows outlive the call; slots hold at least `bytes` and are ours until posted or released;
        // scratch cells hold a chunk each. Ranges are equal or disjoint because the program was checked.
        unsafe { fold(call, entry, &inputs, &outputs) };
    }
    for spot in targets {
        if let Spot::To(edge, _) = *spot {
            fabric.sender(edge).post_short(entry.bytes, call.tag)?;
        }
    }
    for spot in sources {
        if let Spot::From(edge, _) = *spot {
            fabric.receiver(edge).release()?;
        }
    }
    Ok(Taken::Yes)
}

/// # Safety
///
/// As for [`reduce::Reduction::fold`].
#[inline(always)]
unsafe fn fold(call: Bindings<'_>, entry: &Entry, inputs: &[*const u8], outputs: &[*mut u8]) {
    // SAFETY: the caller's contract; of a few bytes, a copy to each output reads what is in the nearest cache.
    unsafe {
        match *inputs {
            [input] if entry.finish == Finish::NONE => {
                for output in outputs {
                    reduce::copy(input, std::slice::from_ref(output), entry.bytes);
                }
            }
            _ => call.decision.reduction.fold(inputs, outputs, entry.count, entry.finish),
        }
    }
}
