//! Whether processes with a core each do better to read each other's memory or to pass it through slots: tried, because
//! no table tells (ADR 0057). Not on AMD processors, where slots are as fast or faster however cores lie (ADR 0109).
//!
//! Ranks in pairs send each other the same bytes, at the same time, in every way that there is; the fastest attempt
//! of each way counts, so that what interrupts a rank does not.

use std::time::{Duration, Instant};

use ccl_plan::{Channel, Rank};

use super::reduce::{copy, copy_long};
use crate::error::{Error, Fault, Result};
use crate::transport::{EdgeIndex, Fabric, Slot};

/// How bytes travel from one end of an edge to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Slots,
    SlotsAroundTheCaches,
    Read,
}

/// What a trial found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verdict {
    /// Reading is not faster, or not clearly.
    Slots,
    /// Reading takes clearly less time than slots,
    Faster,
    /// and less than half as long: also what is folded is better read, if it is long.
    FasterByFar,
}

/// One rank's part.
struct Trial<'a> {
    fabric: &'a mut Fabric,
    peer: Rank,
    send: EdgeIndex,
    receive: EdgeIndex,
    source: Vec<u8>,
    target: Vec<u8>,
    piece_bytes: usize,
    /// Whether the communicator still works.
    check: &'a dyn Fn() -> Result<()>,
    deadline: Instant,
}

/// Whether this rank and the other of its pair are faster if what they send is read where it is. A rank that is left
/// over has nothing against it.
///
/// Call on all ranks of a host, each a process with a core, where all read each other's memory. Blocks until the other of
/// the pair has done its part, some milliseconds; what the trial sent has arrived when it returns.
///
/// # Errors
///
/// What `check` says meanwhile; a peer that does not do its part until `deadline`.
pub(crate) fn reading(
    fabric: &mut Fabric,
    (rank, n): (Rank, u32),
    check: &dyn Fn() -> Result<()>,
    deadline: Instant,
) -> Result<Verdict> {
    let peer = Rank(rank.0 ^ 1);
    if peer.0 >= n {
        return Ok(Verdict::FasterByFar);
    }
    let (send, receive) = (fabric.send_edge(peer, CHANNEL, 0)?, fabric.receive_edge(peer, CHANNEL, 0)?);
    let piece_bytes = PIECE_BYTES.min(fabric.slot_bytes());
    let (source, target) = (vec![1; BYTES], vec![0; BYTES]);
    let mut trial = Trial { fabric, peer, send, receive, source, target, piece_bytes, check, deadline };
    let [cached, around, read] = [
        trial.fastest(Way::Slots, WARMING_ATTEMPTS)?,
        trial.fastest(Way::SlotsAroundTheCaches, ATTEMPTS)?,
        trial.fastest(Way::Read, ATTEMPTS)?,
    ];
    let slots = cached.min(around);
    tracing::debug!(
        rank = rank.0,
        peer = peer.0,
        bytes = BYTES,
        ?cached,
        ?around,
        ?read,
        "ways between processes"
    );
    let below = |(share, of): (u32, u32)| read * of < slots * share;
    Ok(match below(CLEARLY) {
        true if below(BY_FAR) => Verdict::FasterByFar,
        true => Verdict::Faster,
        false => Verdict::Slots,
    })
}

