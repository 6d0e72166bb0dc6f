//! What a fabric has to do with user memory that ranks map.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use super::connected::Connected;
use super::fabric::unconnected;
use super::shm::Visitors;
use super::{Fabric, agree};
use crate::error::{Error, Fault, Result};
use crate::memory::{
    Exchange, Mailbox, MailboxName, Mapping, Memory, Neighbour, Pages, Place, Views, Window,
};

/// What a rank says of the memory that it registers.
#[derive(Serialize, Deserialize)]
struct Offer {
    bytes: usize,
    mailbox: Option<MailboxName>,
    descriptor: i32,
    nonce: [u8; 32],
}

impl Fabric {
    /// Whether all ranks are threads of this process whose edges nothing is put around: every address is then
    /// good for all of them. The same on all ranks.
    pub(crate) fn one_process(&self) -> bool {
        let one =
            |connected: &Connected| connected.not_mapped.is_none() && connected.neighbours.all_threads();
        self.connected.as_ref().is_some_and(one)
    }

    /// Where this rank's buffer lies in a window that it has a handle on.
    pub(crate) fn window(&self, address: *const u8, bytes: usize) -> Option<Place> {
        self.connected.as_ref()?.windows.find(address, bytes)
    }

    /// What the last-level cache holds.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.connected.as_ref().map_or(0, |connected| connected.cache_bytes)
    }

    /// Runs `work`, which uses the memory of other ranks for at most about a millisecond, unless one of them
    /// has taken its memory back. The rank that did is the error: what happened does not count.
    pub(crate) fn visit(&self, work: impl FnOnce()) -> Result<(), Rank> {
        self.connected.as_ref().map_or(Ok(()), |connected| connected.neighbours.visit(work))
    }

    /// After [`Fabric::abort`]: waits until no rank uses this one's memory, half a second at most for other
    /// processes.
    pub(crate) fn await_visitors(&self) -> Visitors {
        self.connected.as_ref().map_or(Visitors::Gone, |connected| connected.neighbours.await_visitors())
    }

    /// Registers memory with all ranks, which all call this. Blocks until they have, about `limit` at most.
    ///
    /// # Errors
    ///
    /// Lengths that differ, which all ranks find; the relay's.
    pub(crate) fn register(&mut self, memory: &Memory, limit: Duration) -> Result<Window> {
        let (me, secret) = (self.me, self.settings.secret);
        let info = self.info.clone();
        let connected = self.connected.as_mut().ok_or_else(unconnected)?;
        let pages = memory.pages();
        // Without a socket descriptors go through /proc.
        let mailbox = Mailbox::bind().ok();
        let offer = Offer {
            bytes: memory.len(),
            mailbox: mailbox.as_ref().map(Mailbox::name),
            descriptor: pages.number(),
            nonce: pages.nonce(),
        };
        let offers = all_gather(connected, &offer)?;
        same_length(&offers)?;
        let views = if let Some(reason) = &connected.not_mapped {
            Views::Refused(reason.clone())
        } else if connected.neighbours.all_threads() {
            Views::OneProcess
        } else {
            let all: Vec<Neighbour> = (0..)
                .map(Rank)
                .zip(connected.infos.iter().zip(&offers))
                .map(|(rank, (theirs, offer))| offer.of(agree::as_neighbour(&info, rank, theirs)))
                .collect();
            let deadline = Instant::now() + limit;
            let mapped = map_all(connected, pages, mailbox.as_ref(), (me, secret), &all, deadline)?;
            agreed(connected, mapped)?
        };
        Ok(connected.windows.add(memory, views))
    }
}

impl Offer {
    /// The rank as an exchange of this memory must know it.
    fn of(&self, neighbour: Neighbour) -> Neighbour {
        let Offer { mailbox, descriptor, nonce, .. } = self;
        Neighbour { mailbox: *mailbox, number: *descriptor, nonce: *nonce, ..neighbour }
    }
}

/// Every rank's value, by rank.
fn all_gather<T: Serialize + for<'a> Deserialize<'a>>(connected: &Connected, value: &T) -> Result<Vec<T>> {
    let bytes = serde_json::to_vec(value).map_err(|error| Error::bug(format!("describe memory: {error}")))?;
    let read = |(rank, bytes): (usize, Bytes)| {
        serde_json::from_slice(&bytes).map_err(|error| {
            let fault = Fault::Remote { rank: Rank(rank as u32) };
            let cause = format!("expected what rank {rank} says of its memory, found {error}");
            Error::new(fault, cause, "call register at the same place on all ranks")
        })
    };
    connected.relay.all_gather(bytes)?.into_iter().enumerate().map(read).collect()
}

fn same_length(offers: &[Offer]) -> Result<()> {
    let Some(other) = offers.iter().position(|offer| offer.bytes != offers[0].bytes) else { return Ok(()) };
    Err(Error::usage(
        format!(
            "expected memory of one length, found {} bytes on rank 0 and {} on rank {other}",
            offers[0].bytes, offers[other].bytes
        ),
        "register memory of the same length on all ranks",
    ))
}

/// The memory of every rank as it is seen here, or why some is not.
fn map_all(
    connected: &Connected,
    pages: &Pages,
    mailbox: Option<&Mailbox>,
    (me, secret): (Rank, [u8; 32]),
    all: &[Neighbour],
    deadline: Instant,
) -> Result<Result<Vec<Option<Mapping>>, String>> {
    let peers = all.iter().filter(|peer| peer.rank != me).cloned().collect();
    let exchange = Exchange::new(all[me.index()].clone(), secret, mailbox, pages.as_fd(), peers);
    let mut mappings: Vec<Option<Mapping>> = all.iter().map(|_| None).collect();
    let mut refused = pages.is_detached().then(|| "its pages were taken back when a call failed".to_owned());
    for (rank, parcel) in exchange.run(deadline, &|| connected.relay.check())? {
        let mapped = parcel.and_then(|descriptor| {
            Pages::map_peer(descriptor.as_fd(), pages.bytes(), &all[rank.index()].nonce)
        });
        match mapped {
            Ok(mapping) => mappings[rank.index()] = Some(mapping),
            Err(reason) => refused = refused.or(Some(format!("the memory of rank {rank}: {reason}"))),
        }
    }
    pages.populate();
    Ok(refused.map_or(Ok(mappings), Err))
}

/// Used if nobody objects.
fn agreed(connected: &Connected, mapped: Result<Vec<Option<Mapping>>, String>) -> Result<Views> {
    let objections: Vec<Option<String>> = all_gather(connected, &mapped.as_ref().err().cloned())?;
    let first = objections.into_iter().enumerate().find_map(|(rank, reason)| Some((rank, reason?)));
    Ok(match (first, mapped) {
        (None, Ok(mappings)) => Views::Mapped(mappings),
        (Some((rank, reason)), _) => Views::Refused(format!("rank {rank} says of {reason}")),
        (None, Err(reason)) => Views::Refused(reason),
    })
}
