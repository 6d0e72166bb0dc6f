//! Double binary tree all-reduce: two trees, each for half of the vector, reduce and broadcast at once.
//!
//! In a tree over the labels 0…n−1 the root is 0, with one child, the largest power of two below n.
//! Label v > 0 with lowest set bit low has the parent v ± low, whichever has bit low clear and bit
//! 2·low set, or v − low where that is not below n; its children are v − low/2 and v + low/2, the second
//! offset halved until the child is below n. The second tree takes the same labels in another order of
//! the ranks: mirrored where n is even, shifted by one where it is odd. So a rank that is inside one tree
//! is a leaf of the other (for odd n all but one), and has at most two children in all.
//!
//! Up and down run at the same time, in lanes of their own: a rank sends at most 2·S bytes in all, as a
//! ring does, in passes behind 2·⌈log2 n⌉ hops instead of 2(n−1). It pays where n is large; among few
//! ranks, and wherever two-shot has peers enough, others take fewer hops. One slot per edge is enough.
//!
//! The two trees' edges differ by tag. In place the down lane overwrites what the up lane has sent: the
//! result holds it, so it was read before.
//!
//! Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan", Parallel Computing 35 (2009).

use alloc::vec;
use alloc::vec::Vec;

use crate::collective::Collective;
use crate::ids::Place;
use crate::program::builder::{Arithmetic, Builder, Index, N, R, Spot, from, input, output, to};
use crate::program::{Chunks, Program};

/// How a rank stands in one tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Node {
    kind: Kind,
    /// The parent is v − low because v + low is not below n.
    cut: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
enum Kind {
    #[default]
    Root,
    Leaf,
    /// With children at −low/2 and +low/2.
    Inner,
    /// With children at −low/2 and, if it is not 0, at +offset.
    Edge {
        offset: u32,
    },
}

/// How a place stands in both trees; n is at least 2.
pub(super) fn nodes(n: u32, place: Place) -> [Node; 2] {
    [false, true].map(|second| node(n, label(n, place, second)))
}

/// The place above a place in one of the trees, of all but its root.
pub(crate) const fn parent(n: u32, place: u32, second: bool) -> Option<u32> {
    let v = label(n, Place(place), second);
    if v == 0 {
        return None;
    }
    let low = v & v.wrapping_neg();
    let above = (v - low) | (2 * low);
    let above = if above < n { above } else { v - low };
    Some(match second {
        false => above,
        true if n.is_multiple_of(2) => n - 1 - above,
        true => (above + 1) % n,
    })
}

/// The label of a place.
const fn label(n: u32, Place(place): Place, second: bool) -> u32 {
    match second {
        false => place,
        true if n.is_multiple_of(2) => n - 1 - place,
        true => (place + n - 1) % n,
    }
}

fn node(n: u32, v: u32) -> Node {
    if v == 0 {
        return Node::default();
    }
    let low = v & v.wrapping_neg();
    let cut = v & (2 * low) == 0 && v + low >= n;
    let halves = core::iter::successors(Some(low / 2), |offset| (*offset > 0).then_some(offset / 2));
    let kind = match { halves }.find(|offset| v + offset < n) {
        _ if low == 1 => Kind::Leaf,
        Some(offset) if offset == low / 2 => Kind::Inner,
        offset => Kind::Edge { offset: offset.unwrap_or(0) },
    };
    Node { kind, cut }
}

pub(super) fn program(n: u32, nodes: [Node; 2]) -> Program {
    let mut b = Builder::new("double_tree", Collective::AllReduce, Chunks::ONE);
    for (tree, node) in nodes.into_iter().enumerate() {
        let tree = Tree { n, second: tree == 1 };
        let (parent, children) = tree.family(&mut b, node);
        let tag = u8::from(tree.second);
        let up: Vec<Spot> =
            [input()].into_iter().chain(children.iter().map(|child| from(*child).tag(tag))).collect();
        let down: Vec<Spot> =
            [output()].into_iter().chain(children.iter().map(|child| to(*child).tag(tag))).collect();
        let Some(parent) = parent else {
            b.share(tag, 2, |l| l.fold_all(&up).pre().post().into_all(&down).chunk(0));
            continue;
        };
        b.share(tag, 2, |l| l.fold_all(&up).pre().into([to(parent).tag(tag)]).chunk(0));
        b.share(tag, 2, |l| l.fold([from(parent).tag(tag)]).into_all(&down).chunk(0));
    }
    b.finish()
}