impl Trial<'_> {
    /// The shortest of so many exchanges, one after the other: each way has the whole ring for itself, as in calls.
    fn fastest(&mut self, way: Way, attempts: usize) -> Result<Duration> {
        let mut fastest = Duration::MAX;
        for _ in 0..attempts {
            fastest = fastest.min(self.exchange(way)?);
        }
        Ok(fastest)
    }

    /// Both ranks send and receive all bytes; how long that took this one.
    fn exchange(&mut self, way: Way) -> Result<Duration> {
        let start = Instant::now();
        let (mut sent, mut received, mut idle) = (0, 0, 0u32);
        while sent < BYTES || received < BYTES || !self.fabric.sender(self.send).all_released() {
            let (before, piece) = ((sent, received), self.piece(way, sent));
            if sent < BYTES && self.send_piece(way, sent, piece)? {
                sent += piece;
            }
            if received < BYTES {
                received += self.receive_piece(received)?;
            }
            idle = if before == (sent, received) { idle + 1 } else { 0 };
            if idle > 0 && idle.is_multiple_of(PATIENCE) {
                self.pause()?;
            }
            std::hint::spin_loop();
        }
        Ok(start.elapsed())
    }

    /// Bytes of the next message.
    fn piece(&self, way: Way, sent: usize) -> usize {
        let most = if way == Way::Read { BYTES } else { self.piece_bytes };
        most.min(BYTES - sent)
    }

    /// Sends what follows the first `from` bytes, if there is a place for it.
    fn send_piece(&mut self, way: Way, from: usize, bytes: usize) -> Result<bool> {
        let (edge, input) = (self.fabric.sender(self.send), self.source[from..][..bytes].as_ptr());
        let Some(slot) = edge.acquire(if way == Way::Read { 0 } else { bytes })? else { return Ok(false) };
        let output = slot.as_ptr();
        match way {
            Way::Read => edge.lend((input, bytes), TAG, false)?,
            // SAFETY: the slot was acquired for so many bytes and is nobody else's before it is posted.
            Way::Slots => unsafe { copy(input, &[output], bytes) },
            // SAFETY: the same.
            Way::SlotsAroundTheCaches => unsafe { copy_long(input, false, (&[output], 0), bytes) },
        }
        if way != Way::Read {
            edge.post(bytes, TAG)?;
        }
        Ok(true)
    }

    /// Takes the next message in, if it is there; its bytes.
    fn receive_piece(&mut self, from: usize) -> Result<usize> {
        let edge = self.fabric.receiver(self.receive);
        let Some(slot) = edge.peek()? else { return Ok(0) };
        let Slot { data, bytes, lent, .. } = slot;
        let Some(output) = self.target[from..].get_mut(..bytes) else {
            return Err(Error::bug(format!(
                "expected at most {} bytes of a trial, found {bytes}",
                BYTES - from
            )));
        };
        let output = output.as_mut_ptr();
        if lent {
            // SAFETY: the target has so many bytes left and is this trial's own.
            while !unsafe { edge.fetch(&slot, output)? } {}
        } else {
            // SAFETY: a slot that is not lent holds its bytes until it is released; the target is this trial's own.
            unsafe { copy(data.as_ptr(), &[output], bytes) };
        }
        edge.release()?;
        Ok(bytes)
    }

    /// Lets others run, and looks whether waiting still makes sense.
    fn pause(&self) -> Result<()> {
        std::thread::yield_now();
        (self.check)()?;
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let cause = "expected the peer to take part in trying how memory is best passed on, found it silent";
        let advice = "look for what stopped that rank, or set CCL_DIRECT_BYTES, and nothing is tried";
        Err(Error::new(Fault::Timeout, cause, advice).with_peer(self.peer))
    }
}

const CHANNEL: Channel = Channel(0);
const TAG: u32 = 0;
/// What each rank sends in one attempt: fits the caches of its core, and a few slots.
const BYTES: usize = 256 << 10;
/// As long shares are cut.
const PIECE_BYTES: usize = 64 << 10;
/// Of each way. The first ones touch fresh memory.
const ATTEMPTS: usize = 8;
/// Through the caches: what is not in them yet comes into them while the ring of 1 MiB is gone round a few times.
const WARMING_ATTEMPTS: usize = 32;
/// Reading must take less than so much of the time through slots: what it takes grows when caches do not hold the data.
const CLEARLY: (u32, u32) = (4, 5);
/// Below this share of it long all-reduces gained by reading, above it they lost up to three quarters of their speed.
const BY_FAR: (u32, u32) = (9, 20);
/// Looks at the edges before others may run.
const PATIENCE: u32 = 1 << 12;
