//! The folds of kernels give the bits that the host's give, and both give those of the definition.

use ccl::exec::reduce::{Finish, Reduction};
use ccl::reference::element;
use ccl::{Dtype, ReduceOp};
use ccl_kernels_emulator::{FoldFinish, fold};

#[test]
fn every_pair_of_bytes_folds_as_on_the_host() {
    let all: Vec<u64> = (0..256).collect();
    for dtype in [Dtype::I8, Dtype::U8, Dtype::F8E4m3, Dtype::F8E5m2] {
        pairs(dtype, &all, &all);
    }
}

#[test]
fn every_narrow_float_folds_with_the_special_ones_as_on_the_host() {
    let all: Vec<u64> = (0..65536).collect();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        pairs(dtype, &all, &specials(dtype));
    }
}

#[test]
fn pairs_of_wide_elements_fold_as_on_the_host() {
    let mut random = Random(1);
    for dtype in [Dtype::I32, Dtype::U32, Dtype::I64, Dtype::U64, Dtype::F32, Dtype::F64] {
        let mut values = specials(dtype);
        values.extend((0..300).map(|_| random.next() & mask(dtype)));
        values.extend((0..300).map(|_| random.near_one(dtype)));
        pairs(dtype, &values, &values);
    }
}

/// Every pair of the values, by every operation and finish, both ways of folding.
fn pairs(dtype: Dtype, left: &[u64], right: &[u64]) {
    let of = |value: fn(u64, u64) -> u64| -> Vec<u8> {
        let all = right.iter().flat_map(|b| left.iter().map(move |a| value(*a, *b)));
        all.flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.size_bytes())).collect()
    };
    let (a, b) = (of(|a, _| a), of(|_, b| b));
    for op in ReduceOp::ALL {
        for &(n, scalar) in finishes(op) {
            compare(dtype, op, &[&a, &b], n, scalar);
        }
    }
}

#[test]
fn three_and_four_inputs_fold_from_left_to_right() {
    let mut random = Random(2);
    for dtype in Dtype::ALL {
        let specials = specials(dtype);
        for round in 0..40 {
            let count = [1, 7, 16, 33, 500][round % 5];
            let mut input = || -> Vec<u8> {
                let mut value = |_| match random.next() % 3 {
                    0 => specials[random.next() as usize % specials.len()],
                    1 => random.near_one(dtype),
                    _ => random.next(),
                };
                (0..count).flat_map(|i| value(i).to_le_bytes().into_iter().take(dtype.size_bytes())).collect()
            };
            let inputs: Vec<Vec<u8>> = (0..1 + round % 4).map(|_| input()).collect();
            let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            for op in ReduceOp::ALL {
                for &(n, scalar) in finishes(op) {
                    compare(dtype, op, &inputs, n, scalar);
                }
            }
        }
    }
}

#[test]
fn scalars_round_as_on_the_host() {
    let scalars = [
        0.0,
        -0.0,
        0.1,
        -0.9,
        1.0,
        127.5,
        128.0,
        -128.5,
        -129.0,
        255.9,
        256.0,
        65504.0,
        65520.0,
        1e9,
        -1e10,
        1e20,
        -1e300,
        2147483647.0,
        2147483648.0,
        -2147483648.9,
        4294967295.5,
        4294967296.0,
        9.2e18,
        9223372036854775808.0,
        18446744073709551615.0,
        18446744073709549568.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
        1.0 + 1.0 / 2048.0 + 1e-12,
        1.0 + 1.0 / 2048.0,
        1e-40,
        2.4e-8,
        0.0009765625,
        57344.0,
        61440.0,
        448.0,
        464.0,
        465.0,
        3.4028235e38,
        3.4028236e38,
        3.5e38,
    ];
    for dtype in Dtype::ALL {
        let one = if dtype.is_float() { element::encode(dtype, 1.0) } else { 1 };
        let ones = one.to_le_bytes()[..dtype.size_bytes()].repeat(20);
        for scalar in scalars {
            compare(dtype, ReduceOp::PreMulSum, &[&ones], 1, scalar);
        }
    }
}

