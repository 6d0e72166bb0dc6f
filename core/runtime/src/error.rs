//! Errors, sorted by whose fault they are.
//!
//! An error says which rank noticed, which peer and which operation were involved, what was
//! expected and found, and what to do about it. The first cause is named on every rank; ranks that
//! fail only because of it say so through [`Error::consequence_of`].

use std::fmt;

use ccl_plan::Rank;

/// `Result` with ccl's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The caller's: an argument or a setting.
    Usage,
    /// Another rank's: it died, disagreed, or never came.
    Remote {
        /// The rank at fault.
        rank: Rank,
    },
    /// The network's between two ranks.
    Network,
    /// A device's or its driver's.
    Device,
    /// The operating system's: a call failed.
    System {
        /// The system's error number, if it gave one.
        errno: Option<i32>,
    },
    /// A plugin's.
    Plugin {
        /// The plugin's name.
        name: String,
    },
    /// Nobody's: the communicator was aborted by the caller.
    Aborted,
    /// A deadline passed and no rank could be blamed.
    Timeout,
    /// Ours: an invariant of the library does not hold.
    Bug,
}

/// What went wrong, where, and what to do.
///
/// Cheap to clone and to move: one pointer.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Detail>);

#[derive(Clone, PartialEq, Eq)]
struct Detail {
    fault: Fault,
    cause: String,
    advice: &'static str,
    rank: Option<Rank>,
    peer: Option<Rank>,
    operation: Option<String>,
    consequence_of: Option<Rank>,
}

impl Error {
    /// An error with its cause ("expected …, found …") and one line of advice.
    pub fn new(fault: Fault, cause: impl Into<String>, advice: &'static str) -> Error {
        Error(Box::new(Detail {
            fault,
            cause: cause.into(),
            advice,
            rank: None,
            peer: None,
            operation: None,
            consequence_of: None,
        }))
    }

    /// A caller's mistake.
    pub fn usage(cause: impl Into<String>, advice: &'static str) -> Error {
        Error::new(Fault::Usage, cause, advice)
    }

    /// A failed system call: `doing` says what was attempted, as in "bind to 10.0.0.1:4000".
    pub fn system(doing: &str, error: impl Into<std::io::Error>, advice: &'static str) -> Error {
        let error = error.into();
        Error::new(Fault::System { errno: error.raw_os_error() }, format!("{doing}: {error}"), advice)
    }

    /// An invariant that does not hold.
    pub fn bug(cause: impl Into<String>) -> Error {
        Error::new(Fault::Bug, cause, "this is a bug in ccl: please report it with this text")
    }

    /// The same error, noticed by `rank`.
    #[must_use]
    pub fn on(mut self, rank: Rank) -> Error {
        self.0.rank.get_or_insert(rank);
        self
    }

    /// The same error, about `peer`.
    #[must_use]
    pub fn with_peer(mut self, peer: Rank) -> Error {
        self.0.peer.get_or_insert(peer);
        self
    }

    /// The same error, during `operation`.
    #[must_use]
    pub fn during(mut self, operation: impl Into<String>) -> Error {
        self.0.operation.get_or_insert_with(|| operation.into());
        self
    }

    /// The same error, as a consequence of what happened to `rank`.
    #[must_use]
    pub fn as_consequence_of(mut self, rank: Rank) -> Error {
        self.0.consequence_of.get_or_insert(rank);
        self
    }

    /// Whose fault it is.
    pub fn fault(&self) -> &Fault {
        &self.0.fault
    }

    /// What was expected and what was found.
    pub fn cause(&self) -> &str {
        &self.0.cause
    }

    /// One line that says what to do.
    pub fn advice(&self) -> &str {
        self.0.advice
    }

    /// The rank that noticed, if it has one yet.
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The peer involved.
    pub fn peer(&self) -> Option<Rank> {
        self.0.peer
    }

    /// The operation involved.
    pub fn operation(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// The rank whose failure caused this one.
    pub fn consequence_of(&self) -> Option<Rank> {
        self.0.consequence_of
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.0.rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some(operation) = &self.0.operation {
            write!(f, "{operation}: ")?;
        }
        if let Some(peer) = self.0.peer {
            write!(f, "peer {peer}: ")?;
        }
        write!(f, "{}", self.0.cause)?;
        if let Some(first) = self.0.consequence_of {
            write!(f, " (consequence of rank {first})")?;
        }
        write!(f, "; {}", self.0.advice)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.fault)
    }
}

impl std::error::Error for Error {}
