//! One rank's share of a call between mapped buffers: what it folds or copies, from where to where.

use ccl_plan::{Collective, Rank};

use crate::exec::plans::Decision;
use crate::exec::reduce::{self, Contribution, Reduction, Stores};
use crate::request::Bound;

/// A rank's share of the work, as far as it is not done.
pub(super) struct Job {
    /// From where, for which ranks in order.
    inputs: Vec<Contribution>,
    outputs: Vec<*mut u8>,
    /// Elements.
    count: usize,
    /// Elements of a visit.
    visit_count: usize,
    stores: Stores,
}

impl Job {
    /// The job of `rank` of `n`, `inputs` being all send buffers and `outputs` all receive buffers.
    pub(super) fn of(
        bound: &Bound,
        decision: &Decision,
        (rank, n): (Rank, u32),
        (mut inputs, mut outputs): (Vec<Contribution>, Vec<*mut u8>),
        stores: Stores,
    ) -> Job {
        let (me, size) = (rank.index(), bound.dtype.size_bytes());
        let mut count = bound.count;
        // First element in send and in receive buffers.
        let (mut from, mut to) = (0, 0);
        match bound.collective {
            Collective::AllReduce => {
                let slice = bound.count.div_ceil(n as usize).next_multiple_of(decision.grain_count);
                from = (me * slice).min(bound.count);
                to = from;
                count = slice.min(bound.count - from);
            }
            Collective::ReduceScatter => {
                from = me * bound.count;
                outputs = vec![outputs[me]];
            }
            Collective::AllGather => {
                to = me * bound.count;
                inputs = vec![inputs[me]];
            }
            _ => {
                inputs = vec![inputs[bound.root.index()]];
                outputs = vec![outputs[me]];
                count = if rank == bound.root && bound.in_place { 0 } else { count };
            }
        }
        inputs.iter_mut().for_each(|input| input.start = input.start.wrapping_add(from * size));
        outputs.iter_mut().for_each(|output| *output = output.wrapping_add(to * size));
        let bytes = VISIT_BYTES / (inputs.len() + outputs.len());
        let visit_count = (bytes / size).next_multiple_of(decision.grain_count);
        Job { inputs, outputs, count, visit_count, stores }
    }

    /// Whether nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.count == 0
    }

    /// The work of one visit.
    ///
    /// # Safety
    ///
    /// The buffers that the job was made of are valid, and no other rank uses what this one writes, or writes
    /// what it reads.
    pub(super) unsafe fn visit(&self, reduction: &Reduction, bound: &Bound) {
        let count = self.visit_count.min(self.count);
        let bytes = count * bound.dtype.size_bytes();
        // SAFETY: the caller's contract, for the next `count` elements of what is left. Buffers are equal, in
        // place, or apart.
        unsafe {
            match (&self.inputs[..], self.stores) {
                (inputs, stores) if bound.collective.reduces() => {
                    reduction.fold_all(inputs, &self.outputs, count, stores);
                }
                ([input], Stores::Streaming) => {
                    reduce::copy_long(input.start, false, (&self.outputs, 0), bytes)
                }
                ([input], Stores::Cached) => reduce::copy(input.start, &self.outputs, bytes),
                _ => {}
            }
        }
    }

    /// What a visit did is done.
    pub(super) fn advance(&mut self, bound: &Bound) {
        let count = self.visit_count.min(self.count);
        let bytes = count * bound.dtype.size_bytes();
        self.inputs.iter_mut().for_each(|input| input.start = input.start.wrapping_add(bytes));
        self.outputs.iter_mut().for_each(|output| *output = output.wrapping_add(bytes));
        self.count -= count;
    }
}

/// Bytes of the send and the receive buffer.
pub(super) fn lengths(bound: &Bound, n: u32) -> (usize, usize) {
    let block = bound.count * bound.dtype.size_bytes();
    match bound.collective {
        Collective::ReduceScatter => (block * n as usize, block),
        Collective::AllGather => (block, block * n as usize),
        _ => (block, block),
    }
}

/// Bytes read and written in one visit: 0.2 to 0.4 ms.
const VISIT_BYTES: usize = 2 << 20;
