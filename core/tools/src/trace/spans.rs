//! Stretches of time together.

use super::read::Span;

/// The same time in spans that do not touch, in their order.
pub(super) fn merged(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut sorted: Vec<Span> = spans.collect();
    sorted.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for span in sorted {
        match merged.last_mut() {
            Some(last) if span.since_ns <= last.until_ns => last.until_ns = last.until_ns.max(span.until_ns),
            _ => merged.push(span),
        }
    }
    merged
}

/// How long they are together; spans that do not touch.
pub(super) fn total_ns(merged: &[Span]) -> i64 {
    merged.iter().map(|span| span.took_ns()).sum()
}

/// How long both are, of two lists of spans that do not touch and are in order.
pub(super) fn common_ns(one: &[Span], other: &[Span]) -> i64 {
    let (mut common, mut at) = (0, 0);
    for span in one {
        while other.get(at).is_some_and(|other| other.until_ns <= span.since_ns) {
            at += 1;
        }
        for other in other[at..].iter().take_while(|other| other.since_ns < span.until_ns) {
            common += span.until_ns.min(other.until_ns) - span.since_ns.max(other.since_ns);
        }
    }
    common
}

/// The middle of sorted values, or the value that so many of a hundred are not above; 0 of none.
pub(super) fn percentile(sorted: &[i64], percent: usize) -> i64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ends: &[(i64, i64)]) -> Vec<Span> {
        ends.iter().map(|&(since_ns, until_ns)| Span { since_ns, until_ns }).collect()
    }

    #[test]
    fn what_overlaps_counts_once() {
        let merged = merged(spans(&[(5, 9), (0, 3), (2, 4), (6, 7)]).into_iter());
        assert_eq!(merged, spans(&[(0, 4), (5, 9)]));
        assert_eq!(total_ns(&merged), 8);
        assert_eq!(common_ns(&merged, &spans(&[(1, 2), (3, 6), (8, 20)])), 1 + 1 + 1 + 1);
        assert_eq!(common_ns(&spans(&[(3, 6), (8, 20)]), &merged), 3);
    }

    #[test]
    fn percentiles_are_values_that_there_are() {
        let hundred: Vec<i64> = (1..=100).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&hundred, percent)), [50, 99, 100]);
        assert_eq!((percentile(&[7], 99), percentile(&[], 50)), (7, 0));
    }
}
