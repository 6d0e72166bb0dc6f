//! Every dtype, reduce operation, shape and level against the reference arithmetic.

use proptest::prelude::*;

use super::*;
use crate::discover::processor::on_each;
use crate::reference::element as naive;

#[test]
fn every_case_matches_the_reference() {
    on_each(every_case_matches);
}

fn every_case_matches() {
    let mut random = Random(1);
    for dtype in Dtype::ALL {
        for op in ReduceOp::ALL {
            for count in COUNTS {
                for inputs in 1..=4 {
                    check(&mut random, dtype, op, count, inputs);
                }
            }
        }
    }
}

/// Every finish, level, number of outputs and placement, at random alignments.
fn check(random: &mut Random, dtype: Dtype, op: ReduceOp, count: usize, inputs: usize) {
    let size = dtype.size_bytes();
    let data: Vec<Vec<u8>> = (0..inputs).map(|_| random.elements(dtype, count)).collect();
    let scalar = [0.5, -3.25, 0.1, 7.0][random.below(4)];
    let n = [1, 3, 8, 1000][random.below(4)];
    for finish in finishes(op, random) {
        let expected = naive_fold(dtype, op, n, scalar, &data, finish);
        for level in Level::available() {
            let reduction = Reduction::at(level, dtype, op, n, scalar);
            for outputs in 1..=3 {
                let place = random.below(outputs + 1);
                let mut buffers: Vec<Buffer> = data.iter().map(|d| Buffer::new(d, random.below(9))).collect();
                for _ in 0..outputs {
                    buffers.push(Buffer::new(&vec![0xee; count * size], random.below(9)));
                }
                let pointers: Vec<*mut u8> = buffers.iter_mut().map(Buffer::data).collect();
                let ins: Vec<*const u8> = pointers[..inputs].iter().map(|p| p.cast_const()).collect();
                let mut outs = pointers[inputs..].to_vec();
                if place < outputs {
                    outs[place] = pointers[random.below(inputs)];
                }
                let way = random.below(6);
                // SAFETY: every buffer holds `count` elements; they are apart but for the equal pointers.
                unsafe {
                    match way {
                        0 | 1 => {
                            let cached = random.below(outputs + 1);
                            reduction.fold_long((&ins, cached as u8), (&outs, cached), count, finish);
                        }
                        2 => reduction.fold_aside(&ins, &outs, count, finish),
                        _ => reduction.fold(&ins, &outs, count, finish),
                    }
                }
                for (i, buffer) in buffers.iter_mut().enumerate() {
                    let written = outs.contains(&buffer.data());
                    let want = if written {
                        &expected
                    } else if i < inputs {
                        &data[i]
                    } else {
                        continue;
                    };
                    assert_eq!(
                        buffer.read(),
                        *want,
                        "{dtype} {op} {level:?}, count {count}, buffer {i}, {inputs} inputs, {outputs} outputs, \
                         {finish:?}, output {place} in place, way {way}, n {n}, scalar {scalar}"
                    );
                }
            }
        }
    }
}

fn finishes(op: ReduceOp, random: &mut Random) -> Vec<Finish> {
    match op {
        ReduceOp::PreMulSum => vec![
            Finish::NONE,
            Finish::NONE.scaling(0xf),
            Finish::NONE.scaling(random.below(16) as u8).completing(),
        ],
        ReduceOp::Average => vec![Finish::NONE, Finish::NONE.scaling(0xf).completing()],
        _ => vec![Finish::NONE.scaling(0xf).completing()],
    }
}

fn naive_fold(dtype: Dtype, op: ReduceOp, n: u32, scalar: f64, data: &[Vec<u8>], finish: Finish) -> Vec<u8> {
    let size = dtype.size_bytes();
    let mut result = Vec::new();
    for at in (0..data[0].len()).step_by(size) {
        let input = |i: usize| {
            let bits = naive::load(&data[i][at..at + size]);
            let scaled = op == ReduceOp::PreMulSum && finish.scales(i);
            if scaled { naive::scale(dtype, bits, scalar) } else { bits }
        };
        let mut folded = (1..data.len()).fold(input(0), |a, i| naive::combine(dtype, op, a, input(i)));
        if op == ReduceOp::Average && finish.completes() {
            folded = naive::divide(dtype, folded, n);
        }
        result.extend_from_slice(&folded.to_le_bytes()[..size]);
    }
    result
}

