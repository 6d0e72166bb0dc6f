//! Binomial trees over blocks: gather and scatter in ⌊log2 n⌋ rounds.
//!
//! The tree is that of `binomial`. A rank's subtree is the next min(low(v), n − v) places from its own
//! on; their blocks travel together, as one range around the end of the order. Every block goes down,
//! or up, at most ⌊log2 n⌋ hops; the root's link carries (n−1)·b bytes, as many as in the direct
//! algorithms, in ⌈log2 n⌉ messages instead of n − 1. Ranks inside the tree carry bytes that are not theirs,
//! which the direct algorithms save: trees pay for short blocks among many ranks.
//!
//! What is on its way lies in n cells of scratch, one for each place, of which a rank uses those of its
//! subtree. One slot per edge is enough. The root reads and writes its own block at the same index:
//! safe in place.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", IJHPCA 19 (2005).

use super::arc::Arc;
use super::{Duty, Role};
use crate::collective::Collective;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, R, ROOT, Spot, from, input, output, scratch, to,
};
use crate::program::{Chunks, ExtentOf, Finish, Program};

pub(super) fn program(collective: Collective, n: u32, role: Role) -> Program {
    let mut b = Builder::new("binomial", collective, Chunks::ONE);
    if role.duty != Duty::Root && role.children > 0 {
        b.scratch_chunks(n as u16);
    }
    let parent = super::binomial::parent(&mut b);
    let tree = Tree { n, role, parent };
    b.lane(|l| match collective {
        Collective::Gather => tree.gather(l),
        _ => tree.scatter(l),
    });
    b.finish()
}

/// A rank's surroundings.
struct Tree {
    n: u32,
    role: Role,
    parent: Index,
}

impl Tree {
    /// The nearest children first, then everything on to the parent.
    fn gather(&self, l: &mut LaneBuilder<'_>) {
        let (of, none) = (ExtentOf::RecvBlock, Finish::default());
        match self.role.duty {
            Duty::Root => l.fold([input()]).into([output()]).recv_block(R),
            _ if self.role.children == 0 => {
                return l.fold([input()]).into([to(self.parent)]).recv_block(R);
            }
            _ => l.fold([input()]).into([scratch(R)]).recv_block(R),
        }
        for k in 0..self.role.children {
            self.subtree_of(l, k).moves(l, of, none, |_| [from(R + (1 << k))], |at| [self.kept(at)]);
        }
        if self.role.duty != Duty::Root {
            self.subtree(l).moves(l, of, none, |at| [scratch(at)], |_| [to(self.parent)]);
        }
    }

    /// The largest subtrees first.
    fn scatter(&self, l: &mut LaneBuilder<'_>) {
        let (of, none) = (ExtentOf::SendBlock, Finish::default());
        if self.role.duty != Duty::Root {
            if self.role.children == 0 {
                return l.fold([from(self.parent)]).into([output()]).send_block(R);
            }
            self.subtree(l).moves(l, of, none, |_| [from(self.parent)], |at| [scratch(at)]);
        }
        for k in (0..self.role.children).rev() {
            self.subtree_of(l, k).moves(l, of, none, |at| [self.brought(at)], |_| [to(R + (1 << k))]);
        }
        l.fold([self.brought(R.into())]).into([output()]).send_block(R);
    }

    /// Where gathered blocks go.
    fn kept(&self, at: Index) -> Spot {
        if self.role.duty == Duty::Root { output() } else { scratch(at) }
    }

    /// Where blocks to scatter come from.
    fn brought(&self, at: Index) -> Spot {
        if self.role.duty == Duty::Root { input() } else { scratch(at) }
    }

    /// The own subtree of a rank that is not the root.
    fn subtree(&self, l: &mut LaneBuilder<'_>) -> Arc {
        let low = l.low_bit(R - ROOT);
        // No subtree but the root's is larger; the checker cannot know.
        let whole = l.min(low, (self.n.next_power_of_two() / 2) as i32);
        let all = l.plain(self.n as i32);
        let rest = l.difference(all, R - ROOT);
        let length = l.min(whole, rest);
        Arc::new(l, self.n, R, length)
    }

    /// The subtree of child k.
    fn subtree_of(&self, l: &mut LaneBuilder<'_>, k: u8) -> Arc {
        let behind = l.plain(self.n as i32 - (1 << k));
        let rest = l.difference(behind, R - ROOT);
        let length = l.min(rest, 1 << k);
        Arc::new(l, self.n, R + (1 << k), length)
    }
}
