//! How ranks agree on paths: each says whom it cannot map; memory is used where neither objects.

use ccl_plan::Rank;

use super::shm::Neighbours;
use super::{Path, PathKind, TransportInfo};
use crate::error::{Error, Result};
use crate::memory::Neighbour;

/// The ranks that may share memory with `me`, itself included, in order. The same list on all of them.
pub(super) fn neighbours(mine: &TransportInfo, infos: &[TransportInfo], me: Rank) -> Vec<Neighbour> {
    let may_share = |info: &TransportInfo| info.host == mine.host && info.shares_memory && mine.shares_memory;
    let ranks = infos.iter().enumerate().map(|(rank, info)| (Rank(rank as u32), info));
    ranks
        .filter(|(rank, info)| *rank == me || may_share(info))
        .map(|(rank, info)| as_neighbour(mine, rank, info))
        .collect()
}

/// This rank's vote: whom it cannot map, and why.
pub(super) fn refusals(neighbours: &Neighbours) -> Result<Vec<u8>> {
    serde_json::to_vec(&neighbours.refused()).map_err(|e| Error::bug(format!("write a vote on paths: {e}")))
}

/// Gives up memory with every rank that cannot map this one's.
pub(super) fn heed(neighbours: &mut Neighbours, me: Rank, votes: &[Vec<u8>]) -> Result<()> {
    for (voter, vote) in votes.iter().enumerate() {
        let voter = Rank(voter as u32);
        let refused: Vec<(u32, String)> = serde_json::from_slice(vote).map_err(|e| {
            let advice = "run the same version of ccl on all ranks";
            Error::new(
                crate::Fault::Remote { rank: voter },
                format!("its vote on paths cannot be read: {e}"),
                advice,
            )
        })?;
        for (_, reason) in refused.into_iter().filter(|(rank, _)| *rank == me.0) {
            neighbours.refuse(voter, format!("it cannot map this rank's memory: {reason}"));
        }
    }
    Ok(())
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
        None if mine.host != theirs.host => {
            Path::new(PathKind::Net, format!("another host, {}", theirs.host_name))
        }
        None if !mine.shares_memory => {
            Path::new(PathKind::Net, "same host, but this rank shares no memory: CCL_SHM_DISABLE")
        }
        None => Path::new(PathKind::Net, "same host, but the peer shares no memory: CCL_SHM_DISABLE"),
    }
}

fn as_neighbour(mine: &TransportInfo, rank: Rank, info: &TransportInfo) -> Neighbour {
    Neighbour {
        rank,
        mailbox: info.mailbox.clone(),
        process: info.process,
        same_processes: info.process_namespace == mine.process_namespace,
        number: info.descriptor,
        nonce: info.nonce,
    }
}

fn same_process(mine: &TransportInfo, theirs: &TransportInfo) -> bool {
    (mine.process, mine.process_namespace) == (theirs.process, theirs.process_namespace)
}
