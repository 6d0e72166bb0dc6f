//! The oracle against arithmetic by hand, and the properties that test data promises.

use ccl_plan::{Collective, Dtype};

use super::*;

const DATA_COLLECTIVES: usize = 13;

const MISTAKEN_COUNT: usize = 300;

fn case(collective: Collective, dtype: Dtype, op: ReduceOp, n: u32, count: usize) -> Case<'static> {
    let scalar = exact_scalar(dtype);
    Case { collective, dtype, op, n, root: Rank(n / 2), scalar, counts: Counts::Even(count) }
}

#[test]
fn every_collective_does_what_it_says() {
    // Rank r sends 10·r + i.
    let bytes = |collective, count| {
        let case = Case { root: Rank(1), ..case(collective, Dtype::U8, ReduceOp::Sum, 3, count) };
        let inputs: Vec<Vec<u8>> =
            (0..3).map(|r| (0..case.send_count(Rank(r)) as u8).map(|i| 10 * r as u8 + i).collect()).collect();
        reference(&case, &inputs)
    };
    let every = |buffer: &[u8]| vec![Some(buffer.to_vec()); 3];
    let root = |buffer: &[u8]| vec![None, Some(buffer.to_vec()), None];
    let each = |buffers: [&[u8]; 3]| buffers.map(|buffer| Some(buffer.to_vec())).to_vec();

    assert_eq!(bytes(Collective::AllReduce, 2), every(&[30, 33]));
    assert_eq!(bytes(Collective::Reduce, 2), root(&[30, 33]));
    assert_eq!(bytes(Collective::Broadcast, 2), every(&[10, 11]));
    assert_eq!(bytes(Collective::AllGather, 2), every(&[0, 1, 10, 11, 20, 21]));
    assert_eq!(bytes(Collective::Gather, 2), root(&[0, 1, 10, 11, 20, 21]));
    assert_eq!(bytes(Collective::ReduceScatter, 2), each([&[30, 33], &[36, 39], &[42, 45]]));
    assert_eq!(bytes(Collective::Scatter, 2), each([&[10, 11], &[12, 13], &[14, 15]]));
    assert_eq!(bytes(Collective::AllToAll, 1), each([&[0, 10, 20], &[1, 11, 21], &[2, 12, 22]]));
    assert_eq!(bytes(Collective::Barrier, 1), vec![None; 3]);
}

#[test]
fn uneven_blocks_follow_each_other() {
    let per_rank = Counts::PerRank(&[2, 0, 1]);
    let run = |collective, counts| {
        let case = Case { root: Rank(1), counts, ..case(collective, Dtype::U8, ReduceOp::Max, 3, 0) };
        let inputs: Vec<Vec<u8>> =
            (0..3).map(|r| (0..case.send_count(Rank(r)) as u8).map(|i| 10 * r as u8 + i).collect()).collect();
        reference(&case, &inputs)
    };
    let each = |buffers: [&[u8]; 3]| buffers.map(|buffer| Some(buffer.to_vec())).to_vec();

    assert_eq!(run(Collective::AllGatherV, per_rank), each([&[0, 1, 20], &[0, 1, 20], &[0, 1, 20]]));
    assert_eq!(run(Collective::GatherV, per_rank), [None, Some(vec![0, 1, 20]), None]);
    assert_eq!(run(Collective::ReduceScatterV, per_rank), each([&[20, 21], &[], &[22]]));
    assert_eq!(run(Collective::ScatterV, per_rank), each([&[10, 11], &[], &[12]]));
    let per_pair = Counts::PerPair(&[1, 2, 0, 0, 1, 1, 2, 0, 1]);
    assert_eq!(run(Collective::AllToAllV, per_pair), each([&[0, 20, 21], &[1, 2, 10], &[11, 22]]));
}

#[test]
fn averages_and_scalars_are_applied() {
    let reduced = |op, dtype, inputs: [u64; 3]| {
        let case = Case { scalar: 2.0, ..case(Collective::AllReduce, dtype, op, 3, 1) };
        let inputs = inputs.map(|bits| bits.to_le_bytes()[..dtype.size_bytes()].to_vec());
        element::load(reference(&case, &inputs)[0].as_ref().unwrap())
    };
    let i8s = |values: [i8; 3]| values.map(|value| u64::from(value as u8));
    assert_eq!(reduced(ReduceOp::Average, Dtype::I8, i8s([-5, -2, -1])) as i8, -2);
    assert_eq!(reduced(ReduceOp::Average, Dtype::U8, i8s([100, 100, 100])) as u8, 14, "the sum wraps");
    assert_eq!(reduced(ReduceOp::PreMulSum, Dtype::I8, i8s([1, 2, -4])) as i8, -2);
    let f32s = [1.0f32, 2.0, 4.0].map(|value| u64::from(value.to_bits()));
    assert_eq!(f32::from_bits(reduced(ReduceOp::Average, Dtype::F32, f32s) as u32), 7.0 / 3.0);
    assert_eq!(f32::from_bits(reduced(ReduceOp::PreMulSum, Dtype::F32, f32s) as u32), 14.0);
}

