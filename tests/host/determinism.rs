//! Determinism: what may change without changing the bits of a result, level by level.

use ccl::reference::element::{combine, encode, load};
use ccl::{
    Buffers, Collective, Communicator, Config, Dtype, Level, Rank, Reduce, ReduceOp, Request, Result, local,
};

use crate::matrix::config;

/// The same call again and again, with threads scheduled as they happen to be.
#[test]
fn a_run_repeats_its_bits() {
    for n in [3, 8] {
        for dtype in FLOATS {
            let results = local::run_with(&config(&[]), n, |comm| {
                let mut first = [const { None }; OPS.len()];
                for run in 0..RUNS {
                    let (op, first) = (OPS[run % OPS.len()], &mut first[run % OPS.len()]);
                    let found = reduced(&comm, leaf(dtype, comm.rank().0), dtype, op)?;
                    assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{dtype:?} {op:?} n={n}");
                }
                Ok(first)
            });
            let results = results.unwrap();
            assert!(results.iter().all(|result| *result == results[0]), "{dtype:?} n={n}: ranks differ");
        }
    }
}

#[test]
fn pieces_at_any_offset_have_the_bits_of_the_whole() {
    for (level, n) in [("size", 5), ("world", 5), ("size", 8), ("world", 8)] {
        let config = config(&[("CCL_DETERMINISM", level), ("CCL_BUFFSIZE", "8K"), ("CCL_SLOTS", "2")]);
        let pieces = local::run_with(&config, n, |comm| {
            for dtype in FLOATS {
                for op in OPS {
                    let input = long(dtype, comm.rank().0, LONG);
                    let whole = reduced(&comm, input.clone(), dtype, op)?;
                    let mut pieces = Vec::new();
                    for (start, end) in cuts(LONG, dtype as u64) {
                        let size = dtype.size_bytes();
                        pieces.extend(reduced(&comm, input[start * size..end * size].to_vec(), dtype, op)?);
                    }
                    assert!(whole == pieces, "{level} n={n} {dtype:?} {op:?}");
                }
            }
            Ok(())
        });
        pieces.unwrap();
    }
}

/// The check above must be able to fail: a ring starts each chunk at another rank.
#[test]
fn without_a_level_the_bits_follow_the_size() {
    let ring = config(&[("CCL_ALGO", "allreduce:ring")]);
    let same = local::run_with(&ring, 5, |comm| {
        let input = long(Dtype::F32, comm.rank().0, LONG);
        let whole = reduced(&comm, input.clone(), Dtype::F32, ReduceOp::Sum)?;
        let half = reduced(&comm, input[..2 * LONG].to_vec(), Dtype::F32, ReduceOp::Sum)?;
        Ok(whole[..2 * LONG] == half[..])
    });
    assert!(same.unwrap().iter().all(|same| !same));
}

/// 64 leaf vectors spread over 1 to 64 ranks, each of which folds its own first: the bits are those of the
/// tree over all leaves, whatever the algorithm and the way between the ranks.
#[test]
fn the_world_does_not_show_in_the_bits() {
    let ops = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];
    let calls: Vec<_> = FLOATS.into_iter().flat_map(|dtype| ops.map(|op| (dtype, op))).collect();
    let expected: Vec<_> = calls.iter().map(|(dtype, op)| fold(*dtype, *op, 0..LEAVES)).collect();
    for (n, settings) in worlds() {
        for found in world(&settings, n, &calls) {
            for ((call, found), expected) in calls.iter().zip(&found).zip(&expected) {
                assert!(found == expected, "{call:?} n={n} {settings:?}");
            }
        }
    }
}