/// One of the two trees.
#[derive(Clone, Copy)]
struct Tree {
    n: u32,
    second: bool,
}

impl Tree {
    /// The places of the parent, if there is one, and of the children.
    fn family(self, b: &mut Builder, node: Node) -> (Option<Index>, Vec<Index>) {
        let all = self.n as i32;
        let v = match self.second {
            false => b.plain(R),
            true if self.n.is_multiple_of(2) => b.plain(-R + (all - 1)),
            true => (R - 1).into(),
        };
        let low = b.low_bit(v);
        let parent = if node.cut {
            b.difference(v, low)
        } else {
            let twice = b.times(low, 2);
            let above = b.and(v, twice);
            let beside = b.sum(v, low);
            b.difference(beside, above)
        };
        let half = b.over(low, 2);
        let left = b.difference(v, half);
        let children = match node.kind {
            Kind::Root => vec![b.plain((self.n.next_power_of_two() / 2) as i32)],
            Kind::Leaf => Vec::new(),
            Kind::Inner => vec![left, b.sum(v, half)],
            Kind::Edge { offset: 0 } => vec![left],
            Kind::Edge { offset } => vec![left, b.sum(v, offset as i32)],
        };
        let parent = (node.kind != Kind::Root).then(|| self.place(b, parent));
        (parent, children.into_iter().map(|child| self.place(b, child)).collect())
    }

    /// The place with a label.
    fn place(self, b: &mut Builder, label: Index) -> Index {
        let place = match self.second {
            false => label,
            true if self.n.is_multiple_of(2) => {
                let last = b.plain(N - 1);
                b.difference(last, label)
            }
            true => b.sum(label, 1),
        };
        b.mod_n(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parent and children of every label, from the rules.
    fn family(n: u32, v: u32) -> (Option<u32>, Vec<u32>) {
        let low = v & v.wrapping_neg();
        if v == 0 {
            return (None, vec![n.next_power_of_two() / 2]);
        }
        let parent = if (v - low) | (2 * low) < n { (v - low) | (2 * low) } else { v - low };
        let mut children = if low > 1 { vec![v - low / 2] } else { Vec::new() };
        let mut offset = low / 2;
        while offset > 0 && v + offset >= n {
            offset /= 2;
        }
        if offset > 0 {
            children.push(v + offset);
        }
        (Some(parent), children)
    }

    #[test]
    fn the_trees_are_trees() {
        for n in (2..300).chain([1000, 1023, 1024, 1025, 4096, 6144, 24_575, 24_576, 24_577]) {
            let depth = |v: u32| core::iter::successors(Some(v), |v| family(n, *v).0).count() as u32 - 1;
            for v in 0..n {
                let (parent, children) = family(n, v);
                assert!(depth(v) <= crate::algo::rounds(n), "n={n} v={v}");
                assert!(parent.is_none_or(|parent| family(n, parent).1.contains(&v)), "n={n} v={v}");
                assert!(children.iter().all(|child| family(n, *child).0 == Some(v)), "n={n} v={v}");
            }
            let inside =
                |place: u32| [false, true].map(|second| family(n, label(n, Place(place), second)).1.len());
            let twice = (0..n).filter(|place| inside(*place).iter().all(|children| *children > 0)).count();
            assert_eq!(twice, n as usize % 2, "n={n}");
            assert!((0..n).all(|place| inside(place).iter().sum::<usize>() <= 2 + n as usize % 2), "n={n}");
        }
    }
}