#[test]
fn every_order_of_folding_gives_the_same_bits() {
    for (dtype, op, n) in cases() {
        let case = case(Collective::AllReduce, dtype, op, n, 40);
        let data = Data::new(&case, 7);
        let inputs: Vec<Vec<u8>> = (0..n).map(|rank| data.input(Rank(rank))).collect();
        let expected = data.expected(Rank(0)).unwrap();
        assert_eq!(reference(&case, &inputs)[0].as_ref(), Some(&expected), "{dtype} {op} {n}");
        for round in 0..2 {
            let random = hash::Stream::new(round, 0);
            for at in 0..40 {
                let bytes = at * dtype.size_bytes()..(at + 1) * dtype.size_bytes();
                let contributions =
                    inputs.iter().map(|input| scaled(&case, element::load(&input[bytes.clone()])));
                let folded = fold_as_random_tree(&case, contributions.collect(), random, at * 1000);
                assert_eq!(folded, element::load(&expected[bytes]), "{dtype} {op} {n} at {at}");
            }
        }
    }
}

/// Joins two random values until one is left.
fn fold_as_random_tree(case: &Case, mut values: Vec<u64>, random: hash::Stream, mut draw: usize) -> u64 {
    let mut take = |values: &mut Vec<u64>| {
        draw += 1;
        values.swap_remove(random.at(draw) as usize % values.len())
    };
    while values.len() > 1 {
        let (a, b) = (take(&mut values), take(&mut values));
        values.push(element::combine(case.dtype, case.op, a, b));
    }
    completed(case, values[0])
}

#[test]
fn a_missing_repeated_or_misplaced_contribution_shows() {
    for (dtype, op, n) in cases() {
        if ![2, 8, 64].contains(&n) {
            continue;
        }
        let case = case(Collective::AllReduce, dtype, op, n, MISTAKEN_COUNT);
        let data = Data::new(&case, 8);
        let expected = data.expected(Rank(0)).unwrap();
        let inputs: Vec<Vec<u8>> = (0..n).map(|rank| data.input(Rank(rank))).collect();
        let shows = |inputs: &[&[u8]], mistake: &str| {
            let wrong = compare(dtype, &fold(&case, inputs), &expected).map_or(0, |mismatch| mismatch.count);
            assert!(wrong > 0, "{dtype} {op} {n}: {mistake} changes nothing");
        };
        let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        {
            let rank = n as usize / 3;
            let missing: Vec<&[u8]> = [&views[..rank], &views[rank + 1..]].concat();
            shows(&missing, "a missing contribution");
            let mut rotated = inputs[rank].clone();
            rotated.rotate_left(64);
            let mut misplaced = views.clone();
            misplaced[rank] = &rotated;
            shows(&misplaced, "a misplaced contribution");
            if !matches!(op, ReduceOp::Max | ReduceOp::Min) {
                shows(&[&views[..], &[views[rank]]].concat(), "a repeated contribution");
            }
        }
    }
}

#[test]
fn expectations_match_the_reference_for_every_collective() {
    let per_rank = [3, 0, 1000, 17];
    let per_pair: Vec<usize> = (0..16).map(|pair| pair * 37 % 101).collect();
    for collective in Collective::ALL.into_iter().take(DATA_COLLECTIVES) {
        for dtype in [Dtype::F8E5m2, Dtype::Bf16, Dtype::U64, Dtype::F64] {
            let counts = match collective {
                Collective::AllToAllV => Counts::PerPair(&per_pair),
                _ if collective.uneven() => Counts::PerRank(&per_rank),
                _ => Counts::Even(700),
            };
            let case = Case { counts, ..case(collective, dtype, ReduceOp::Average, 4, 0) };
            let data = Data::new(&case, 9);
            let inputs: Vec<Vec<u8>> = (0..4).map(|rank| data.input(Rank(rank))).collect();
            for (rank, received) in reference(&case, &inputs).into_iter().enumerate() {
                let rank = Rank(rank as u32);
                assert_eq!(data.expected(rank), received, "{collective} {dtype} on {rank}");
                let Some(received) = received else { continue };
                // In parts of a length that fits nothing.
                let size = dtype.size_bytes();
                for (part, bytes) in received.chunks(333 * size).enumerate() {
                    let mut out = vec![0; bytes.len()];
                    assert!(data.fill_expected(rank, part * 333, &mut out));
                    assert_eq!(out, bytes, "{collective} {dtype} on {rank}, part {part}");
                }
            }
        }
    }
}

fn cases() -> impl Iterator<Item = (Dtype, ReduceOp, u32)> {
    let pairs = Dtype::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    pairs.flat_map(|(dtype, op)| [1, 2, 3, 5, 8, 17, 64].map(|n| (dtype, op, n)))
}