/// A call that asks for a level gets its bits, whatever the communicator promises and other calls ask for.
#[test]
fn a_call_may_ask_for_more() {
    for n in [4, 5] {
        let at = |setting: &'static str, levels: &'static [Level]| {
            // Recursive doubling between 4 ranks has the bits of the tree, whoever asked for them.
            let settings = [("CCL_DETERMINISM", setting), ("CCL_ALGO", "^recursive_doubling")];
            let results = local::run_with(&config(&settings), n, |comm| {
                let mut found = Vec::new();
                for dtype in FLOATS {
                    for level in levels {
                        let sum = Reduce::from(ReduceOp::Sum).at(*level);
                        found.push(reduced(&comm, long(dtype, comm.rank().0, LONG), dtype, sum)?);
                    }
                }
                Ok(found)
            });
            results.unwrap().swap_remove(0)
        };
        let world = at("world", &[Level::Run]);
        assert_eq!(at("run", &[Level::World]), world);
        // Asking for less changes nothing, and one call nothing about the next.
        assert_eq!(at("world", &[Level::Size]), world);
        let in_turn = at("run", &[Level::World, Level::Run, Level::World]);
        let of_world = in_turn.iter().enumerate().filter(|(index, _)| index % 3 != 1).map(|(_, found)| found);
        assert!(of_world.eq(world.iter().flat_map(|found| [found, found])));
        // The levels can be told apart.
        assert_ne!(at("run", &[Level::Run]), world);
    }
}

#[test]
fn a_level_that_no_algorithm_reaches_is_an_error_of_the_call() {
    let ring = config(&[("CCL_ALGO", "allreduce:ring")]);
    let errors = local::run_with(&ring, 3, |comm| {
        let mut values = [f64::from(comm.rank().0)];
        let error = comm.all_reduce_in_place(&mut values, Reduce::from(ReduceOp::Sum).at(Level::World));
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [3.0]);
        Ok(error.unwrap_err().to_string())
    });
    for error in errors.unwrap() {
        assert!(error.contains("or the call's level"), "{error}");
    }
}

/// Also where ranks are no power of two, and of every collective that reduces.
#[test]
fn all_reductions_fold_in_the_same_tree() {
    for n in [3, 5, 6, 7, 11] {
        let results = local::run_with(&config(&[("CCL_DETERMINISM", "world")]), n, |comm| {
            let (me, size) = (comm.rank().index(), Dtype::F32.size_bytes());
            let input: Vec<u8> =
                (0..n).flat_map(|block| leaf(Dtype::F32, comm.rank().0 * n + block)).collect();
            let all = reduced(&comm, input.clone(), Dtype::F32, ReduceOp::Sum)?;
            let mut scattered = vec![0; LEAF * size];
            let buffers = Buffers::Separate { send: &input, recv: &mut scattered };
            comm.run(call(Collective::ReduceScatter, (Dtype::F32, ReduceOp::Sum), LEAF, Rank(0), buffers))?;
            assert_eq!(scattered, all[me * LEAF * size..][..LEAF * size], "n={n}");
            for root in (0..n).map(Rank) {
                let mut rooted = input.clone();
                let count = rooted.len() / size;
                let buffers = Buffers::InPlace(&mut rooted);
                comm.run(call(Collective::Reduce, (Dtype::F32, ReduceOp::Sum), count, root, buffers))?;
                assert!(comm.rank() != root || rooted == all, "root {root} of {n}");
            }
            Ok(all)
        });
        let results = results.unwrap();
        let trees: Vec<u8> = (0..n)
            .flat_map(|block| {
                fold_all(Dtype::F32, ReduceOp::Sum, &|rank| leaf(Dtype::F32, rank * n + block), 0, n)
            })
            .collect();
        assert!(results.iter().all(|result| *result == trees), "n={n}");
    }
}

/// Numbers of ranks, with what decides how they talk.
fn worlds() -> Vec<(u32, Vec<(&'static str, &'static str)>)> {
    let level = ("CCL_DETERMINISM", "world");
    let mut worlds: Vec<_> = [1, 2, 4, 8, 16, 64].into_iter().map(|n| (n, vec![level])).collect();
    worlds.extend([2, 4].map(|n| (n, vec![level, ("CCL_SHM_DISABLE", "1")])));
    worlds.extend([4, 8].map(|n| (n, vec![level, ("CCL_DIRECT_BYTES", "1"), ("CCL_MAPPED_BYTES", "1")])));
    for forced in FORCED {
        worlds.extend([4, 8].map(|n| (n, vec![level, ("CCL_ALGO", forced)])));
    }
    worlds
}