#[test]
fn a_result_does_not_depend_on_grouping() {
    let mut random = Random(2);
    for dtype in Dtype::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min] {
            let data: Vec<_> = (0..4).map(|_| random.elements(dtype, 500)).collect();
            let fold = |inputs: &[&Vec<u8>]| {
                let mut out = vec![0; inputs[0].len()];
                let pointers: Vec<_> = inputs.iter().map(|input| input.as_ptr()).collect();
                // SAFETY: all hold 500 elements, and `out` is apart.
                unsafe {
                    let reduction = Reduction::new(dtype, op, 4, 1.0);
                    reduction.fold(&pointers, &[out.as_mut_ptr()], 500, Finish::NONE);
                }
                out
            };
            let together = fold(&[&data[0], &data[1], &data[2], &data[3]]);
            let first = fold(&[&data[0], &data[1]]);
            assert_eq!(fold(&[&first, &data[2], &data[3]]), together, "{dtype} {op}");
            let three = fold(&[&data[0], &data[1], &data[2]]);
            assert_eq!(fold(&[&three, &data[3]]), together, "{dtype} {op}");
        }
    }
}

#[test]
fn contributions_of_any_number_of_ranks_match_the_reference() {
    let mut random = Random(4);
    for dtype in Dtype::ALL {
        for op in ReduceOp::ALL {
            for ranks in [1, 2, 3, 5, 8] {
                for stores in [Stores::Cached, Stores::Streaming] {
                    check_all(&mut random, (dtype, op), ranks, stores);
                }
            }
        }
    }
}

/// Each rank with a scalar of its own, results into the vectors of some and elsewhere. Half the time all begin equally far into a line.
fn check_all(random: &mut Random, (dtype, op): (Dtype, ReduceOp), ranks: usize, stores: Stores) {
    let (size, count) = (dtype.size_bytes(), COUNTS[random.below(COUNTS.len())]);
    let data: Vec<Vec<u8>> = (0..ranks).map(|_| random.elements(dtype, count)).collect();
    let scalars: Vec<f64> = (0..ranks).map(|_| [0.5, -3.25, 0.1, 7.0][random.below(4)]).collect();
    let scaled: Vec<Vec<u8>> = data
        .iter()
        .zip(&scalars)
        .map(|(vector, scalar)| {
            naive_fold(dtype, op, 1, *scalar, std::slice::from_ref(vector), Finish::NONE.scaling(1))
        })
        .collect();
    let expected = naive_fold(dtype, op, ranks as u32, 1.0, &scaled, Finish::NONE.completing());
    for level in Level::available() {
        let (alike, into_line) = (random.below(2) == 0, size * random.below(64 / size));
        let mut into_line = || if alike { into_line } else { random.below(9) };
        let mut vectors: Vec<Buffer> = data.iter().map(|d| Buffer::new(d, into_line())).collect();
        let elsewhere = vec![0xee; count * size];
        let mut apart = [(); 2].map(|()| Buffer::new(&elsewhere, into_line()));
        let contributions: Vec<Contribution> = vectors
            .iter_mut()
            .zip(&scalars)
            .map(|(vector, scalar)| {
                let scalar = Reduction::scalar(dtype, *scalar);
                Contribution { start: vector.data().cast_const(), scalar }
            })
            .collect();
        let kept = random.below(2) * random.below(ranks + 1);
        let in_place = vectors[..kept].iter_mut().map(Buffer::data);
        let outputs: Vec<*mut u8> = in_place.chain(apart.iter_mut().map(Buffer::data)).collect();
        let reduction = Reduction::at(level, dtype, op, ranks as u32, 1.0);
        // SAFETY: every buffer holds `count` elements; they are apart but for the equal pointers.
        unsafe { reduction.fold_all(&contributions, &outputs, count, stores) };
        let what = format!(
            "{dtype} {op} {level:?} {stores:?} {alike}, count {count}, {ranks} ranks, {kept} in place"
        );
        assert!(apart.iter().all(|output| output.read() == expected), "{what}");
        for (rank, vector) in vectors.iter().enumerate() {
            assert_eq!(
                vector.read(),
                if rank < kept { &expected } else { &data[rank] }[..],
                "{what}, {rank}"
            );
        }
    }
}

