//! Topologies as text: NCCL's XML format.
//!
//! Unknown elements and attributes are skipped, as new versions of NCCL add some; a known one with a value
//! that makes no sense is an error with its line. [`read()`] and [`write()`] are inverse to each other as far as
//! the format goes.

mod read;
#[cfg(test)]
mod tests;
mod write;

use alloc::string::String;
use core::fmt;

pub use read::read;
pub use write::write;

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XmlError {
    /// The line, from 1, if it is one.
    pub line: Option<u32>,
    /// What was expected, and what was found.
    pub what: String,
}

/// `3: <cpu>: expected …, found …`, to stand behind a file's name and a colon.
impl fmt::Display for XmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{line}: {}", self.what),
            None => write!(f, " {}", self.what),
        }
    }
}

impl core::error::Error for XmlError {}
