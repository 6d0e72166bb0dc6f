//! Filling buffers, and counting wrong elements, by the oracle.

use ccl::reference::{Case, Counts, Data, compare};
use ccl::{Collective, Rank};

use super::area::{Area, POISON};
use super::call::{Lane, reduce};
use super::geometry::Blocks;
use super::layout::{Layout, Segment};
use super::operation::Operation;
use super::point::{Placement, Point};

/// What one rank's buffers hold before and after a call.
pub(crate) struct Check<'a> {
    data: Data<'a>,
    rank: Rank,
    /// Whose message arrives, where this is about messages.
    sender: Option<Rank>,
    element_bytes: usize,
    point: Point,
}

/// Lengths of all ranks' blocks, as the oracle takes them.
#[derive(Default)]
pub(crate) struct Lengths {
    counts: Vec<usize>,
}

impl Lengths {
    /// The lengths of a point among n ranks.
    pub(crate) fn new(point: &Point, n: u32) -> Lengths {
        let (operation, count) = (point.operation, point.amount.count);
        let counts = match operation {
            Operation::Collective(Collective::AllToAllV) => {
                let row = |rank| Blocks::seen_by(operation, count, n, Rank(rank)).counts;
                (0..n).flat_map(row).collect()
            }
            Operation::Collective(collective) if collective.uneven() => {
                Blocks::new(operation, count, n).counts
            }
            _ => Vec::new(),
        };
        Lengths { counts }
    }

    fn counts(&self, point: &Point) -> Counts<'_> {
        match point.operation {
            _ if self.counts.is_empty() => Counts::Even(point.amount.count),
            Operation::Collective(Collective::AllToAllV) => Counts::PerPair(&self.counts),
            _ => Counts::PerRank(&self.counts),
        }
    }
}

