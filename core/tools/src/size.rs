//! Sizes as people write them: `8`, `64K`, `1.5M`, lists of them, and ranges.

/// Bytes from text: a number with an optional K, M, G or T (binary multiples; `KiB` and `KB` too).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let number: f64 = digits.trim().parse().map_err(|_| expected(text))?;
    let unit = unit_bytes(suffix).ok_or_else(|| expected(text))?;
    let bytes = number * unit as f64;
    if bytes.is_finite() && (0.0..=MAX_BYTES).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(expected(text))
    }
}

/// Bytes in the shortest exact form: `64K`, `1M`, `1000`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    let units = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];
    let exact = units.iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    exact.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// How a range of sizes grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Growth {
    /// Each size is the one before plus so many bytes.
    Step(u64),
    /// Each size is the one before times this.
    Factor(f64),
}

/// The sizes from `first` to `last`, both included where the growth meets them.
pub(crate) fn range(first: u64, last: u64, growth: Growth) -> Vec<u64> {
    let next = |size: &u64| match growth {
        Growth::Step(step) => size.checked_add(step.max(1)),
        Growth::Factor(factor) => Some(((*size as f64 * factor) as u64).max(size + 1)),
    };
    std::iter::successors(Some(first), next).take_while(|size| *size <= last).collect()
}

fn unit_bytes(suffix: &str) -> Option<u64> {
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    Some(1 << shift)
}

fn expected(text: &str) -> String {
    format!("expected a size such as 8, 64K or 1.5M, found `{text}`")
}

/// No machine has more, and all of it is exact as a float.
const MAX_BYTES: f64 = (1_u64 << 50) as f64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_multiples() {
        let cases = [("0", 0), ("8", 8), ("4K", 4096), ("4k", 4096), ("1.5M", 3 << 19), ("2GiB", 2 << 30)];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "K", "-1", "8X", "1e99T", "nan", "8 8"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn formatting_is_exact() {
        for (bytes, text) in
            [(0, "0"), (8, "8"), (1024, "1K"), (1000, "1000"), (3 << 19, "1536K"), (1 << 30, "1G")]
        {
            assert_eq!(format_bytes(bytes), text);
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
    }

    #[test]
    fn ranges_include_both_ends_and_always_advance() {
        assert_eq!(range(8, 64, Growth::Factor(2.0)), [8, 16, 32, 64]);
        assert_eq!(range(1, 10, Growth::Step(4)), [1, 5, 9]);
        assert_eq!(range(0, 2, Growth::Factor(2.0)), [0, 1, 2]);
        assert_eq!(range(5, 6, Growth::Step(0)), [5, 6]);
        assert!(range(8, 4, Growth::Factor(2.0)).is_empty());
    }
}
