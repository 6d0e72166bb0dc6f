//! What a call may lend to its peers instead of copying it for them.

use std::ops::RangeInclusive;

use ccl_plan::cost::sends_the_same;
use ccl_plan::plan::Cast;
use ccl_plan::program::{Checked, Instruction, Operand, OperandId};
use ccl_plan::{Algorithm, Collective, Plan, ReduceOp};

/// What a call lends instead of copying it to a slot: parts of at least `from` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lending {
    /// Nothing, and no network sends from user memory either.
    Never,
    Nothing,
    /// What lies in the send buffer or is kept in the receive buffer.
    Everything {
        from: usize,
    },
}

/// How what a call sends gets to its peers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sending {
    pub(super) lending: Lending,
    /// Whether a slot may serve several receivers.
    pub(super) shares: bool,
    /// Messages up to so many bytes may go in one piece, however they are cut.
    pub(super) whole_bytes: usize,
}

/// What the programs of all ranks send, if all of that lies in user memory, unchanged until the call
/// has ended, so that it may be lent.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Lent {
    /// What is sent may be overwritten before the receiver has read it, or does not lie in one piece.
    #[default]
    Never,
    /// Not all of it does.
    No,
    /// All of it: as it is in the send buffer, or a result that the rank keeps.
    All,
}

/// [`Lent`] by what the reduce operation does beside the fold.
#[derive(Clone, Copy, Default)]
pub(super) struct Lendable {
    plain: Lent,
    scaled: Lent,
    averaged: Lent,
}

impl Lendable {
    /// One-shot is out: in place it folds into what it has just lent. In all others whatever
    /// overwrites lent input arrives from a rank that has read it: chunk c of a two-shot's result
    /// comes from the rank that folded chunk c. Nobody has shown as much of a user's program. Reduce is out because its root alone would work, and
    /// programs with spans because theirs are partial sums that the next step folds into, or ranges
    /// with gaps.
    pub(super) fn of(plan: &Plan, cast: &Cast) -> Lendable {
        let spans = cast.programs.iter().any(spans);
        let out = [Algorithm::OneShot, Algorithm::OneShotTree, Algorithm::User].contains(&plan.algorithm());
        if out || plan.collective() == Collective::Reduce || spans {
            return Lendable::default();
        }
        let all = |scales: bool, divides: bool| {
            let each = cast.programs.iter().map(|program| lent(program, scales, divides));
            if each.into_iter().all(|lent| lent) { Lent::All } else { Lent::No }
        };
        Lendable { plain: all(false, false), scaled: all(true, false), averaged: all(false, true) }
    }

    pub(super) fn under(self, reduce_op: ReduceOp) -> Lent {
        match reduce_op {
            ReduceOp::PreMulSum => self.scaled,
            ReduceOp::Average => self.averaged,
            _ => self.plain,
        }
    }
}

/// How long the messages of a collective are that are better read where the sender has them, between processes with a core
/// each, where a trial found reading faster, `far` if by far; `None` if none are. Measured: ADR 0057, 0067.
pub(super) const fn read_where_tried(
    collective: Collective,
    n: u32,
    far: bool,
) -> Option<RangeInclusive<usize>> {
    let (from, up_to) = match collective {
        Collective::Send
        | Collective::Recv
        | Collective::AllGather
        | Collective::AllGatherV
        | Collective::AllToAll
        | Collective::AllToAllV => (8 << 10, usize::MAX),
        Collective::ReduceScatter | Collective::ReduceScatterV => (16 << 10, usize::MAX),
        Collective::Scatter | Collective::ScatterV => (48 << 10, usize::MAX),
        // The root of a long one would look on while others copy, or help one of them (ADR 0117).
        Collective::Broadcast if far && n > 2 => (64 << 10, (2 << 20) - 1),
        Collective::Broadcast => (64 << 10, usize::MAX),
        // What is folded is better folded out of slots than read and then folded.
        Collective::AllReduce if far => (512 << 10, 16 << 20),
        Collective::AllReduce
        | Collective::Reduce
        | Collective::Gather
        | Collective::GatherV
        | Collective::Barrier => return None,
    };
    Some(from..=up_to)
}