impl<'a> Check<'a> {
    /// The data of a point for `rank` of n. `sender` is whose message it receives.
    pub(crate) fn new(
        point: &Point,
        lengths: &'a Lengths,
        (rank, n): (Rank, u32),
        sender: Option<Rank>,
    ) -> Check<'a> {
        Check::with_seed(point, lengths, (rank, n), sender, SEED)
    }

    /// The same for the all-reduce of one of several buckets, each of which has data of its own.
    pub(crate) fn of_bucket(
        point: &Point,
        lengths: &'a Lengths,
        who: (Rank, u32),
        bucket: usize,
    ) -> Check<'a> {
        Check::with_seed(point, lengths, who, None, SEED + bucket as u64)
    }

    fn with_seed(
        point: &Point,
        lengths: &'a Lengths,
        (rank, n): (Rank, u32),
        sender: Option<Rank>,
        seed: u64,
    ) -> Check<'a> {
        let collective = match point.operation {
            Operation::Collective(collective) => collective,
            // The oracle has no messages; their data is any data that is only moved.
            Operation::SendRecv | Operation::PingPong => Collective::Broadcast,
        };
        let case = Case {
            collective,
            dtype: point.dtype,
            op: point.reduce,
            n,
            root: point.root,
            scalar: reduce(point).scalar(),
            counts: lengths.counts(point),
        };
        let data = Data::new(&case, seed);
        Check { data, rank, sender, element_bytes: point.dtype.size_bytes(), point: *point }
    }

    /// Sizes the lane's buffers and writes the input; everything else is poison.
    pub(crate) fn fill(&self, layout: &Layout, lane: &mut Lane) {
        lane.send.reset(layout.send_count * self.element_bytes);
        lane.recv.reset(layout.recv_count * self.element_bytes);
        for segment in &layout.inputs {
            let bytes = self.bytes_of(segment);
            self.data.fill_input(self.rank, segment.start, &mut lane.send.bytes_mut()[bytes]);
        }
    }

    /// Elements of the lane's result that are wrong, including those that nobody should have touched.
    pub(crate) fn wrong(&self, layout: &Layout, placement: Placement, lane: &Lane) -> u64 {
        let result = if placement == Placement::InPlace { &lane.send } else { &lane.recv };
        let wrong: u64 = layout.outputs.iter().map(|segment| self.wrong_in(segment, result.bytes())).sum();
        let overruns = [&lane.send, &lane.recv].map(Area::overrun_bytes).iter().sum::<usize>();
        wrong + self.spoiled(layout, placement, result) + overruns.div_ceil(self.element_bytes) as u64
    }

    fn wrong_in(&self, segment: &Segment, result: &[u8]) -> u64 {
        let mut expected = [0; CHUNK_BYTES];
        let mut wrong = 0;
        for (index, found) in result[self.bytes_of(segment)].chunks(CHUNK_BYTES).enumerate() {
            let expected = &mut expected[..found.len()];
            let start = segment.start + index * (CHUNK_BYTES / self.element_bytes);
            if self.expect(start, expected) {
                wrong += compare(self.point.dtype, found, expected).map_or(0, |m| m.count as u64);
            }
        }
        wrong
    }

    /// What must come out from element `start` on; `false` if anything may.
    fn expect(&self, start: usize, expected: &mut [u8]) -> bool {
        match (self.point.operation, self.sender) {
            (Operation::Collective(_), _) => self.data.fill_expected(self.rank, start, expected),
            (_, Some(sender)) => {
                self.data.fill_input(sender, start, expected);
                true
            }
            (_, None) => false,
        }
    }

    /// Elements of the gaps between blocks that are not poison any more.
    fn spoiled(&self, layout: &Layout, placement: Placement, result: &Area) -> u64 {
        let mut segments = layout.outputs.clone();
        if placement == Placement::InPlace {
            segments.extend(&layout.inputs);
        }
        segments.sort_unstable_by_key(|segment| segment.offset);
        let mut spoiled = 0;
        let mut end = 0;
        for segment in &segments {
            let gap = end..segment.offset.max(end);
            end = end.max(segment.offset + segment.count);
            let bytes = &result.bytes()[gap.start * self.element_bytes..gap.end * self.element_bytes];
            let elements = bytes.chunks(self.element_bytes);
            spoiled += elements.filter(|element| element.iter().any(|byte| *byte != POISON)).count();
        }
        spoiled as u64
    }

    fn bytes_of(&self, segment: &Segment) -> std::ops::Range<usize> {
        segment.offset * self.element_bytes..(segment.offset + segment.count) * self.element_bytes
    }
}

