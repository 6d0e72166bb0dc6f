//! Why a clause ends early.

use std::fmt;

use ccl_plugin::Code;

/// Why a clause ends before its last line.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// The plugin broke it.
    Breach(String),
    /// There is nothing to look at.
    Skip(String),
}

pub(crate) type Outcome<T> = Result<T, Stop>;

/// A call of the plugin that returned a code, with the words it had for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failed {
    pub(crate) call: &'static str,
    pub(crate) code: i32,
    /// The code in the words, which should be the one returned.
    pub(crate) told: i32,
    pub(crate) message: String,
    pub(crate) peer: String,
}

impl Failed {
    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code.0
    }

    /// The words exist, and are about this failure.
    pub(crate) fn expect_words(self) -> Outcome<Failed> {
        let (call, code) = (self.call, Code(self.code));
        if self.told != self.code {
            let told = Code(self.told);
            return breach(format!(
                "{call} returned {code}, but last_error spoke of {told}: expected the same code"
            ));
        }
        if self.message.trim().is_empty() {
            return breach(format!("{call} returned {code} without words: expected a message in last_error"));
        }
        Ok(self)
    }

    /// It is this code.
    pub(crate) fn expect_code(self, code: Code, when: &str) -> Outcome<Failed> {
        if !self.is(code) {
            return breach(format!("expected {code} {when}, found {self}"));
        }
        Ok(self)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", Code(self.code), self.call)?;
        if !self.peer.is_empty() {
            write!(f, ", peer {}", self.peer)?;
        }
        match self.message.as_str() {
            "" => f.write_str(", without words"),
            words => write!(f, ": {words}"),
        }
    }
}

impl From<Failed> for Stop {
    fn from(failed: Failed) -> Stop {
        Stop::Breach(format!("expected no error, found {failed}"))
    }
}

/// Ends a clause as broken.
pub(crate) fn breach<T>(words: impl Into<String>) -> Outcome<T> {
    Err(Stop::Breach(words.into()))
}

/// Ends a clause that does not concern this plugin.
pub(crate) fn skip<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Skip(why.into()))
}

/// Goes on only if `holds`.
pub(crate) fn expect(holds: bool, words: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { breach(words()) }
}
