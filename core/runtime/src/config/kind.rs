//! The types a setting's value can have: how each is written, checked and printed.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// A type of setting.
///
/// `print` gives the one canonical spelling of a value, so that two ranks that wrote the same value
/// differently agree; `parse` reads it back.
pub trait Kind: Sized {
    /// What an accessor hands out.
    type View<'a>
    where
        Self: 'a;

    /// Whether the words `auto` and `-1` leave an optional setting of this type open. So for numbers only:
    /// texts may well be called so.
    const HAS_AUTO: bool = false;

    /// What is expected, to end a sentence: "a duration such as `300s`".
    fn expected() -> String;

    /// Reads a value; `None` if `text` is not one. `text` is trimmed and not empty, unless it is a default.
    fn parse(text: &str) -> Option<Self>;

    /// The value as accessors hand it out.
    fn view(&self) -> Self::View<'_>;

    /// The canonical spelling.
    fn print(&self) -> String;
}

/// Implements [`Kind::View`] and [`Kind::view`] for a type handed out by copy.
macro_rules! by_copy {
    ($view:ty, |$value:ident| $body:expr) => {
        type View<'a> = $view;

        fn view(&self) -> $view {
            let $value = self;
            $body
        }
    };
}
pub(super) use by_copy;

/// A span of time, 0 allowed. A plain number counts seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Kind for Span {
    by_copy!(Duration, |value| value.0);

    fn expected() -> String {
        "a duration such as `300s`, `500ms`, `5m` or plain seconds".into()
    }

    fn parse(text: &str) -> Option<Span> {
        parse_duration(text).map(Span)
    }

    fn print(&self) -> String {
        print_duration(self.0)
    }
}

/// A time limit: a span longer than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Duration);

impl Kind for Limit {
    by_copy!(Duration, |value| value.0);

    fn expected() -> String {
        "a duration above 0 such as `300s`, `500ms`, `5m` or plain seconds".into()
    }

    fn parse(text: &str) -> Option<Limit> {
        parse_duration(text).filter(|limit| !limit.is_zero()).map(Limit)
    }

    fn print(&self) -> String {
        print_duration(self.0)
    }
}

/// A span of time written as a plain number of microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Micros(pub u32);

impl Kind for Micros {
    by_copy!(Duration, |value| Duration::from_micros(value.0.into()));

    fn expected() -> String {
        "a whole number of microseconds".into()
    }

    fn parse(text: &str) -> Option<Micros> {
        parse_integer(text).map(Micros)
    }

    fn print(&self) -> String {
        self.0.to_string()
    }
}

/// A number of bytes, with an optional binary suffix K, M, G or T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Kind for Bytes {
    const HAS_AUTO: bool = true;

    by_copy!(u64, |value| value.0);

    fn expected() -> String {
        "a number of bytes such as `65536`, `64K` or `4M`".into()
    }

    fn parse(text: &str) -> Option<Bytes> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        if text.starts_with("0x") || digits.len() == text.len() {
            return parse_integer(text).map(Bytes);
        }
        let (_, shift) = BINARY_UNITS.iter().find(|(unit, _)| is_unit(&text[digits.len()..], unit))?;
        parse_integer::<u64>(digits.trim_end())?.checked_mul(1 << shift).map(Bytes)
    }

    fn print(&self) -> String {
        let fitting = BINARY_UNITS.iter().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match fitting {
            Some((unit, shift)) => format!("{}{unit}", self.0 >> shift),
            None => self.0.to_string(),
        }
    }
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between<const LEAST: u32, const MOST: u32>(pub u32);

impl<const LEAST: u32, const MOST: u32> Kind for Between<LEAST, MOST> {
    const HAS_AUTO: bool = true;

    by_copy!(u32, |value| value.0);

