//! Where each piece of data lies in a rank's buffers.

use ccl::plan::Shape;
use ccl::{Collective, Rank};

use super::geometry::Blocks;
use super::operation::Operation;
use super::point::{Placement, Point};

/// A piece of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its place in the data as the oracle counts it: blocks one after another.
    pub(crate) start: usize,
    /// Its place in the buffer.
    pub(crate) offset: usize,
    /// Its length.
    pub(crate) count: usize,
}

/// One rank's buffers for one point; everything in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Length of the send buffer, or of the only one.
    pub(crate) send_count: usize,
    /// Length of the receive buffer; 0 in place.
    pub(crate) recv_count: usize,
    /// Where the input lies, in the send buffer or the only one.
    pub(crate) inputs: Vec<Segment>,
    /// Where the result lies, in the receive buffer or the only one.
    pub(crate) outputs: Vec<Segment>,
}

/// Bytes of the longest buffer that any of `n` ranks has for a point.
pub(crate) fn longest_bytes(point: &Point, placement: Placement, n: u32) -> usize {
    let of_rank = |rank| {
        let blocks = Blocks::seen_by(point.operation, point.amount.count, n, rank);
        let layout = Layout::new(point, placement, rank, n, &blocks);
        layout.send_count.max(layout.recv_count) * point.dtype.size_bytes()
    };
    (0..n).map(Rank).map(of_rank).max().unwrap_or(0)
}

impl Layout {
    /// The buffers of `rank` of `n`; `blocks` are those it sees in a v-form.
    pub(crate) fn new(point: &Point, placement: Placement, rank: Rank, n: u32, blocks: &Blocks) -> Layout {
        let Operation::Collective(collective) = point.operation else {
            let whole = Side::one(point.amount.count);
            return Layout::separate(whole.clone(), whole);
        };
        let even;
        let blocks = match collective.uneven() {
            true => blocks,
            false => {
                even = Blocks::even(point.amount.count, n);
                &even
            }
        };
        let at_root = rank == point.root;
        let side = |shape, takes_part: bool| match shape {
            _ if !takes_part => Side::default(),
            Shape::None => Side::default(),
            Shape::Whole => Side::one(point.amount.count),
            Shape::Own => Side::one(blocks.counts[rank.index()]),
            Shape::PerRank => Side::of(blocks),
        };
        let input = side(collective.input(), at_root || !only_root_sends(collective));
        let output = side(collective.output(), at_root || !only_root_receives(collective));
        match placement {
            Placement::OutOfPlace => Layout::separate(input, output),
            Placement::InPlace => Layout::joined(collective, input, output, blocks.offsets[rank.index()]),
        }
    }

    fn separate(input: Side, output: Side) -> Layout {
        Layout {
            send_count: input.count,
            recv_count: output.count,
            inputs: input.segments,
            outputs: output.segments,
        }
    }

    /// One buffer for both: the larger side's, in which the smaller's is the rank's own block.
    fn joined(collective: Collective, mut input: Side, mut output: Side, own_offset: usize) -> Layout {
        let whole = collective.input() == collective.output();
        if !whole && !input.segments.is_empty() && !output.segments.is_empty() {
            let own = if collective.input() == Shape::Own { &mut input } else { &mut output };
            own.segments.iter_mut().for_each(|segment| segment.offset += own_offset);
        }
        Layout {
            send_count: input.count.max(output.count),
            recv_count: 0,
            inputs: input.segments,
            outputs: output.segments,
        }
    }
}

/// One side of a call.
#[derive(Clone, Default)]
struct Side {
    count: usize,
    segments: Vec<Segment>,
}

impl Side {
    fn one(count: usize) -> Side {
        Side { count, segments: vec![Segment { start: 0, offset: 0, count }] }
    }

    fn of(blocks: &Blocks) -> Side {
        let segment = |start: &mut usize, (count, offset): (&usize, &usize)| {
            let segment = Segment { start: *start, offset: *offset, count: *count };
            *start += count;
            Some(segment)
        };
        let segments = blocks.counts.iter().zip(&blocks.offsets).scan(0, segment).collect();
        Side { count: blocks.extent(), segments }
    }
}

fn only_root_sends(collective: Collective) -> bool {
    matches!(collective, Collective::Broadcast | Collective::Scatter | Collective::ScatterV)
}

fn only_root_receives(collective: Collective) -> bool {
    matches!(collective, Collective::Reduce | Collective::Gather | Collective::GatherV)
}

#[cfg(test)]
mod tests {
    use ccl::{Dtype, ReduceOp};

    use super::super::geometry::Amount;
    use super::*;

    fn layout(name: &str, placement: Placement, rank: u32) -> Layout {
        let operation: Operation = name.parse().unwrap();
        let amount = Amount::of_count(operation, 10, 3, Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Sum, root: Rank(1), amount };
        let blocks = Blocks::seen_by(operation, 10, 3, Rank(rank));
        Layout::new(&point, placement, Rank(rank), 3, &blocks)
    }

    fn offsets(segments: &[Segment]) -> Vec<usize> {
        segments.iter().map(|segment| segment.offset).collect()
    }

    #[test]
    fn separate_buffers_hold_what_each_side_has() {
        let counts = |name, rank| {
            let layout = layout(name, Placement::OutOfPlace, rank);
            (layout.send_count, layout.recv_count)
        };
        assert_eq!(counts("all_reduce", 0), (10, 10));
        assert_eq!(counts("all_gather", 0), (10, 30));
        assert_eq!(counts("reduce_scatter", 0), (30, 10));
        assert_eq!((counts("reduce", 0), counts("reduce", 1)), ((10, 0), (10, 10)));
        assert_eq!((counts("broadcast", 0), counts("broadcast", 1)), ((0, 10), (10, 10)));
        assert_eq!((counts("scatter", 2), counts("scatter", 1)), ((0, 10), (30, 10)));
        assert_eq!(counts("sendrecv", 0), (10, 10));
    }

    #[test]
    fn in_place_the_own_block_is_where_it_belongs() {
        let gather = layout("all_gather", Placement::InPlace, 2);
        assert_eq!((gather.send_count, gather.recv_count), (30, 0));
        assert_eq!((offsets(&gather.inputs), offsets(&gather.outputs)), (vec![20], vec![0, 10, 20]));
        let scatter = layout("reduce_scatter", Placement::InPlace, 1);
        assert_eq!((offsets(&scatter.inputs), offsets(&scatter.outputs)), (vec![0, 10, 20], vec![10]));
        let elsewhere = layout("gather", Placement::InPlace, 2);
        assert_eq!((elsewhere.send_count, offsets(&elsewhere.inputs)), (10, vec![0]));
        assert!(elsewhere.outputs.is_empty());
        let reduced = layout("all_reduce", Placement::InPlace, 2);
        assert_eq!((offsets(&reduced.inputs), offsets(&reduced.outputs)), (vec![0], vec![0]));
    }

    #[test]
    fn uneven_blocks_keep_their_gaps_and_their_place_in_the_data() {
        let gather = layout("all_gather_v", Placement::OutOfPlace, 1);
        let starts: Vec<_> = gather.outputs.iter().map(|segment| segment.start).collect();
        assert_eq!((starts, offsets(&gather.outputs)), (vec![0, 3, 13], vec![0, 4, 15]));
        assert_eq!((gather.send_count, gather.recv_count), (10, 31));
    }
}