#[test]
fn every_pair_of_bytes_matches_the_reference() {
    let a: Vec<u8> = (0..=u16::MAX).map(|pair| pair as u8).collect();
    let b: Vec<u8> = (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect();
    for dtype in [Dtype::F8E4m3, Dtype::F8E5m2, Dtype::I8, Dtype::U8] {
        for op in ReduceOp::ALL {
            let finish = Finish::NONE.scaling(2).completing();
            let expected = naive_fold(dtype, op, 5, 0.75, &[a.clone(), b.clone()], finish);
            for level in Level::available() {
                let mut out = vec![0; a.len()];
                let inputs = [a.as_ptr(), b.as_ptr()];
                // SAFETY: all hold 65,536 bytes, and `out` is apart.
                unsafe {
                    let reduction = Reduction::at(level, dtype, op, 5, 0.75);
                    reduction.fold(&inputs, &[out.as_mut_ptr()], a.len(), finish);
                }
                assert!(out == expected, "{dtype} {op} {level:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bits_give_the_same_result_at_every_level(
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        n in 1..=u32::MAX,
        scalar in any::<f64>(),
        (a, b) in prop::collection::vec(any::<(u8, u8)>(), 0..600).prop_map(|pairs| pairs.into_iter().unzip::<u8, u8, Vec<u8>, Vec<u8>>()),
    ) {
        let count = a.len() / dtype.size_bytes();
        let results: Vec<Vec<u8>> = Level::available().into_iter().map(|level| {
            let mut out = vec![0; a.len()];
            let reduction = Reduction::at(level, dtype, op, n, scalar);
            // SAFETY: all hold `count` elements, and `out` is apart.
            unsafe {
                let finish = Finish::NONE.scaling(1).completing();
                reduction.fold(&[a.as_ptr(), b.as_ptr()], &[out.as_mut_ptr()], count, finish);
            }
            out
        }).collect();
        for result in &results {
            prop_assert_eq!(result, &results[0]);
        }
    }
}

#[test]
fn long_results_reach_every_output() {
    on_each(|| {
        let mut random = Random(5);
        let count = 40_000;
        let data: Vec<_> = (0..3).map(|_| random.elements(Dtype::F32, count)).collect();
        for (inputs, aside) in [(2, false), (2, true), (3, false), (3, true)] {
            let expected = naive_fold(Dtype::F32, ReduceOp::Sum, 2, 1.0, &data[..inputs], Finish::NONE);
            let mut buffers: Vec<Buffer> = data.iter().map(|d| Buffer::new(d, random.below(64))).collect();
            let mut apart =
                [Buffer::new(&data[0], random.below(64)), Buffer::new(&data[0], random.below(64))];
            let ins: Vec<*const u8> = buffers[..inputs].iter_mut().map(|b| b.data().cast_const()).collect();
            let outs = [ins[1].cast_mut(), apart[0].data(), ins[0].cast_mut(), apart[1].data()];
            // SAFETY: every buffer holds `count` elements; they are apart but for the equal pointers.
            unsafe {
                let reduction = Reduction::new(Dtype::F32, ReduceOp::Sum, 2, 1.0);
                match aside {
                    true => reduction.fold_aside(&ins, &outs, count, Finish::NONE),
                    false => reduction.fold(&ins, &outs, count, Finish::NONE),
                }
            }
            for buffer in buffers[..2].iter().chain(&apart) {
                assert!(buffer.read() == expected, "{inputs} inputs, {aside}");
            }
        }
    });
}

#[test]
fn copies_reach_every_output_and_nothing_else() {
    on_each(copies_reach_every_output);
}

fn copies_reach_every_output() {
    let mut random = Random(3);
    for bytes in [0, 1, 7, 63, 64, 65, 200, 4032, 4096, 4097, 10_000, 140_000] {
        for outputs in 1..=4 {
            for round in 0..8 {
                let data = random.elements(Dtype::U8, bytes);
                let mut input = Buffer::new(&data, random.below(64));
                let mut buffers: Vec<Buffer> =
                    (0..outputs).map(|_| Buffer::new(&vec![0; bytes], random.below(64))).collect();
                let mut outs: Vec<*mut u8> = buffers.iter_mut().map(Buffer::data).collect();
                if round % 4 == 3 {
                    outs[outputs - 1] = input.data();
                }
                // SAFETY: all hold `bytes` bytes and are apart but for the equal pointers.
                unsafe {
                    match round % 2 {
                        0 => copy(input.data(), &outs, bytes),
                        _ => {
                            copy_long(input.data(), round % 4 == 1, (&outs, random.below(outputs + 1)), bytes)
                        }
                    }
                }
                for buffer in &mut buffers {
                    let written = outs.contains(&buffer.data());
                    assert_eq!(buffer.read(), if written { data.clone() } else { vec![0; bytes] });
                }
                assert_eq!(input.read(), data);
            }
        }
    }
}

#[test]
fn copies_in_strings_reach_the_output_and_nothing_else() {
    let mut random = Random(5);
    for level in Level::available() {
        for bytes in [0, 1, 63, 64, 255, 256, 257, 4095, 4097, 10_000, 140_000] {
            for _ in 0..4 {
                let data = random.elements(Dtype::U8, bytes);
                let mut input = Buffer::new(&data, random.below(64));
                let mut output = Buffer::new(&vec![0; bytes], random.below(64));
                // SAFETY: both hold `bytes` bytes and are apart, and the processor has the level.
                unsafe { copy::in_strings(level, input.data(), output.data(), bytes) };
                assert!(output.read() == data && input.read() == data, "{bytes} bytes, {}", level.name());
            }
        }
    }
}

/// Bytes at a misaligned address with guards around.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    fn new(data: &[u8], misalignment: usize) -> Buffer {
        let mut bytes = vec![GUARD; data.len() + 256];
        let start = bytes.as_ptr().align_offset(64) + misalignment + 64;
        bytes[start..start + data.len()].copy_from_slice(data);
        Buffer { bytes, start, length: data.len() }
    }

    fn data(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn read(&self) -> Vec<u8> {
        let end = self.start + self.length;
        assert!(self.bytes[..self.start].iter().chain(&self.bytes[end..]).all(|byte| *byte == GUARD));
        self.bytes[self.start..end].to_vec()
    }
}

/// A small generator of test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    /// Random bits; of wide floats some are special and most are of similar size.
    fn elements(&mut self, dtype: Dtype, count: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(count * dtype.size_bytes());
        for _ in 0..count {
            let random = self.next() ^ self.next() << 40;
            let bits = match (dtype, self.below(4)) {
                (Dtype::F32, 0) => SPECIAL_F32[self.below(SPECIAL_F32.len())].into(),
                (Dtype::F32, 1 | 2) => ((random as i32 as f32) * 1e-6).to_bits().into(),
                (Dtype::F64, 0) => {
                    f64::from(f32::from_bits(SPECIAL_F32[self.below(SPECIAL_F32.len())])).to_bits()
                }
                (Dtype::F64, 1 | 2) => (random as i64 as f64 * 1e-15).to_bits(),
                _ => random,
            };
            data.extend_from_slice(&bits.to_le_bytes()[..dtype.size_bytes()]);
        }
        data
    }
}

/// Zeros, subnormals, the largest, infinities, NaNs of both signs and kinds.
const SPECIAL_F32: [u32; 14] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7f80_0001,
    0xffff_ffff,
];

const GUARD: u8 = 0xa5;

const COUNTS: [usize; 17] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 4099];