    fn expected() -> String {
        match MOST {
            u32::MAX => format!("a whole number, at least {LEAST}"),
            _ => format!("a whole number from {LEAST} to {MOST}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        parse_integer(text).filter(|number| (LEAST..=MOST).contains(number)).map(Between)
    }

    fn print(&self) -> String {
        self.0.to_string()
    }
}

impl Kind for bool {
    by_copy!(bool, |value| *value);

    fn expected() -> String {
        "0 or 1 (or false/true, no/yes, off/on)".into()
    }

    fn parse(text: &str) -> Option<bool> {
        match text.to_ascii_lowercase().as_str() {
            "t" | "true" | "y" | "yes" | "on" => Some(true),
            "f" | "false" | "n" | "no" | "off" => Some(false),
            number => parse_integer::<i64>(number).map(|number| number != 0),
        }
    }

    fn print(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Kind for String {
    type View<'a> = &'a str;

    fn expected() -> String {
        "text".into()
    }

    fn parse(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn view(&self) -> &str {
        self
    }

    fn print(&self) -> String {
        self.clone()
    }
}

impl Kind for PathBuf {
    type View<'a> = &'a Path;

    fn expected() -> String {
        "the path of a file".into()
    }

    fn parse(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    fn view(&self) -> &Path {
        self
    }

    fn print(&self) -> String {
        self.display().to_string()
    }
}

/// Names separated by commas, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

impl Kind for Names {
    type View<'a> = &'a [String];

    fn expected() -> String {
        "names separated by commas".into()
    }

    fn parse(text: &str) -> Option<Names> {
        Some(Names(split_names(text)))
    }

    fn view(&self) -> &[String] {
        &self.0
    }

    fn print(&self) -> String {
        self.0.join(",")
    }
}

/// A setting that may be left open.
impl<T: Kind> Kind for Option<T> {
    type View<'a>
        = Option<T::View<'a>>
    where
        Self: 'a;

    fn expected() -> String {
        match T::HAS_AUTO {
            true => format!("{}, or `auto`", T::expected()),
            false => T::expected(),
        }
    }

    fn parse(text: &str) -> Option<Option<T>> {
        match text {
            "" => Some(None),
            "auto" | "-1" if T::HAS_AUTO => Some(None),
            text => T::parse(text).map(Some),
        }
    }

    fn view(&self) -> Option<T::View<'_>> {
        self.as_ref().map(T::view)
    }

    fn print(&self) -> String {
        self.as_ref().map(T::print).unwrap_or_default()
    }
}

/// A whole number: decimal, or hexadecimal after `0x`. A leading 0 is refused, because C reads
/// such a number as octal and people do not.
pub(super) fn parse_integer<T>(text: &str) -> Option<T>
where
    T: FromStr + TryFrom<u64>,
{
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().and_then(|number| T::try_from(number).ok());
    }
    let octal = text.len() > 1 && text.starts_with('0');
    (!octal && !text.starts_with('+')).then(|| text.parse().ok()).flatten()
}

/// The parts of a comma-separated list, trimmed, without empty ones.
pub(super) fn split_names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Finds `text` in a table of words, ignoring case.
pub(super) fn find_word<T: Copy>(words: &[(&str, T)], text: &str) -> Option<T> {
    words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|&(_, value)| value)
}

/// The first word of a table that stands for `value`.
pub(super) fn word_of<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, other)| *other == value).map_or("?", |&(word, _)| word)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let seconds_per_unit = match &text[number.len()..] {
        "" => 1.0,
        unit => find_word(&TIME_UNITS, unit)?,
    };
    let decimal = number.trim_end().chars().all(|c| c.is_ascii_digit() || c == '.');
    let seconds = decimal.then(|| number.trim_end().parse::<f64>().ok()).flatten()? * seconds_per_unit;
    let duration = Duration::try_from_secs_f64(seconds).ok().map(round_to_micros);
    duration.filter(|duration| *duration <= LONGEST_DURATION)
}

/// Drops what a decimal fraction in binary floating point adds or lacks below a microsecond.
fn round_to_micros(duration: Duration) -> Duration {
    let nanos = (duration.as_nanos() + 500) / 1000 * 1000;
    u64::try_from(nanos).map_or(duration, Duration::from_nanos)
}

fn print_duration(duration: Duration) -> String {
    fn whole(amount: impl Display, unit: &str) -> String {
        format!("{amount}{unit}")
    }
    match duration.subsec_nanos() {
        0 => whole(duration.as_secs(), "s"),
        nanos if nanos % 1_000_000 == 0 => whole(duration.as_millis(), "ms"),
        _ => whole(duration.as_micros(), "us"),
    }
}

