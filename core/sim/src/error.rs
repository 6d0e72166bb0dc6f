//! What can be wrong with a simulation.

/// Why something cannot be simulated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What is asked for does not fit together.
    #[error("{cause}; {advice}")]
    Usage {
        /// What was expected, and what was found.
        cause: String,
        /// What to do.
        advice: &'static str,
    },
    /// The plan's ranks wait for each other.
    #[error(
        "{waiting} of {lanes} lanes wait for each other with {slots} slots per edge; give edges more slots"
    )]
    Deadlock {
        /// Lanes that cannot go on.
        waiting: usize,
        /// All lanes.
        lanes: usize,
        /// Slots of each edge.
        slots: usize,
    },
}

impl Error {
    pub(crate) fn usage(cause: impl Into<String>, advice: &'static str) -> Error {
        Error::Usage { cause: cause.into(), advice }
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
