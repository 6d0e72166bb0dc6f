//! Device memory that all ranks of a communicator register together, so that each reaches the others'.
//!
//! Every rank says where its memory is and how other processes open it, maps what the others say, and says what it could not
//! map. Unless all have all, the memory is used by its own rank alone, as any registered memory. Nobody touches another
//! rank's memory but in calls that its owner makes with it, so ranks take windows back whenever they like.

use std::sync::{Arc, Weak};

use ccl_cuda::{DeviceMemory, IpcMemory, PointerFacts, SharedMemory};
use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use super::engine::{DeviceEngine, Registered};
use super::failed;
use super::lent::{Registration, why_not};
use super::peers::{Gather, Link, bytes, told};
use crate::error::{Error, Fault, Result};

/// This rank's handle on device memory that all ranks have registered together, made by
/// [`Communicator::register_window`](crate::Communicator::register_window).
///
/// Ranks may drop their handles in any order, at any time, before or after the communicator and the memory. Dropping
/// one is local: this rank's ways to the others' memory go with it, once its calls under way have ended. Like freeing
/// device memory, it may wait for the device.
#[derive(Debug)]
pub struct DeviceWindow {
    mapped: Option<Arc<Mapped>>,
    registration: Option<Registration>,
    refusal: Option<String>,
}

/// A window that every rank reaches on every other.
#[derive(Debug)]
pub(super) struct Mapped {
    /// The same on all ranks.
    id: u32,
    start: u64,
    bytes: u64,
    /// By rank.
    views: Vec<View>,
    /// A buffer of our own stays as long as it is registered.
    _memory: Option<Arc<DeviceMemory>>,
}

/// A rank's memory as this one sees it.
#[derive(Debug)]
enum View {
    /// The own one, and those of threads of this process.
    Here(u64),
    Mapped(IpcMemory),
}

/// The windows of one rank that all ranks reach.
#[derive(Default)]
pub(super) struct Windows {
    /// How many there have been, the same on all ranks.
    registered: u32,
    known: Vec<Weak<Mapped>>,
}

/// What a rank says of the memory that it registers.
#[derive(Serialize, Deserialize)]
struct Offer {
    bytes: u64,
    address: u64,
    /// For other processes.
    shared: Option<(Vec<u8>, u64)>,
    /// Why no other device reaches it.
    refusal: Option<String>,
    /// Why there is nothing to register.
    mistake: Option<String>,
}

impl DeviceWindow {
    /// Why other ranks do not reach the memory, which is then used by its own rank alone; `None` if all ranks reach
    /// that of all. The same on all ranks.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Where the memory of a rank begins for this rank's device, as long as this handle is there and that rank has not
    /// freed it; `None` if it is not reached.
    pub fn address_of(&self, rank: Rank) -> Option<u64> {
        self.mapped.as_ref()?.addresses().nth(rank.index())
    }

    /// What this rank may lend of it to threads of its process, as any registered memory; `None` on a rank that works
    /// on host memory.
    pub fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }
}

impl Mapped {
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Where the memory of each rank begins here.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.views.iter().map(|view| match view {
            View::Here(address) => *address,
            View::Mapped(memory) => memory.address(),
        })
    }
}

impl Windows {
    /// Whether all ranks have ever reached a window of all. The same on all ranks.
    pub(super) fn is_any(&self) -> bool {
        self.registered > 0
    }

    /// The window in which this rank's buffer lies.
    pub(super) fn find(&self, start: u64, bytes: usize) -> Option<Arc<Mapped>> {
        let holds = |window: &Arc<Mapped>| {
            let offset = start.checked_sub(window.start);
            offset.is_some_and(|offset| offset.saturating_add(bytes as u64) <= window.bytes)
        };
        self.known.iter().filter_map(Weak::upgrade).find(holds)
    }

    fn add(&mut self, memory: &Registered<'_>, views: Vec<View>) -> Arc<Mapped> {
        self.registered += 1;
        let (start, bytes) = memory.range();
        let window =
            Mapped { id: self.registered, start, bytes: bytes as u64, views, _memory: memory.kept() };
        let window = Arc::new(window);
        self.known.retain(|known| known.strong_count() > 0);
        self.known.push(Arc::downgrade(&window));
        window
    }
}