/// What each of n ranks, which stand for as many leaves each, gets of every call.
fn world(
    settings: &[(&'static str, &'static str)],
    n: u32,
    calls: &[(Dtype, ReduceOp)],
) -> Vec<Vec<Vec<u8>>> {
    let config: Config = config(settings);
    let each = LEAVES / n;
    local::run_with(&config, n, |comm| {
        let first = comm.rank().0 * each;
        let one = |(dtype, op): &(Dtype, ReduceOp)| {
            reduced(&comm, fold(*dtype, *op, first..first + each), *dtype, *op)
        };
        calls.iter().map(one).collect()
    })
    .unwrap()
}

fn reduced(
    comm: &Communicator,
    mut bytes: Vec<u8>,
    dtype: Dtype,
    reduce: impl Into<Reduce>,
) -> Result<Vec<u8>> {
    let count = bytes.len() / dtype.size_bytes();
    comm.run(call(Collective::AllReduce, (dtype, reduce), count, Rank(0), Buffers::InPlace(&mut bytes)))?;
    Ok(bytes)
}

fn call<'a>(
    collective: Collective,
    (dtype, reduce): (Dtype, impl Into<Reduce>),
    count: usize,
    root: Rank,
    buffers: Buffers<'a>,
) -> Request<'a> {
    Request { collective, dtype, reduce: reduce.into(), count, root, buffers, blocks: None }
}

/// Leaves folded in the canonical tree: by definition, not as programs do it.
fn fold(dtype: Dtype, op: ReduceOp, leaves: std::ops::Range<u32>) -> Vec<u8> {
    fold_all(dtype, op, &|index| leaf(dtype, index), leaves.start, leaves.end - leaves.start)
}

fn fold_all(dtype: Dtype, op: ReduceOp, leaf: &dyn Fn(u32) -> Vec<u8>, first: u32, count: u32) -> Vec<u8> {
    if count == 1 {
        return leaf(first);
    }
    let half = count.next_power_of_two() / 2;
    let left = fold_all(dtype, op, leaf, first, half);
    let right = fold_all(dtype, op, leaf, first + half, count - half);
    let size = dtype.size_bytes();
    let pairs = left.chunks(size).zip(right.chunks(size));
    pairs.flat_map(|(a, b)| combine(dtype, op, load(a), load(b)).to_le_bytes()[..size].to_vec()).collect()
}

fn leaf(dtype: Dtype, index: u32) -> Vec<u8> {
    long(dtype, index, LEAF)
}

/// Numbers of both signs and several magnitudes, so that sums and products depend on the order.
fn long(dtype: Dtype, index: u32, count: usize) -> Vec<u8> {
    let element = |at: usize| {
        let bits = mix(u64::from(index) << 32 | at as u64);
        let magnitude = (1.0 + (bits >> 40) as f64 / f64::from(1 << 24)) * 2f64.powi((bits % 5) as i32 - 2);
        let value = if bits & 64 == 0 { magnitude } else { -magnitude };
        encode(dtype, value).to_le_bytes()[..dtype.size_bytes()].to_vec()
    };
    (0..count).flat_map(element).collect()
}

/// Random pieces of `count` elements, in order.
fn cuts(count: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut at: Vec<usize> = (0..6).map(|k| mix(seed * 8 + k) as usize % count).chain([0, count]).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    let word = (word ^ (word >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
    word ^ (word >> 33)
}

const FLOATS: [Dtype; 6] = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8E4m3, Dtype::F8E5m2];
/// All all-reduces that fold in the tree, where n is a power of two.
const FORCED: [&str; 4] = [
    "allreduce:one_shot_tree",
    "allreduce:two_shot_tree",
    "allreduce:binomial",
    "allreduce:recursive_doubling",
];
const LEAVES: u32 = 64;
/// Elements of a leaf: no multiple of anything.
const LEAF: usize = 37;
/// Several passes over the smallest slots.
const LONG: usize = 5003;
/// A scalar is no reason to fold otherwise.
const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Average];
/// Calls of each number of ranks and dtype.
const RUNS: usize = 1000;
