//! What a deputy and the head of several roots say to each other.
//!
//! A *line* is a member's connection to the deputy, by the deputy's number. The head treats it as one of its own.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::machine::Ending;
use crate::bootstrap::process::{Life, Process};

/// What a deputy says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToHead {
    /// These ranks came, with their infos in the same order.
    Arrived { guests: Vec<Guest>, infos: Infos },
    /// What was said on these lines, one body for each.
    Said { lines: Vec<u64>, bodies: Infos },
    /// A line ended.
    Closed { line: u64, why: Ending },
    /// When each rank was last heard of, and what the system says of its process.
    Seen { lines: Vec<Seen> },
    /// The ranks here cannot be of one communicator.
    Objection { text: String },
    /// Are you there?
    Ping,
}

/// What the head says to a deputy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToDeputy {
    /// Say this on these lines.
    Say { lines: Vec<u64>, body: ByteBuf },
    /// Close these lines when everything is said.
    Close { lines: Vec<u64> },
    /// Keep nobody back any longer.
    Hurry,
    /// I am.
    Pong,
}

/// A rank that came to a deputy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Guest {
    pub(crate) line: u64,
    pub(crate) address: SocketAddr,
    pub(crate) rank: u32,
    pub(crate) n: u32,
    pub(crate) word: Word,
}

/// What a rank that came has said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It joins, and gives up on the others when `remaining_ms` have passed; it came `kept_ms` ago.
    Join { process: Process, remaining_ms: u64, kept_ms: u64 },
    /// It cannot take part.
    Fail { reason: String },
}

/// A rank, as its deputy sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) line: u64,
    pub(crate) silent_ms: u64,
    pub(crate) life: Life,
}
