//! How ranks and times are put into words.

use std::time::Duration;

/// "rank 2", "ranks 2, 5-9", "no rank"; long lists are cut. `ranks` ascend.
pub(crate) fn ranks(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut count = 0_usize;
    for rank in ranks {
        count += 1;
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let noun = match count {
        0 => return "no rank".into(),
        1 => "rank",
        _ => "ranks",
    };
    let shown: Vec<String> = runs.iter().take(LIST_LENGTH).map(run).collect();
    let more = if runs.len() > LIST_LENGTH { ", ..." } else { "" };
    format!("{noun} {}{more}", shown.join(", "))
}

/// The items separated by commas; long lists are cut.
pub(crate) fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(LIST_LENGTH);
    let shown = items.take(LIST_LENGTH).collect::<Vec<_>>().join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// "5 s", "0.3 s", "12.5 s".
pub(crate) fn seconds(time: Duration) -> String {
    let tenths = (time.as_secs_f64() * 10.0).round() / 10.0;
    format!("{tenths} s")
}

const LIST_LENGTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_short() {
        assert_eq!(ranks([]), "no rank");
        assert_eq!(ranks([2]), "rank 2");
        assert_eq!(ranks([0, 2, 3, 4, 9]), "ranks 0, 2-4, 9");
        assert_eq!(ranks((0..200).step_by(2)).matches(',').count(), LIST_LENGTH);
        assert_eq!(list(["a".to_owned(), "b".to_owned()].into_iter()), "a, b");
        assert!(list((0..40).map(|item| item.to_string())).ends_with("31 and 8 more"));
    }

    #[test]
    fn times_are_short() {
        assert_eq!(seconds(Duration::from_millis(4998)), "5 s");
        assert_eq!(seconds(Duration::from_millis(320)), "0.3 s");
    }
}