/// Registers memory with all ranks, which all call this while no kernel of theirs runs. Blocks until they have. Ranks that
/// work on host memory (`device` is `None`) take part.
///
/// # Errors
///
/// A usage error, on all ranks, for lengths that differ, and for what some rank cannot register: nothing has happened
/// then. The driver's; the ranks that do not come.
pub(crate) fn register(
    mut device: Option<&mut DeviceEngine>,
    (me, memory): (Rank, &Registered<'_>),
    gather: Gather<'_>,
) -> Result<DeviceWindow> {
    let (registration, mistake) = match registered(device.as_deref_mut(), memory) {
        Ok(registration) => (registration, None),
        Err(error) if *error.fault() == Fault::Usage => (None, Some(error)),
        Err(error) => return Err(error),
    };
    let offer = offer(device.as_deref(), memory, mistake.as_ref())?;
    let offers: Vec<Offer> = told(&gather(bytes(&offer)?)?)?;
    if let Some(mistake) = mistake {
        return Err(mistake);
    }
    without_mistakes(&offers)?;
    of_one_length(&offers)?;
    let views = match &device {
        Some(device) => views(device, &offers),
        None => Err(format!("rank {me} works on host memory")),
    };
    let objections: Vec<Option<String>> = told(&gather(bytes(&views.as_ref().err())?)?)?;
    let refusal = objections.into_iter().flatten().next();
    let mut window = DeviceWindow { mapped: None, registration, refusal };
    match (device, views, &window.refusal) {
        (Some(device), Ok(views), None) => window.mapped = Some(device.windows.add(memory, views)),
        (_, _, reason) => {
            let reason = reason.as_deref().unwrap_or_default();
            tracing::info!(target: "ccl::exec", bytes = memory.range().1, reason, "a window is used locally only");
        }
    }
    Ok(window)
}

/// What is registered for this rank alone; nothing on a rank that works on host memory.
fn registered(device: Option<&mut DeviceEngine>, memory: &Registered<'_>) -> Result<Option<Registration>> {
    if memory.range().1 == 0 {
        return Err(Error::usage(
            "expected memory of some bytes, found none",
            "register memory that there is",
        ));
    }
    match (device, memory) {
        (Some(device), memory) => device.register(memory).map(Some),
        (None, Registered::Range(..)) => Ok(None),
        (None, Registered::Buffer(_)) => Err(not_of_the_host()),
    }
}

fn offer(device: Option<&DeviceEngine>, memory: &Registered<'_>, mistake: Option<&Error>) -> Result<Offer> {
    let (address, length) = memory.range();
    let mistake = mistake.map(|error| error.cause().to_owned());
    let mut offer = Offer { bytes: length as u64, address, shared: None, refusal: None, mistake };
    if let (Some(device), None) = (device, &offer.mistake) {
        let context = &device.opened.context;
        let facts = PointerFacts::of(context.driver(), address).map_err(failed)?;
        offer.refusal = why_not(&facts, &device.opened, &device.peers);
        let shared = SharedMemory::of(context, address);
        offer.shared = shared.ok().map(|shared| (shared.handle.to_vec(), shared.offset_bytes));
    }
    Ok(offer)
}

fn without_mistakes(offers: &[Offer]) -> Result<()> {
    let first = (0..).zip(offers).find_map(|(rank, offer)| Some((Rank(rank), offer.mistake.as_ref()?)));
    let Some((rank, mistake)) = first else { return Ok(()) };
    let cause = format!("expected memory of every rank, found of rank {rank}: {mistake}");
    Err(Error::usage(cause, "see that rank's error").with_peer(rank))
}

/// Names a rank whose length is not that of most.
fn of_one_length(offers: &[Offer]) -> Result<()> {
    let alike = |offer: &Offer| offers.iter().filter(|other| other.bytes == offer.bytes).count();
    // Of equally many the first.
    let usual = (0..offers.len()).rev().max_by_key(|rank| alike(&offers[*rank])).unwrap_or(0);
    let odd = offers.iter().position(|offer| offer.bytes != offers[usual].bytes);
    let Some(odd) = odd else { return Ok(()) };
    Err(Error::usage(
        format!(
            "expected memory of one length, found {} bytes on rank {odd} and {} on rank {usual}",
            offers[odd].bytes, offers[usual].bytes
        ),
        "register memory of the same length on all ranks",
    ))
}

/// The memory of every rank as this one sees it, or the first that it does not reach, and why.
fn views(device: &DeviceEngine, offers: &[Offer]) -> Result<Vec<View>, String> {
    let view = |(link, offer): (&Link, &Offer)| match (link, &offer.refusal, &offer.shared) {
        (Link::Proxied(reason), ..) | (_, Some(reason), _) => Err(reason.clone()),
        (Link::Direct { borrows: true, .. }, ..) => Ok(View::Here(offer.address)),
        (Link::Direct { .. }, _, Some((handle, offset_bytes))) => {
            let handle = handle.as_slice().try_into().map_err(|_| "its handle has another length")?;
            let shared = SharedMemory { handle, offset_bytes: *offset_bytes };
            let mapped = IpcMemory::open(&device.opened.context, &shared);
            mapped.map(View::Mapped).map_err(|error| error.to_string())
        }
        (Link::Direct { .. }, _, None) => {
            Err("processes cannot share it: it was not allocated by cuMemAlloc".to_owned())
        }
    };
    let named = |(rank, ends)| {
        view(ends)
            .map_err(|reason| format!("rank {} does not reach that of rank {rank}: {reason}", device.me))
    };
    (0u32..).zip(device.peers.links.iter().zip(offers)).map(named).collect()
}

/// A buffer of a device given to a rank that has none.
#[cold]
pub(crate) fn not_of_the_host() -> Error {
    Error::usage(
        "expected host memory for a rank that works on host memory, found a DeviceBuffer",
        "let the rank work on the buffer's device (CCL_DEVICE), or copy the buffer to the host first",
    )
}
