//! Device memory that calls lend to the ranks that reach it, instead of copying it to slots.
//!
//! A sender decides alone: it writes into each slot where the payload lies, or that it is in the slot. The kernel ends
//! when all readers are done. Memory that was not registered is never lent, since a driver may have made it so that other
//! devices do not reach it; a graph's calls are looked at when they are captured. Ranks to which addresses mean nothing are lent
//! what lies in windows: see [`Leases`](super::leases::Leases).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ccl_cuda::{DeviceMemory, PointerFacts, PointerKind};

use super::peers::{Link, Peers};
use super::{DeviceBuffer, Opened, failed};
use crate::error::{Error, Result};

/// Device memory that a communicator's calls may lend, made by
/// [`Communicator::register_buffer`](crate::Communicator::register_buffer). Dropping it ends that for later calls and never
/// blocks.
#[derive(Debug)]
pub struct Registration {
    lent: Arc<Lendable>,
    refusal: Option<String>,
}

/// A range of device memory.
#[derive(Debug)]
pub(super) struct Lendable {
    start: u64,
    bytes: u64,
    calls: AtomicU64,
    /// A buffer of our own stays as long as it may be lent.
    _memory: Option<Arc<DeviceMemory>>,
}

/// What a rank may lend.
#[derive(Default)]
pub(super) struct Lending {
    known: Vec<Weak<Lendable>>,
}

impl Registration {
    /// Lends the memory by a window after all.
    pub(super) fn lend(&mut self) -> &Arc<Lendable> {
        self.refusal = None;
        &self.lent
    }

    /// Notes why a window is not lent either, if nothing of it is.
    pub(super) fn refuse(&mut self, reason: &str) {
        if let Some(refusal) = &mut self.refusal {
            reason.clone_into(refusal);
        }
    }

    /// Why nothing of this memory is lent; `None` if it is. Calls work all the same.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// How many calls have lent from this memory so far. A captured call counts when it is captured.
    pub fn calls(&self) -> u64 {
        self.lent.calls.load(Ordering::Relaxed)
    }
}

impl Lending {
    /// Registers a buffer of our own.
    pub(super) fn buffer(
        &mut self,
        buffer: &DeviceBuffer,
        opened: &Opened,
        peers: &Peers,
    ) -> Result<Registration> {
        let range = (buffer.address(), buffer.len());
        self.range(range, Some(buffer.memory()), opened, peers)
    }

    /// Registers a range that the driver knows.
    ///
    /// # Errors
    ///
    /// It does not, or not as one piece; its own.
    pub(super) fn range(
        &mut self,
        (start, bytes): (u64, usize),
        memory: Option<Arc<DeviceMemory>>,
        opened: &Opened,
        peers: &Peers,
    ) -> Result<Registration> {
        let facts = PointerFacts::of(&opened.context, start).map_err(failed)?;
        let ends_inside =
            facts.base != 0 && (start - facts.base).saturating_add(bytes as u64) <= facts.bytes as u64;
        let is_there = facts.kind != PointerKind::Unknown && ends_inside;
        if !is_there || !is_mapped((start, bytes), &facts, opened)? {
            return Err(Error::usage(
                format!("expected memory of one allocation, found {bytes} bytes at {start:#x}"),
                "register device memory, or pinned host memory, and no more than was allocated at once, or is mapped",
            ));
        }
        let refusal = peers.why_nothing_is_lent(opened).or_else(|| why_not(&facts, opened, peers));
        let calls = AtomicU64::new(0);
        let lent = Arc::new(Lendable { start, bytes: bytes as u64, calls, _memory: memory });
        self.known.retain(|known| known.strong_count() > 0);
        if refusal.is_none() {
            self.known.push(Arc::downgrade(&lent));
        }
        Ok(Registration { lent, refusal })
    }

    /// What a call with these buffers lends of by address: both lie in registered memory, or a graph's call in memory that can
    /// be. `None` if it may not.
    pub(super) fn may(
        &self,
        buffers: [(u64, usize); 2],
        is_captured: bool,
        opened: &Opened,
        peers: &Peers,
    ) -> Option<Vec<Arc<Lendable>>> {
        if self.known.is_empty() && !is_captured || peers.why_nothing_is_lent(opened).is_some() {
            return None;
        }
        let found = buffers.map(|(start, bytes)| self.find(start, bytes));
        let lends = buffers.iter().zip(&found).all(|((start, bytes), found)| {
            *bytes == 0 || found.is_some() || is_captured && reaches((*start, *bytes), opened, peers)
        });
        lends.then(|| found.into_iter().flatten().collect())
    }

