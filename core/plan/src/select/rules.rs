//! Rules that stand above the cost model: what was measured, for sizes of one collective.

use alloc::vec::Vec;

use super::Choice;
use crate::collective::Collective;

/// For calls of `collective` between two sizes: this choice, if the caller's wishes, the level and the number of ranks
/// allow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Which calls.
    pub collective: Collective,
    /// The smallest size in bytes,
    pub from: u64,
    /// and the largest; as for [`Selection::choose`](super::Selection::choose).
    pub up_to: u64,
    /// How.
    pub choice: Choice,
}

/// What the rules say of one size: of all that reach so far, the one that ends first, and of equals the first.
pub(super) fn ruling(rules: &[Rule], collective: Collective, bytes: u64) -> Option<Choice> {
    let speaks = |rule: &&Rule| rule.collective == collective && (rule.from..=rule.up_to).contains(&bytes);
    rules.iter().filter(speaks).min_by_key(|rule| rule.up_to).map(|rule| rule.choice)
}

/// Where decisions for a collective may change: at powers of two, where a rule ends or before one begins, and at sizes of
/// the caller's. Ends with `u64::MAX`.
pub(super) fn bounds(
    rules: &[Rule],
    collective: Collective,
    own: impl IntoIterator<Item = u64>,
    powers: core::ops::RangeInclusive<u32>,
) -> Vec<u64> {
    let those = || rules.iter().filter(|rule| rule.collective == collective);
    let ends = those().filter_map(|rule| rule.from.checked_sub(1)).chain(those().map(|rule| rule.up_to));
    let mut bounds: Vec<u64> =
        powers.map(|power| 1 << power).chain(ends).chain(own).chain([u64::MAX]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}
