//! Device memory whose physical memory was made apart from its addresses (`cuMemCreate`, `cuMemMap`), often in several pieces, as
//! allocators whose segments grow make it. Other processes get every piece, by descriptor or by the handle of a fabric, and map
//! them in the same order.
//!
//! Handles are bytes and come with what ranks say. One rank after the other passes descriptors on, few at once, and all ranks vote before they take them: queues of sockets hold
//! that, few descriptors are open, nobody waits for one, and all hear of whatever fails.

use std::os::fd::{AsFd, OwnedFd};

use ccl_cuda::{FabricHandle, Mapping, PhysicalMemory, PointerFacts};
use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use super::engine::DeviceEngine;
use super::lent::not_its_own;
use super::passing::{self, Token};
use super::peers::{Gather, Link, bytes, text, told, vote};
use crate::error::Result;
use crate::memory::{MOST_DESCRIPTORS, Mailbox, MailboxName};

/// What a rank says of the pieces under the memory that it registers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pieces {
    /// How long each is, all of which is mapped.
    bytes: Vec<u64>,
    /// Where in the first the memory begins.
    pub(super) offset_bytes: u64,
    passing: Passing,
}

/// How pieces come to other processes.
#[derive(Debug, Serialize, Deserialize)]
enum Passing {
    Descriptors,
    /// One for each.
    Handles(Vec<Vec<u8>>),
    /// They do not, and why.
    Kept(String),
}

/// Pieces of other processes' memory, by rank.
pub(super) type Passed = Vec<Vec<PhysicalMemory>>;

/// Where a rank takes what is passed to it.
struct Post {
    mailbox: Option<Mailbox>,
    /// Of all ranks.
    doors: Vec<Door>,
}

#[derive(Serialize, Deserialize)]
struct Door {
    mailbox: Option<MailboxName>,
    token: Token,
}

impl Pieces {
    /// The pieces under memory of this rank, and a reference to each.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub(super) fn under(
        device: &DeviceEngine,
        (start, bytes): (u64, usize),
    ) -> Result<(Pieces, Vec<PhysicalMemory>), String> {
        let context = &device.opened.context;
        let (mut at, end) = (start, start + bytes as u64);
        let (mut offset_bytes, mut held) = (0, Vec::new());
        let (mut descriptors, mut handles) = (true, true);
        while at < end {
            let (base, length) = PointerFacts::range(context, at).map_err(text)?;
            let facts = PointerFacts::of(context, at).map_err(text)?;
            if let Some(reason) = not_its_own(&facts, &device.opened) {
                return Err(reason);
            }
            if held.len() == MOST_PIECES {
                return Err(format!("it consists of more than {MOST_PIECES} pieces"));
            }
            if held.is_empty() {
                offset_bytes = start - base;
            }
            descriptors &= facts.sharing.by_descriptor();
            handles &= facts.sharing.by_fabric();
            held.push(PhysicalMemory::mapped(context, base, length).map_err(text)?);
            at = base + length as u64;
        }
        let bytes = held.iter().map(|piece| piece.bytes() as u64).collect();
        let is_any_apart = (0..device.n).any(|rank| is_apart(device, Rank(rank)));
        let passing = match (descriptors, handles) {
            _ if !is_any_apart => Passing::Kept("no rank is in another process".to_owned()),
            (true, _) => Passing::Descriptors,
            (_, true) => fabric(&held).map_or_else(Passing::Kept, Passing::Handles),
            _ => Passing::Kept(NOT_FOR_SHARING.to_owned()),
        };
        Ok((Pieces { bytes, offset_bytes, passing }, held))
    }

    /// Maps the pieces of another process, `passed` of which came by descriptor.
    ///
    /// # Errors
    ///
    /// Why they do not come here; the driver's.
    pub(super) fn map_apart(
        &self,
        device: &DeviceEngine,
        passed: &[PhysicalMemory],
    ) -> Result<Mapping, String> {
        let handles = match &self.passing {
            Passing::Descriptors => return map(device, passed),
            Passing::Kept(reason) => return Err(reason.clone()),
            Passing::Handles(handles) => handles,
        };
        let open = |(handle, bytes): (&Vec<u8>, &u64)| {
            let handle = handle.as_slice().try_into().map_err(|_| "a handle has another length")?;
            let driver = device.opened.context.driver();
            PhysicalMemory::from_fabric(driver, &FabricHandle(handle), *bytes as usize).map_err(text)
        };
        let pieces: Vec<_> = handles.iter().zip(&self.bytes).map(open).collect::<Result<_, String>>()?;
        map(device, &pieces)
    }

    /// Maps the pieces under the memory of another thread of this process, which begins at `address`.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub(super) fn map_beside(&self, device: &DeviceEngine, address: u64) -> Result<Mapping, String> {
        let mut at = address - self.offset_bytes;
        let piece = |bytes: &u64| {
            let piece = PhysicalMemory::mapped(&device.opened.context, at, *bytes as usize).map_err(text);
            at += bytes;
            piece
        };
        let pieces: Vec<_> = self.bytes.iter().map(piece).collect::<Result<_, String>>()?;
        map(device, &pieces)
    }

    /// Those that go by descriptor.
    fn passed(&self) -> &[u64] {
        if matches!(self.passing, Passing::Descriptors) { &self.bytes } else { &[] }
    }
}

