//! Settings a host gives to `init`.

use std::ffi::CStr;
use std::fmt::Display;
use std::str::FromStr;

use crate::c::CclSettingV1;
use crate::error::{Error, Result};

/// Key and value pairs, in the host's order. Keys a plugin does not know are not errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    /// Settings from pairs; for tests and for hosts in the same process.
    pub fn new(pairs: &[(&str, &str)]) -> Settings {
        Settings(pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    /// The value of `key`; the last one wins.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// The value of `key` as a `T`, or `default` if it is not set.
    ///
    /// # Errors
    ///
    /// [`Code::INVALID`](crate::Code::INVALID), naming key and value, if the text is not a `T`.
    pub fn parse<T: FromStr>(&self, key: &str, default: T) -> Result<T>
    where
        T::Err: Display,
    {
        let Some(text) = self.value(key) else { return Ok(default) };
        text.trim()
            .parse()
            .map_err(|error| Error::invalid(format!("setting {key}=\"{text}\" cannot be read: {error}")))
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Copies settings from the C form.
    ///
    /// # Safety
    ///
    /// `pairs` points to `count` entries whose strings are NUL-terminated (or `count` is 0).
    pub(crate) unsafe fn from_c(pairs: *const CclSettingV1, count: u32) -> Result<Settings> {
        let mut settings = Vec::with_capacity(count as usize);
        for index in 0..count as usize {
            // SAFETY: the caller promises `count` entries at `pairs`.
            let pair = unsafe { &*pairs.add(index) };
            if pair.key.is_null() || pair.value.is_null() {
                return Err(Error::invalid(format!("setting {index} has a null key or value")));
            }
            // SAFETY: the caller promises NUL-terminated strings; null was excluded.
            let (key, value) = unsafe { (CStr::from_ptr(pair.key), CStr::from_ptr(pair.value)) };
            settings.push((key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        }
        Ok(Settings(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_wins_and_bad_ones_are_named() {
        let settings = Settings::new(&[("sockets", "2"), ("sockets", "x")]);
        assert_eq!(settings.value("sockets"), Some("x"));
        let error = settings.parse("sockets", 1u32).unwrap_err();
        assert!(error.message().contains("sockets=\"x\""), "{error}");
        assert_eq!(settings.parse("other", 7u32).unwrap(), 7);
    }
}
