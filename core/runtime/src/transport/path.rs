//! Which way leads to a peer, and why not a better one.

use std::fmt;

/// How a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PathKind {
    /// Memory, within one process.
    Loopback,
    /// Memory that two processes map.
    Shm,
    /// A network plugin.
    Net,
    /// The devices' memory, which the kernels of both ranks use.
    P2p,
}

/// A chosen path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// What was chosen.
    pub kind: PathKind,
    /// Why, and why better ones were rejected: one line.
    pub reason: String,
}

impl PathKind {
    /// Its name, as printed and in settings.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Loopback => "loopback",
            PathKind::Shm => "shm",
            PathKind::Net => "net",
            PathKind::P2p => "p2p",
        }
    }
}

impl Path {
    pub(crate) fn new(kind: PathKind, reason: impl Into<String>) -> Path {
        Path { kind, reason: reason.into() }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind.name(), self.reason)
    }
}
