//! Counting wrong elements.

use ccl_plan::Dtype;

/// What is wrong with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Elements whose bits differ, or that only one buffer has.
    pub count: usize,
    /// Index of the first of them.
    pub first: usize,
}

/// Compares two buffers bit for bit; `None` if they are equal.
pub fn compare(dtype: Dtype, got: &[u8], expected: &[u8]) -> Option<Mismatch> {
    if got == expected {
        return None;
    }
    let size = dtype.size_bytes();
    let both = got.chunks(size).zip(expected.chunks(size));
    let mut wrong = both.enumerate().filter(|(_, (got, expected))| got != expected).map(|(i, _)| i);
    let (shorter, longer) = (got.len().min(expected.len()), got.len().max(expected.len()));
    let (shared, surplus) = (shorter.div_ceil(size), longer.div_ceil(size) - shorter.div_ceil(size));
    let Some(first) = wrong.next() else { return Some(Mismatch { count: surplus, first: shared }) };
    Some(Mismatch { count: 1 + wrong.count() + surplus, first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_elements_are_counted() {
        let expected = [1, 0, 2, 0, 3, 0, 4, 0];
        assert_eq!(compare(Dtype::F16, &expected, &expected), None);
        let got = [1, 0, 2, 1, 3, 0, 9, 9];
        assert_eq!(compare(Dtype::F16, &got, &expected), Some(Mismatch { count: 2, first: 1 }));
        assert_eq!(compare(Dtype::F16, &got[..6], &expected), Some(Mismatch { count: 2, first: 1 }));
        assert_eq!(compare(Dtype::I32, &expected[..4], &expected), Some(Mismatch { count: 1, first: 1 }));
    }
}
