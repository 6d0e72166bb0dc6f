//! How ranks agree on paths: each says whom it cannot map; memory is used where neither objects.

use bytes::Bytes;
use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use super::shm::Neighbours;
use super::{Path, PathKind, TransportInfo, TransportSettings};
use crate::error::{Error, Result};
use crate::memory::Neighbour;

/// The ranks that may share memory with `me`, itself included, in order. The same list on all of them.
pub(super) fn neighbours(mine: &TransportInfo, infos: &[TransportInfo], me: Rank) -> Vec<Neighbour> {
    let may_share = |info: &TransportInfo| {
        info.process.shares_memory && mine.process.shares_memory && info.is_on_host_of(mine)
    };
    let ranks = infos.iter().enumerate().map(|(rank, info)| (Rank(rank as u32), info));
    ranks
        .filter(|(rank, info)| *rank == me || may_share(info))
        .map(|(rank, info)| as_neighbour(mine, rank, info))
        .collect()
}

/// What one rank has to say about the others.
#[derive(Serialize, Deserialize)]
struct Vote {
    /// Whom it cannot map, and why.
    refused: Vec<(u32, String)>,
    /// Why it cannot read what others lend, or lends nothing.
    not_directly: Option<String>,
    /// Whether something is put around its edges, which nothing may go past.
    wrapped: bool,
}

/// What the votes allow; the same on all ranks.
pub(super) struct Verdict {
    /// Why not all ranks share memory and read each other's directly, if so.
    pub(super) not_directly: Option<String>,
    /// Why not all ranks can map each other's memory, if so.
    pub(super) not_mapped: Option<String>,
}

/// This rank's vote.
pub(super) fn vote(settings: &TransportSettings, neighbours: &Neighbours) -> Result<Vec<u8>> {
    let wrapped = settings.wraps_edges();
    let vote = Vote {
        refused: neighbours.refused(),
        not_directly: if wrapped {
            Some("its edges are wrapped".to_owned())
        } else {
            neighbours.unreadable()
        },
        wrapped,
    };
    serde_json::to_vec(&vote).map_err(|e| Error::bug(format!("write a vote on paths: {e}")))
}

/// Gives up memory with every rank that cannot map this one's.
pub(super) fn heed(neighbours: &mut Neighbours, me: Rank, votes: &[Bytes]) -> Result<Verdict> {
    let mut verdict = Verdict { not_directly: None, not_mapped: None };
    if neighbours.count() < votes.len() {
        verdict.not_mapped = Some("not all ranks share the memory of one host".to_owned());
    }
    // Votes that say the same and refuse nobody add nothing.
    let mut last: Option<&Bytes> = None;
    for (voter, bytes) in votes.iter().enumerate().map(|(voter, bytes)| (Rank(voter as u32), bytes)) {
        if last == Some(bytes) {
            continue;
        }
        let vote: Vote = serde_json::from_slice(bytes).map_err(|e| {
            let advice = "run the same version of ccl on all ranks";
            Error::new(
                crate::Fault::Remote { rank: voter },
                format!("its vote on paths cannot be read: {e}"),
                advice,
            )
        })?;
        last = vote.refused.is_empty().then_some(bytes);
        let unmapped =
            vote.refused.first().map(|(rank, reason)| format!("rank {rank} is not mapped: {reason}"));
        let Verdict { not_directly, not_mapped } = &mut verdict;
        if let (None, true) = (&not_mapped, vote.wrapped) {
            *not_mapped = Some(format!("the edges of rank {voter} are wrapped"));
        }
        if let (None, Some(reason)) = (&not_mapped, &unmapped) {
            *not_mapped = Some(format!("rank {voter} says that {reason}"));
        }
        if let (None, Some(reason)) = (&not_directly, vote.not_directly.or(unmapped)) {
            *not_directly = Some(format!("rank {voter} says of {reason}"));
        }
        for (_, reason) in vote.refused.into_iter().filter(|(rank, _)| *rank == me.0) {
            neighbours.refuse(voter, format!("it cannot map this rank's memory: {reason}"));
        }
    }
    Ok(verdict)
}

/// How a peer is reached; [`path`] says why.
pub(super) fn kind(
    mine: &TransportInfo,
    theirs: &TransportInfo,
    (me, peer): (Rank, Rank),
    neighbours: &Neighbours,
) -> PathKind {
    match neighbours.refusal(peer) {
        _ if peer == me => PathKind::Loopback,
        Some(None) if same_process(mine, theirs) => PathKind::Loopback,
        Some(None) => PathKind::Shm,
        _ => PathKind::Net,
    }
}

/// The path to a peer, with its reason.
pub(super) fn path(
    mine: &TransportInfo,
    infos: &[TransportInfo],
    me: Rank,
    peer: Rank,
    neighbours: &Neighbours,
) -> Path {
    let theirs = &infos[peer.index()];
    if peer == me {
        return Path::new(PathKind::Loopback, "itself");
    }
    match neighbours.refusal(peer) {
        Some(None) if same_process(mine, theirs) => {
            Path::new(PathKind::Loopback, "same process, memory mapped and probed")
        }
        Some(None) => Path::new(PathKind::Shm, "same host, memory mapped and probed"),
        Some(Some(reason)) => Path::new(PathKind::Net, format!("same host, but {reason}")),
        None if !theirs.is_on_host_of(mine) => {
            Path::new(PathKind::Net, format!("another host, {}", theirs.process.host_name))
        }
        None if !mine.process.shares_memory => {
            Path::new(PathKind::Net, "same host, but this rank shares no memory: CCL_SHM_DISABLE")
        }
        None => Path::new(PathKind::Net, "same host, but the peer shares no memory: CCL_SHM_DISABLE"),
    }
}

/// What to add to the reason of a path to another rank: how long messages go.
pub(super) fn how_long_messages_go(kind: PathKind, not_directly: Option<&str>, lends: bool) -> String {
    match (kind, not_directly) {
        (PathKind::Net, _) if lends => "; long messages are sent from user memory".to_owned(),
        (PathKind::Net, _) => String::new(),
        (_, None) => "; long messages may be read directly".to_owned(),
        (_, Some(reason)) => format!("; long messages are copied: {reason}"),
    }
}

pub(super) fn as_neighbour(mine: &TransportInfo, rank: Rank, info: &TransportInfo) -> Neighbour {
    Neighbour {
        rank,
        mailbox: info.seat.mailbox,
        process: info.process.number,
        same_processes: info.process.namespace == mine.process.namespace,
        number: info.seat.descriptor,
        nonce: info.seat.nonce,
    }
}

fn same_process(mine: &TransportInfo, theirs: &TransportInfo) -> bool {
    (mine.process.number, mine.process.namespace) == (theirs.process.number, theirs.process.namespace)
}
