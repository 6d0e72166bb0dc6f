//! How many elements a call of some size moves.

use ccl::{Collective, Dtype, Rank};

use super::operation::Operation;

/// The amount of one call, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Elements, as the call counts them: one block where there are blocks (on average where they
    /// differ), else the vector or message.
    pub(crate) count: usize,
    /// What was asked for.
    pub(crate) bytes: u64,
    /// What is moved, as nccl-tests define the size.
    pub(crate) actual_bytes: u64,
}

impl Amount {
    /// The amount nearest to `bytes`: never below one element per block, unless it is 0.
    pub(crate) fn of_bytes(operation: Operation, bytes: u64, n: u32, dtype: Dtype) -> Amount {
        let parts = blocks(operation, n);
        let count = bytes / dtype.size_bytes() as u64 / parts;
        let count = if bytes == 0 { 0 } else { count.max(1) };
        Amount { bytes, ..Amount::of_count(operation, count as usize, n, dtype) }
    }

    /// The amount with this count.
    pub(crate) fn of_count(operation: Operation, count: usize, n: u32, dtype: Dtype) -> Amount {
        let size = dtype.size_bytes() as u64;
        let uneven = matches!(operation, Operation::Collective(c) if c.uneven());
        let elements = match uneven {
            true => Blocks::new(operation, count, n).total() as u64,
            false => count as u64 * blocks(operation, n),
        };
        Amount { count, bytes: elements * size, actual_bytes: elements * size }
    }
}

/// How many blocks of `count` elements make up the size.
fn blocks(operation: Operation, n: u32) -> u64 {
    if operation.in_blocks() { u64::from(n) } else { 1 }
}

/// Block lengths and offsets of the v-forms: every block differs, with a gap after each.
///
/// Block b has about `count` × (2b+1)/n elements, so the average is `count`, and small counts leave
/// some blocks empty. In an all-to-all rank r sends block (r+p) mod n to rank p, which is symmetric:
/// the same tables serve both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Elements of each block.
    pub(crate) counts: Vec<usize>,
    /// Where each starts.
    pub(crate) offsets: Vec<usize>,
}

impl Blocks {
    /// The blocks that every rank sees alike.
    pub(crate) fn new(operation: Operation, count: usize, n: u32) -> Blocks {
        Blocks::seen_by(operation, count, n, Rank(0))
    }

    /// The blocks of `rank`'s buffers.
    pub(crate) fn seen_by(operation: Operation, count: usize, n: u32, rank: Rank) -> Blocks {
        let rotation = match operation {
            Operation::Collective(Collective::AllToAllV) => rank.index(),
            _ => 0,
        };
        let n = n as usize;
        let counts: Vec<_> = (0..n).map(|b| count * (2 * ((b + rotation) % n) + 1) / n).collect();
        let start = |end: &mut usize, block: &usize| {
            let start = *end;
            *end += block + GAP_COUNT;
            Some(start)
        };
        let offsets = counts.iter().scan(0, start).collect();
        Blocks { counts, offsets }
    }

    /// n blocks of the same length, one after another.
    pub(crate) fn even(count: usize, n: u32) -> Blocks {
        let n = n as usize;
        Blocks { counts: vec![count; n], offsets: (0..n).map(|block| block * count).collect() }
    }

    /// Elements of all blocks.
    pub(crate) fn total(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Elements of a buffer that holds all blocks and gaps.
    pub(crate) fn extent(&self) -> usize {
        let end = |(count, offset): (&usize, &usize)| count + offset;
        self.counts.iter().zip(&self.offsets).map(end).max().unwrap_or(0)
    }
}

/// Elements between two blocks, which nobody may touch.
const GAP_COUNT: usize = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(name: &str, bytes: u64, n: u32) -> (usize, u64) {
        let amount = Amount::of_bytes(name.parse().unwrap(), bytes, n, Dtype::F32);
        assert_eq!(amount.bytes, bytes);
        (amount.count, amount.actual_bytes)
    }

    #[test]
    fn sizes_are_those_of_the_peers() {
        assert_eq!(amount("all_reduce", 8, 4), (2, 8));
        assert_eq!(amount("all_reduce", 1, 4), (1, 4));
        assert_eq!(amount("all_gather", 8, 4), (1, 16));
        assert_eq!(amount("all_to_all", 4096, 4), (256, 4096));
        assert_eq!(amount("reduce_scatter", 100, 3), (8, 96));
        assert_eq!(amount("sendrecv", 0, 3), (0, 0));
    }

    #[test]
    fn uneven_blocks_average_to_the_count_and_do_not_touch() {
        let operation = "all_gather_v".parse().unwrap();
        for n in [1, 2, 3, 5, 8] {
            let blocks = Blocks::new(operation, 1000, n);
            assert!(blocks.total().abs_diff(1000 * n as usize) <= n as usize, "{n}");
            for b in 1..n as usize {
                assert!(blocks.offsets[b] > blocks.offsets[b - 1] + blocks.counts[b - 1]);
            }
        }
        assert_eq!(Blocks::new(operation, 1, 4).counts, [0, 0, 1, 1]);
    }

    #[test]
    fn all_to_all_blocks_are_symmetric() {
        let operation = "all_to_all_v".parse().unwrap();
        let blocks: Vec<_> = (0..5).map(|r| Blocks::seen_by(operation, 77, 5, Rank(r))).collect();
        for (r, p) in (0..5).flat_map(|r| (0..5).map(move |p| (r, p))) {
            assert_eq!(blocks[r].counts[p], blocks[p].counts[r]);
        }
    }
}
