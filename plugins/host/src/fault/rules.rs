//! What goes wrong: `delay_us=200&drop_after=10`.

use std::str::FromStr;
use std::time::Duration;

/// What goes wrong at each connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultRules {
    /// Receives are reported done this late.
    pub(crate) delay: Duration,
    /// The connection breaks after so many messages.
    pub(crate) drop_after: Option<u64>,
    /// The test of the request of this number fails.
    pub(crate) error_from_test: Option<u64>,
    /// Receives are held back until a younger one is done.
    pub(crate) reorder: bool,
    /// A bit of the first message with bytes, from this number on, changes.
    pub(crate) corrupt_bit: Option<u64>,
    /// Which bit, and which receives.
    pub(crate) seed: u64,
}

impl FaultRules {
    /// Pairs joined by `&`; the words for what cannot be read.
    pub(crate) fn parse(text: &str) -> Result<FaultRules, String> {
        let mut rules = FaultRules::default();
        for pair in text.split('&').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| format!("expected key=value, found \"{pair}\""))?;
            match key.trim() {
                "delay_us" => rules.delay = Duration::from_micros(number(key, value)?),
                "drop_after" => rules.drop_after = Some(number(key, value)?),
                "error_from_test" => rules.error_from_test = Some(number(key, value)?),
                "reorder" => rules.reorder = number::<u8>(key, value)? != 0,
                "corrupt_bit" => rules.corrupt_bit = Some(number(key, value)?),
                "seed" => rules.seed = number(key, value)?,
                other => {
                    let known = "delay_us, drop_after, error_from_test, reorder, corrupt_bit or seed";
                    return Err(format!("expected {known}, found \"{other}\""));
                }
            }
        }
        Ok(rules)
    }

    /// A random number that depends on the seed and a message's number (the finaliser of SplitMix64).
    pub(crate) fn random(&self, message: u64) -> u64 {
        let mut z = self.seed.wrapping_add(message.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("expected a number for {key}, found \"{value}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_mistakes_are_named() {
        let rules = FaultRules::parse("delay_us=200&drop_after=3& reorder=1&corrupt_bit=0&seed=7").unwrap();
        assert_eq!((rules.delay, rules.drop_after), (Duration::from_micros(200), Some(3)));
        assert_eq!((rules.reorder, rules.corrupt_bit, rules.seed), (true, Some(0), 7));
        assert_eq!(FaultRules::parse("").unwrap(), FaultRules::default());
        for (bad, words) in [
            ("delay=1", "found \"delay\""),
            ("seed", "found \"seed\""),
            ("drop_after=x", "for drop_after, found \"x\""),
        ] {
            let error = FaultRules::parse(bad).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