/// The data is the same in every run.
const SEED: u64 = 42;
/// Expected results are made piecewise, within the first-level cache.
const CHUNK_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use ccl::reference::reference;
    use ccl::{Dtype, ReduceOp};

    use super::super::geometry::Amount;
    use super::*;

    const N: u32 = 3;

    /// Everything that every rank has before a call.
    struct Stage {
        point: Point,
        placement: Placement,
        lengths: Lengths,
        layouts: Vec<Layout>,
        lanes: Vec<Lane>,
    }

    impl Stage {
        fn new(operation: Operation, dtype: Dtype, reduce: ReduceOp, placement: Placement) -> Stage {
            let amount = Amount::of_count(operation, 10, N, dtype);
            let point = Point { operation, dtype, reduce, root: Rank(1), amount };
            let layout = |rank| {
                let blocks = Blocks::seen_by(operation, 10, N, Rank(rank));
                Layout::new(&point, placement, Rank(rank), N, &blocks)
            };
            let lengths = Lengths::new(&point, N);
            let layouts = (0..N).map(layout).collect();
            let mut stage = Stage { point, placement, lengths, layouts, lanes: Vec::new() };
            for rank in 0..N {
                let mut lane = Lane::default();
                stage.check(rank).fill(&stage.layouts[rank as usize], &mut lane);
                stage.lanes.push(lane);
            }
            stage
        }

        fn check(&self, rank: u32) -> Check<'_> {
            Check::new(&self.point, &self.lengths, (Rank(rank), N), None)
        }

        fn wrong(&self, rank: u32) -> u64 {
            self.check(rank).wrong(&self.layouts[rank as usize], self.placement, &self.lanes[rank as usize])
        }

        /// Does what the collective should, by the naive reference.
        fn call(&mut self) {
            let size = self.point.dtype.size_bytes();
            let gather = |(layout, lane): (&Layout, &Lane)| {
                let segment =
                    |s: &Segment| lane.send.bytes()[s.offset * size..(s.offset + s.count) * size].to_vec();
                layout.inputs.iter().flat_map(segment).collect::<Vec<u8>>()
            };
            let inputs: Vec<_> = self.layouts.iter().zip(&self.lanes).map(gather).collect();
            let Operation::Collective(collective) = self.point.operation else { unreachable!() };
            let case = Case {
                collective,
                dtype: self.point.dtype,
                op: self.point.reduce,
                n: N,
                root: self.point.root,
                scalar: reduce(&self.point).scalar(),
                counts: self.lengths.counts(&self.point),
            };
            let outputs = reference(&case, &inputs);
            for ((layout, lane), output) in self.layouts.iter().zip(&mut self.lanes).zip(outputs) {
                let Some(output) = output else { continue };
                let area = if self.placement == Placement::InPlace { &mut lane.send } else { &mut lane.recv };
                for s in &layout.outputs {
                    area.bytes_mut()[s.offset * size..(s.offset + s.count) * size]
                        .copy_from_slice(&output[s.start * size..(s.start + s.count) * size]);
                }
            }
        }
    }

    fn stages() -> impl Iterator<Item = Stage> {
        let collectives = Operation::all().into_iter().filter(|operation| operation.has_in_place());
        collectives.flat_map(|operation| {
            let kinds = [
                (Dtype::F32, ReduceOp::Sum),
                (Dtype::F16, ReduceOp::PreMulSum),
                (Dtype::I8, ReduceOp::Average),
            ];
            kinds.into_iter().flat_map(move |(dtype, reduce)| {
                [Placement::OutOfPlace, Placement::InPlace].map(|p| Stage::new(operation, dtype, reduce, p))
            })
        })
    }

    #[test]
    fn what_the_naive_reference_computes_is_right() {
        for mut stage in stages() {
            let untouched: u64 = (0..N).map(|rank| stage.wrong(rank)).sum();
            assert!(untouched > 0, "{:?} {:?} is right before the call", stage.point, stage.placement);
            stage.call();
            for rank in 0..N {
                assert_eq!(stage.wrong(rank), 0, "{:?} {:?} rank {rank}", stage.point, stage.placement);
            }
        }
    }

    #[test]
    fn every_spoilt_element_is_counted() {
        for mut stage in stages() {
            stage.call();
            let size = stage.point.dtype.size_bytes();
            for rank in 0..N as usize {
                let Some(last) = stage.layouts[rank].outputs.iter().rfind(|s| s.count > 0).copied() else {
                    continue;
                };
                let in_place = stage.placement == Placement::InPlace;
                let lane = &mut stage.lanes[rank];
                let area = if in_place { &mut lane.send } else { &mut lane.recv };
                area.bytes_mut()[(last.offset + last.count - 1) * size] ^= 1;
                assert_eq!(stage.wrong(rank as u32), 1, "{:?}", stage.point);
            }
        }
    }

    #[test]
    fn gaps_between_blocks_must_stay() {
        let operation = "all_gather_v".parse().unwrap();
        let mut stage = Stage::new(operation, Dtype::F64, ReduceOp::Sum, Placement::OutOfPlace);
        stage.call();
        let gap = stage.layouts[0].outputs[0].count;
        stage.lanes[0].recv.bytes_mut()[gap * 8] ^= 1;
        assert_eq!(stage.wrong(0), 1);
    }
}