/// Kernels against the host, and the host against the definition for some.
fn compare(dtype: Dtype, op: ReduceOp, inputs: &[&[u8]], n: u32, scalar: f64) {
    let finish = Finish::NONE.scaling(0b1011).completing();
    let mut expected = vec![0; inputs[0].len()];
    let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
    // SAFETY: all are equally long, and the output is apart.
    unsafe {
        let count = expected.len() / dtype.size_bytes();
        Reduction::new(dtype, op, n, scalar).fold(&pointers, &[expected.as_mut_ptr()], count, finish);
    }
    let (basic, finish) = match op {
        ReduceOp::Average => (ReduceOp::Sum, FoldFinish { n, ..FoldFinish::default() }),
        ReduceOp::PreMulSum => (ReduceOp::Sum, FoldFinish { scaled: 0b1011, scalar, n: 0 }),
        _ => (op, FoldFinish::default()),
    };
    for by_element in [false, true] {
        let got = fold(dtype, basic, inputs, finish, by_element);
        if got != expected {
            let size = dtype.size_bytes();
            let differ = got.iter().zip(&expected).position(|(got, expected)| got != expected);
            let at = differ.expect("they are equally long") / size * size;
            let show = |bytes: &[u8]| format!("{:#x}", element::load(&bytes[at..at + size]));
            let inputs: Vec<String> = inputs.iter().map(|input| show(input)).collect();
            panic!(
                "{dtype} {op} of {inputs:?}, n {n}, scalar {scalar}, by element {by_element}: {} instead of {}",
                show(&got),
                show(&expected)
            );
        }
    }
}

fn finishes(op: ReduceOp) -> &'static [(u32, f64)] {
    match op {
        ReduceOp::Average => &[(1, 1.0), (3, 1.0), (8, 1.0), (1000, 1.0), (u32::MAX, 1.0)],
        ReduceOp::PreMulSum => &[(1, 0.5), (1, -3.25), (1, 0.1), (1, 7.0)],
        _ => &[(1, 1.0)],
    }
}

/// What goes wrong first: zeros, subnormals, the largest, infinities, NaNs; limits of integers; of each both signs.
fn specials(dtype: Dtype) -> Vec<u64> {
    let sign = 1 << (8 * dtype.size_bytes() - 1);
    let magnitude = mask(dtype) >> 1;
    let mut values =
        vec![0, 1, 2, 3, 7, 100, magnitude, magnitude - 1, magnitude / 2, magnitude / 3, magnitude / 3 * 2];
    if dtype.is_float() {
        let numbers = [
            1.0,
            1.5,
            2.0,
            3.0,
            0.1,
            1e-3,
            1e-5,
            100.0,
            448.0,
            57344.0,
            65504.0,
            1e30,
            1e-30,
            1e-40,
            f64::INFINITY,
        ];
        values.extend(numbers.map(|number| element::encode(dtype, number)));
        // Either side of the least normal number, of the largest number and of infinity.
        let powers = (0..63).map(|bit| 1u64 << bit);
        let least = powers
            .filter(|bits| *bits <= magnitude)
            .find(|bits| element::decode(dtype, *bits) >= normal(dtype));
        let infinity = element::encode(dtype, f64::INFINITY);
        for edge in [least.unwrap_or(1), infinity] {
            values.extend([edge - 1, edge, (edge + 1) & magnitude]);
        }
    }
    let negative: Vec<u64> = values.iter().map(|value| value | sign).collect();
    values.extend(negative);
    values
}

/// The least normal number.
fn normal(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F8E4m3 => 2f64.powi(-6),
        Dtype::F16 | Dtype::F8E5m2 => 2f64.powi(-14),
        Dtype::F64 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

fn mask(dtype: Dtype) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size_bytes())
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 ^ self.0 >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// A float whose sum with another is not just the larger; any integer.
    fn near_one(&mut self, dtype: Dtype) -> u64 {
        match dtype.is_float() {
            true => element::encode(dtype, (self.next() as i64 >> (self.next() % 8)) as f64 / 1e18),
            false => self.next() & mask(dtype),
        }
    }
}