/// Whether `text` spells a binary unit: "M", "m", "MB" or "MiB".
fn is_unit(text: &str, unit: &str) -> bool {
    let prefix = text.trim_end_matches(['B', 'b']).trim_end_matches('i');
    prefix.eq_ignore_ascii_case(unit) && text.len() <= 3
}

/// Largest first, so that printing finds the largest that fits.
/// What is longer could not be added to a moment, and nobody waits for it.
const LONGEST_DURATION: Duration = Duration::from_secs(100 * 365 * 86_400);
const BINARY_UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];

const TIME_UNITS: [(&str, f64); 6] =
    [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("m", 60.0), ("h", 3600.0)];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_take_units_and_plain_seconds() {
        let parse = |text| parse_duration(text).map(|duration| duration.as_micros());
        assert_eq!(parse("300"), Some(300_000_000));
        assert_eq!(parse("300s"), Some(300_000_000));
        assert_eq!(parse("500ms"), Some(500_000));
        assert_eq!(parse("1.5"), Some(1_500_000));
        assert_eq!(parse("0.1"), Some(100_000));
        assert_eq!(parse("20us"), Some(20));
        assert_eq!(parse("5m"), Some(300_000_000));
        assert_eq!(parse("2 h"), Some(7_200_000_000));
        for bad in [
            "",
            "s",
            "five",
            "-1",
            "1d",
            "1e3",
            "inf",
            "nan",
            "1.2.3",
            "9999999999",
            "99999999999999999999999",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(Limit::parse("0"), None);
        assert_eq!(Span::parse("0").map(|span| span.print()), Some("0s".into()));
    }

    #[test]
    fn sizes_are_binary_multiples() {
        let parse = |text| Bytes::parse(text).map(|bytes| bytes.0);
        assert_eq!(parse("65536"), Some(65536));
        assert_eq!(parse("64K"), Some(65536));
        assert_eq!(parse("64kb"), Some(65536));
        assert_eq!(parse("64 KiB"), Some(65536));
        assert_eq!(parse("4M"), Some(4 << 20));
        assert_eq!(parse("0x1000"), Some(4096));
        assert_eq!(parse("0xB"), Some(11));
        for bad in ["4X", "M", "-1", "4.5M", "16777216T", "4MM", "010"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn booleans_are_words_or_numbers() {
        for (text, value) in
            [("1", true), ("0", false), ("2", true), ("-1", true), ("TRUE", true), ("T", true)]
        {
            assert_eq!(bool::parse(text), Some(value), "{text}");
        }
        for (text, value) in [("yes", true), ("no", false), ("False", false), ("off", false), ("On", true)] {
            assert_eq!(bool::parse(text), Some(value), "{text}");
        }
        assert_eq!(bool::parse("maybe"), None);
        assert_eq!(bool::parse("1abc"), None);
    }

    #[test]
    fn numbers_have_bounds_and_no_octal() {
        assert_eq!(Between::<1, 64>::parse("64"), Some(Between(64)));
        assert_eq!(Between::<1, 64>::parse("0x10"), Some(Between(16)));
        for bad in ["0", "65", "010", "+1", "", "1.0"] {
            assert_eq!(Between::<1, 64>::parse(bad), None, "{bad}");
        }
        assert_eq!(Option::<Bytes>::parse("-1"), Some(None));
        assert_eq!(Option::<Bytes>::parse("auto"), Some(None));
        assert_eq!(Option::<String>::parse("auto"), Some(Some("auto".into())));
    }

    proptest! {
        #[test]
        fn printing_then_parsing_gives_the_value(bytes: u64, micros in 0..u64::from(u32::MAX), shift in 0..40u32) {
            let bytes = Bytes(bytes >> shift << (shift / 2));
            prop_assert_eq!(Bytes::parse(&bytes.print()), Some(bytes));
            let span = Span(Duration::from_micros(micros));
            prop_assert_eq!(Span::parse(&span.print()), Some(span));
        }
    }
}
