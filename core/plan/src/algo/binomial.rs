//! Binomial trees: broadcast and reduce in ⌊log2 n⌋ rounds, all-reduce in twice as many.
//!
//! Counted from the root, rank v = r − root (modulo n) has the parent v − low(v), where low is the
//! lowest set bit, and the children v + 1, v + 2, v + 4, … as long as the step is below low(v) and
//! the child below n; the root has all of them. Child v + 2^k stands for the ranks v + 2^k … v + 2^(k+1) − 1.
//!
//! Every edge carries S once. The latency is that of ⌊log2 n⌋ messages, but the root sends or
//! folds ⌈log2 n⌉·S bytes. A tree stops paying against the direct algorithm for a few hundred bytes,
//! where one message is all that counts, and against a chain where passes are many enough to hide its
//! n − 1 hops.
//!
//! A rank with up to three children does all of a pass in one Move; more children take further Moves
//! of up to four. One slot per edge is enough. Neither reads the input twice after writing the
//! output, so both are safe in place.
//!
//! All-reduce is a reduce to place 0 and a broadcast from there, up and down in lanes of their own. It folds in
//! the canonical tree (see `in_tree`) for every n, with no more than ⌈log2 n⌉ peers; it pays where that is wanted.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", IJHPCA 19 (2005).

use alloc::vec::Vec;

use super::{Duty, Role};
use crate::collective::Collective;
use crate::ids::Place;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, R, ROOT, Spot, from, input, output, scratch, to,
};
use crate::program::{Chunks, Finish, MOVE_OPERANDS, Program};

/// The number of a place's children.
pub(super) fn children(n: u32, place: Place, root: Place) -> u8 {
    let v = (place.0 + n - root.0) % n;
    let below = if v == 0 { u32::BITS } else { v.trailing_zeros() };
    (0..below).take_while(|k| *k < 31 && v + (1 << k) < n).count() as u8
}

pub(super) fn program(collective: Collective, role: Role) -> Program {
    let mut b = Builder::new("binomial", collective, Chunks::ONE);
    let parent = parent(&mut b);
    match collective {
        Collective::Reduce => {
            b.scratch_chunks(u16::from(usize::from(role.children) >= MOVE_OPERANDS));
            b.lane(|l| reduce(l, role, parent));
        }
        Collective::AllReduce => all_reduce(&mut b, role),
        _ => b.lane(|l| broadcast(l, role, parent)),
    }
    b.finish()
}

/// A reduce to place 0, which keeps the result, and a broadcast from there.
fn all_reduce(b: &mut Builder, role: Role) {
    b.scratch_chunks(u16::from(usize::from(role.children) >= MOVE_OPERANDS));
    let low = b.low_bit(R);
    let parent = b.difference(R, low);
    let parent = b.mod_n(parent);
    if role.duty == Duty::Root {
        return b.lane(|l| {
            reduce(l, role, parent);
            for sends in sends(role).chunks(MOVE_OPERANDS) {
                l.fold([output()]).into_all(sends).chunk(0);
            }
        });
    }
    b.lane(|l| reduce(l, role, parent));
    b.lane(|l| broadcast(l, role, parent));
}

/// To all children, the farthest first.
fn sends(role: Role) -> Vec<Spot> {
    (0..role.children).rev().map(|k| to(R + (1 << k))).collect()
}

/// The place of the parent.
pub(super) fn parent(b: &mut Builder) -> Index {
    let low = b.low_bit(R - ROOT);
    let parent = b.difference(R, low);
    b.mod_n(parent)
}

/// ⌊log2 n⌋ hops; the root sends ⌈log2 n⌉·S bytes, to the largest subtrees first.
fn broadcast(l: &mut LaneBuilder<'_>, role: Role, parent: Index) {
    let sends = sends(role);
    let (with_copy, rest) = sends.split_at(sends.len().min(MOVE_OPERANDS - 1));
    let copies: Vec<Spot> = [output()].iter().chain(with_copy).copied().collect();
    let (source, kept) = match role.duty {
        Duty::Root => (input(), input()),
        _ => (from(parent), output()),
    };
    l.fold([source]).into_all(&copies).chunk(0);
    for sends in rest.chunks(MOVE_OPERANDS) {
        l.fold([kept]).into_all(sends).chunk(0);
    }
}

/// ⌊log2 n⌋ hops; the root folds ⌈log2 n⌉·S bytes. The own contribution comes first, then the
/// children's from the nearest to the farthest: seen from the root, contributions are folded in
/// ascending order, split at powers of two.
fn reduce(l: &mut LaneBuilder<'_>, role: Role, parent: Index) {
    let root = role.duty == Duty::Root;
    let results = [if root { output() } else { to(parent) }];
    let receives: Vec<Spot> = (0..role.children).map(|k| from(R + (1 << k))).collect();
    let mut groups = receives.chunks(MOVE_OPERANDS - 1).peekable();
    let mut so_far = input();
    loop {
        let inputs: Vec<Spot> =
            [so_far].into_iter().chain(groups.next().into_iter().flatten().copied()).collect();
        let last = groups.peek().is_none();
        let outputs = if last { results } else { [scratch(0)] };
        let finish = Finish { pre: so_far == input(), post: last && root };
        l.fold_all(&inputs).finish(finish).into_all(&outputs).chunk(0);
        if last {
            return;
        }
        so_far = scratch(0);
    }
}