    fn find(&self, start: u64, bytes: usize) -> Option<Arc<Lendable>> {
        self.known.iter().filter_map(Weak::upgrade).find(|lent| lent.holds(start, bytes))
    }
}

impl Lendable {
    /// Whether some memory lies in it.
    pub(super) fn holds(&self, start: u64, bytes: usize) -> bool {
        let offset = start.checked_sub(self.start);
        offset.is_some_and(|offset| offset.saturating_add(bytes as u64) <= self.bytes)
    }
}

/// Counts a call that lends from these, each of which may be there several times.
pub(super) fn count(mut lent: Vec<Arc<Lendable>>) {
    lent.sort_unstable_by_key(|lent| Arc::as_ptr(lent).addr());
    lent.dedup_by(|one, other| Arc::ptr_eq(one, other));
    lent.iter().for_each(|lent| _ = lent.calls.fetch_add(1, Ordering::Relaxed));
}

/// Whether the peers that borrow reach memory that nobody has registered.
fn reaches((start, bytes): (u64, usize), opened: &Opened, peers: &Peers) -> bool {
    let Ok(facts) = PointerFacts::of(&opened.context, start) else { return false };
    let is_whole = facts.base != 0 && (start - facts.base).saturating_add(bytes as u64) <= facts.bytes as u64;
    is_whole && why_not(&facts, opened, peers).is_none()
}

/// Why memory of this kind is not lent.
pub(super) fn why_not(facts: &PointerFacts, opened: &Opened, peers: &Peers) -> Option<String> {
    not_its_own(facts, opened).or_else(|| match facts.kind {
        // What else there is, such as memory of pools, only its own device reaches for certain.
        PointerKind::Device if !facts.ipc_capable && !peers.is_one_device => {
            Some("other devices may not reach it: it was not allocated by cuMemAlloc".to_owned())
        }
        _ => None,
    })
}

/// Why memory is neither that of the rank's device nor pinned.
pub(super) fn not_its_own(facts: &PointerFacts, opened: &Opened) -> Option<String> {
    let device = opened.context.device().ordinal();
    match facts.kind {
        PointerKind::Device if facts.device != Some(device) => Some(format!(
            "it is memory of device {}, and the rank works on device {device}",
            facts.device.unwrap_or(-1)
        )),
        PointerKind::Host | PointerKind::Device => None,
        _ => Some("it is neither a device's memory nor pinned".to_owned()),
    }
}

/// Whether all of a range of this device's memory is mapped, where more may be reserved than is.
fn is_mapped((start, bytes): (u64, usize), facts: &PointerFacts, opened: &Opened) -> Result<bool> {
    let is_certain = facts.kind != PointerKind::Device || facts.ipc_capable;
    if is_certain || not_its_own(facts, opened).is_some() {
        return Ok(true);
    }
    let (mut at, end) = (start, start.saturating_add(bytes as u64));
    while at < end {
        match PointerFacts::range(&opened.context, at) {
            Ok((base, length)) => at = base + length as u64,
            // What is not known even where it begins is of a kind without ranges, and there.
            Err(error) if error.fault() == ccl_cuda::Fault::Usage => return Ok(at == start),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(true)
}

impl Peers {
    /// Why this rank lends nothing to anybody; `None` if it lends to some.
    pub(super) fn why_nothing_is_lent(&self, opened: &Opened) -> Option<String> {
        if opened.lends_nothing {
            return Some("CCL_DIRECT_BYTES is 0".to_owned());
        }
        let borrows = |link: &&Link| matches!(link, Link::Direct { borrows: true, .. });
        if self.links.iter().filter(borrows).count() > 1 || self.links.len() == 1 {
            return None;
        }
        let reason = self.links.iter().find_map(|link| match link {
            Link::Proxied(reason) => Some(reason.clone()),
            Link::Direct { borrows: false, .. } => Some("the other ranks are other processes".to_owned()),
            Link::Direct { .. } => None,
        });
        reason.or_else(|| Some("there is no other rank".to_owned()))
    }
}