impl Post {
    fn open(gather: Gather<'_>) -> Result<Post> {
        let mailbox = Mailbox::bind().ok();
        let own = Door { mailbox: mailbox.as_ref().map(Mailbox::name), token: passing::token()? };
        Ok(Post { doors: told(&gather(bytes(&own)?)?)?, mailbox })
    }

    /// Sends pieces to the ranks of other processes.
    fn give(
        &self,
        device: &DeviceEngine,
        from: (Rank, usize),
        pieces: &[PhysicalMemory],
    ) -> Result<(), String> {
        let descriptors: Vec<OwnedFd> =
            pieces.iter().map(PhysicalMemory::descriptor).collect::<Result<_, _>>().map_err(text)?;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        (0..).map(Rank).zip(&self.doors).filter(|(rank, _)| is_apart(device, *rank)).try_for_each(
            |(rank, door)| {
                let note = note(&door.token, from);
                passing::post(self.mailbox.as_ref(), (rank, door.mailbox), &note, &descriptors)
            },
        )
    }

    /// Takes pieces of so many bytes that a rank has sent.
    fn take(
        &self,
        device: &DeviceEngine,
        from: (Rank, usize),
        lengths: &[u64],
    ) -> Result<Vec<PhysicalMemory>, String> {
        let note = note(&self.doors[device.me.index()].token, from);
        let descriptors = passing::take(self.mailbox.as_ref(), &note)?.unwrap_or_default();
        if descriptors.len() != lengths.len() {
            return Err(format!("descriptors of rank {} have not come", from.0));
        }
        let driver = device.opened.context.driver();
        let open = |(descriptor, bytes): (&OwnedFd, &u64)| {
            PhysicalMemory::from_descriptor(driver, descriptor.as_fd(), *bytes as usize).map_err(text)
        };
        descriptors.iter().zip(lengths).map(open).collect()
    }
}

/// Passes pieces (`own` are this rank's) to the ranks of other processes. Nobody asks a rank that has none for anything but its
/// votes. Blocks until all ranks have come.
///
/// The inner result is why some rank has not got all, the same on all.
///
/// # Errors
///
/// The ranks that do not come.
pub(super) fn pass(
    device: Option<&DeviceEngine>,
    (me, own): (Rank, &[PhysicalMemory]),
    all: &[Option<&Pieces>],
    gather: Gather<'_>,
) -> Result<Result<Passed, String>> {
    let lengths: Vec<&[u64]> = all.iter().map(|pieces| pieces.map_or(&[][..], Pieces::passed)).collect();
    let mut passed: Passed = all.iter().map(|_| Vec::new()).collect();
    if lengths.iter().all(|lengths| lengths.is_empty()) {
        return Ok(Ok(passed));
    }
    let post = Post::open(gather)?;
    let mut trouble = None;
    for (rank, lengths) in (0..).map(Rank).zip(lengths) {
        for (number, lengths) in lengths.chunks(MOST_DESCRIPTORS).enumerate() {
            if let (true, None, Some(device)) = (rank == me, &trouble, device) {
                let pieces = &own[number * MOST_DESCRIPTORS..][..lengths.len()];
                trouble = post.give(device, (rank, number), pieces).err();
            }
            if let Err(reason) = vote(gather, trouble.as_ref())? {
                return Ok(Err(reason));
            }
            let Some(device) = device.filter(|device| is_apart(device, rank)) else { continue };
            match post.take(device, (rank, number), lengths) {
                Ok(pieces) => passed[rank.index()].extend(pieces),
                Err(reason) => trouble = Some(reason),
            }
        }
    }
    Ok(vote(gather, trouble.as_ref())?.map(|()| passed))
}

/// Maps pieces one behind the other, for this rank's device.
fn map(device: &DeviceEngine, pieces: &[PhysicalMemory]) -> Result<Mapping, String> {
    Mapping::of_pieces(pieces, &[device.opened.context.device()]).map_err(text)
}

/// The handles of pieces.
fn fabric(pieces: &[PhysicalMemory]) -> Result<Vec<Vec<u8>>, String> {
    pieces.iter().map(|piece| piece.fabric().map(|handle| handle.0.to_vec()).map_err(text)).collect()
}

/// Whether a rank is reached and in another process.
fn is_apart(device: &DeviceEngine, rank: Rank) -> bool {
    matches!(device.peers.links[rank.index()], Link::Direct { borrows: false, .. })
}

/// What comes with the `number`th descriptors of a rank.
fn note(token: &Token, (rank, number): (Rank, usize)) -> Vec<u8> {
    [&token[..], &rank.0.to_le_bytes(), &(number as u64).to_le_bytes()].concat()
}

const NOT_FOR_SHARING: &str = "processes cannot share it: not all of its physical memory was made (cuMemCreate) with a \
                               handle of posix file descriptors, or all with one of a fabric";
/// All are mapped one by one by every rank.
const MOST_PIECES: usize = 4096;