/// Up to how many bytes of all ranks together messages of a collective are read by ranks that share cores, without a trial: what
/// has left the caches is as fast to be copied twice, by both ends (ADR 0067). Of an all-gather that is all that each rank has, and the
/// kernel stores through the caches (ADR 0124). In an all-to-all each rank has many peers whose slots it would have to go through in
/// turn, however long its blocks are (ADR 0075).
pub(super) const fn most_read_bytes(collective: Collective) -> usize {
    match collective {
        Collective::AllToAll | Collective::AllToAllV => usize::MAX,
        Collective::AllGather | Collective::AllGatherV => 12 << 20,
        _ => 48 << 20,
    }
}

/// Up to how many bytes of all ranks together messages of a collective are read where each rank has a core and reading was tried: what has left
/// the caches takes less time through slots and around the caches (ADR 0118), unless the sender helps all the time (ADR 0117).
pub(super) const fn most_read_apart_bytes(collective: Collective, n: u32) -> usize {
    match collective {
        Collective::Broadcast if n == 2 => usize::MAX,
        Collective::ReduceScatter | Collective::ReduceScatterV => 16 << 20,
        Collective::AllToAll | Collective::AllToAllV => 96 << 20,
        _ if collective.is_message() => 32 << 20,
        _ => 24 << 20,
    }
}

/// Whether ranks send the same to several others, and the credit that this takes is known: a user's program may need
/// all that there is.
pub(super) fn may_share(plan: &Plan) -> bool {
    sends_the_same(plan.collective()) && plan.n() > 2 && plan.algorithm() != Algorithm::User
}

/// Whether a Move covers several chunks or blocks, or none, by a span.
fn spans(program: &Checked) -> bool {
    let spanned = |i: &Instruction| matches!(i, Instruction::Move(m) if m.extent.span.is_some());
    program.instructions.iter().any(spanned)
}

/// Whether all that a program sends may be lent.
fn lent(program: &Checked, scales: bool, divides: bool) -> bool {
    let operand = |id: &OperandId| program.operands[usize::from(*id)];
    program.instructions.iter().all(|instruction| {
        let Instruction::Move(m) = instruction else { return true };
        let sends = m.outputs.as_slice().iter().any(|id| matches!(operand(id), Operand::Send(_)));
        let keeps = m.outputs.as_slice().iter().any(|id| matches!(operand(id), Operand::Output(_)));
        let changed = m.finish.pre && scales || m.finish.post && divides;
        let source = match m.inputs.as_slice() {
            [input] if !changed => Some(operand(input)),
            _ => None,
        };
        !sends || keeps || matches!(source, Some(Operand::Input(_) | Operand::Output(_)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reduces_are_read_only_where_that_is_faster_by_far_and_long_broadcasts_only_where_it_is_not() {
        let reads = |collective, far, bytes: usize| {
            read_where_tried(collective, 3, far).is_some_and(|lengths| lengths.contains(&bytes))
        };
        let all_reduces = [(false, 1 << 20), (true, 1 << 20), (true, 1 << 10), (true, 32 << 20)];
        let all_reduces = all_reduces.map(|(far, bytes)| reads(Collective::AllReduce, far, bytes));
        assert_eq!(all_reduces, [false, true, false, false]);
        let broadcasts = [(false, 64 << 20), (true, 64 << 20), (true, 1 << 20), (true, 1 << 10)];
        let broadcasts = broadcasts.map(|(far, bytes)| reads(Collective::Broadcast, far, bytes));
        assert_eq!(broadcasts, [true, false, true, false]);
    }

    #[test]
    fn where_each_rank_has_a_core_what_has_left_the_caches_is_read_only_with_help() {
        use Collective::{AllGather, AllToAll, Broadcast, ReduceScatter, Send};
        let read = |n| {
            [AllGather, AllToAll, Broadcast, ReduceScatter, Send].map(|c| most_read_apart_bytes(c, n) >> 20)
        };
        assert_eq!(read(2), [24, 96, usize::MAX >> 20, 16, 32]);
        assert_eq!(read(3), [24, 96, 24, 16, 32]);
    }

    #[test]
    fn where_cores_are_shared_only_all_to_alls_are_read_however_long() {
        let read = |bytes| Collective::ALL.into_iter().filter(move |c| bytes <= most_read_bytes(*c));
        assert_eq!(read(12 << 20).count(), Collective::ALL.len());
        let longer: Vec<_> = read(48 << 20).collect();
        assert_eq!(longer.len(), Collective::ALL.len() - 2);
        assert!(!longer.contains(&Collective::AllGather) && !longer.contains(&Collective::AllGatherV));
        let of_any_length: Vec<_> = read(1 << 40).collect();
        assert_eq!(of_any_length, [Collective::AllToAll, Collective::AllToAllV]);
    }
}
