//! Device memory that all ranks of a communicator register together, so that each reaches the others'.
//!
//! Every rank says where its memory is and how other processes open it, maps what the others say, and says what it could not
//! map. Unless all have all, the memory is used by its own rank alone, as any registered memory. Nobody touches another
//! rank's memory but in calls that its owner makes with it, so ranks take windows back whenever they like. What they have mapped
//! of windows that their owners may lend stays until those do not (see [`Leases`]).

use std::sync::{Arc, Weak};

use ccl_cuda::{DeviceMemory, IpcMemory, Mapping, PhysicalMemory, PointerFacts, PointerKind, SharedMemory};
use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use super::engine::{DeviceEngine, Registered};
use super::failed;
use super::leases::{Asked, Lease, Leases, Notice};
use super::lent::{Registration, not_its_own, why_not};
use super::peers::{Gather, Link, bytes, told};
use super::pieces::{self, Passed, Pieces};
use crate::error::{Error, Fault, Result};

/// This rank's handle on device memory that all ranks have registered together, made by
/// [`Communicator::register_window`](crate::Communicator::register_window).
///
/// Ranks may drop their handles in any order, at any time, before or after the communicator and the memory. Dropping
/// one is local: this rank's ways to the others' memory go with it, once its calls under way have ended, and those that may
/// lend to it have dropped theirs. Like freeing device memory, it may wait for the device.
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
    /// If this rank may lend it.
    _lease: Option<Arc<Lease>>,
}

/// A rank's memory as this one sees it.
#[derive(Debug)]
enum View {
    /// The own one, and those of threads of this process.
    Here(u64),
    Opened(IpcMemory),
    /// Its pieces, and where in them it begins.
    Mapped(Arc<Mapping>, u64),
}

/// The windows of one rank that all ranks reach.
#[derive(Default)]
pub(super) struct Windows {
    /// How many there have been, the same on all ranks.
    registered: u32,
    known: Vec<Weak<Mapped>>,
    pub(super) leases: Leases,
}

/// What a rank says of the memory that it registers.
#[derive(Serialize, Deserialize)]
struct Offer {
    bytes: u64,
    address: u64,
    device: [u8; 16],
    way: Way,
    /// Why no other device reaches it.
    refusal: Option<String>,
    /// Why there is nothing to register.
    mistake: Option<String>,
    asked: Asked,
}

/// How other processes come by memory.
#[derive(Serialize, Deserialize)]
enum Way {
    /// By a handle of its allocation, and where it begins in that.
    Handle(Vec<u8>, u64),
    /// By its pieces. So do other devices of its process.
    Pieces(Pieces),
    /// They do not, and why.
    Closed(String),
}

impl DeviceWindow {
    /// Why other ranks do not reach the memory, which is then used by its own rank alone; `None` if all ranks reach
    /// that of all. The same on all ranks.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Where the memory of a rank begins for this rank's device, as long as this handle is there and that rank has not
    /// freed it; `None` if it is not reached. What the caller's own kernels and copies do there must be over before the
    /// handle goes.
    pub fn address_of(&self, rank: Rank) -> Option<u64> {
        self.mapped.as_ref()?.addresses().nth(rank.index())
    }

    /// What this rank may lend of it, as any registered memory: to threads of its process, and, if all ranks reach that of all
    /// and this is memory in pieces, to all; `None` on a rank that works on host memory.
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
        self.views.iter().map(View::address)
    }
}

impl View {
    fn address(&self) -> u64 {
        match self {
            View::Here(address) => *address,
            View::Opened(memory) => memory.address(),
            View::Mapped(pieces, offset_bytes) => pieces.address() + offset_bytes,
        }
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

    fn add(&mut self, memory: &Registered<'_>, views: Vec<View>, lease: Option<Arc<Lease>>) -> Arc<Mapped> {
        let ((start, bytes), id) = (memory.range(), self.registered);
        let bytes = bytes as u64;
        let window = Arc::new(Mapped { id, start, bytes, views, _memory: memory.kept(), _lease: lease });
        self.known.retain(|known| known.strong_count() > 0);
        self.known.push(Arc::downgrade(&window));
        window
    }
}

/// Registers memory with all ranks, which all call this while no kernel of theirs runs. Blocks until they have. Ranks that
/// work on host memory (`device` is `None`) take part. By `notice` others hear that this rank will not lend the window any more.
///
/// # Errors
///
/// A usage error, on all ranks, for lengths that differ, and for what some rank cannot register: nothing has happened
/// then. The driver's; the ranks that do not come.
pub(crate) fn register(
    mut device: Option<&mut DeviceEngine>,
    (me, memory): (Rank, &Registered<'_>),
    (gather, notice): (Gather<'_>, Notice),
) -> Result<DeviceWindow> {
    let (registration, mistake) = match registered(device.as_deref_mut(), memory) {
        Ok(registration) => (registration, None),
        Err(error) if *error.fault() == Fault::Usage => (None, Some(error)),
        Err(error) => return Err(error),
    };
    let (offer, own) = offer(device.as_deref(), memory, mistake.as_ref())?;
    let offers: Vec<Offer> = told(&gather(bytes(&offer)?)?)?;
    let asked: Vec<Asked> = offers.iter().map(|offer| offer.asked).collect();
    if let Some(device) = &mut device {
        device.windows.leases.heed(&asked);
        device.windows.leases.sweep();
    }
    if let Some(mistake) = mistake {
        return Err(mistake);
    }
    without_mistakes(&offers)?;
    of_one_length(&offers)?;
    let passed = match offers.iter().all(|offer| offer.refusal.is_none()) {
        true => pieces::pass(device.as_deref(), (me, &own), &pieces_of(&offers), gather)?,
        // Whatever could be passed is of no use.
        false => Ok(Passed::new()),
    };
    let views = match (&device, passed) {
        (Some(device), Ok(passed)) => views(device, &offers, &passed),
        (Some(_), Err(reason)) => Err(reason),
        (None, _) => Err(format!("rank {me} works on host memory")),
    };
    let slot = Asked::slot(&asked);
    let shown = match (&mut device, &views, &slot) {
        (Some(device), Ok(views), Ok(Some(slot))) => show(device, *slot, views),
        (.., Err(reason)) => Err(reason.clone()),
        _ => Ok(()),
    };
    let said: Vec<(Option<String>, Option<String>)> =
        told(&gather(bytes(&(views.as_ref().err(), shown.err()))?)?)?;
    let (objections, troubles): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    let first = |said: Vec<Option<String>>| said.into_iter().flatten().next();
    let (refusal, trouble) = (first(objections), first(troubles));
    let mut window = DeviceWindow { mapped: None, registration, refusal };
    if let (None, Some(reason)) = (&window.refusal, &trouble) {
        tracing::info!(target: "ccl::exec", bytes = memory.range().1, reason, "a window is not lent to all ranks");
        window.registration.iter_mut().for_each(|registration| registration.refuse(reason));
    }
    match (device, views, &window.refusal) {
        (Some(device), Ok(views), None) => {
            device.windows.registered += 1;
            let slot = slot.ok().flatten().filter(|_| trouble.is_none());
            let registration = window.registration.as_mut();
            let lease = slot.and_then(|slot| lease(device, (slot, &views, &offers), (registration, notice)));
            window.mapped = Some(device.windows.add(memory, views, lease));
        }
        (_, _, reason) => {
            let reason = reason.as_deref().unwrap_or_default();
            tracing::info!(target: "ccl::exec", bytes = memory.range().1, reason, "a window is used locally only");
        }
    }
    Ok(window)
}

/// Says where everybody's window begins here, for kernels that are lent of it.
fn show(device: &mut DeviceEngine, slot: usize, views: &[View]) -> Result<(), String> {
    let starts: Vec<u64> = views.iter().map(View::address).collect();
    let shown = device.windows.leases.show(slot, &starts, (&device.edges.windows, &device.own_stream));
    shown.map_err(|error| format!("rank {}: {error}", device.me))
}

/// Keeps the ways to what others may lend of a new window, and lends this rank's if it would.
fn lease(
    device: &mut DeviceEngine,
    (slot, views, offers): (usize, &[View], &[Offer]),
    (registration, notice): (Option<&mut Registration>, Notice),
) -> Option<Arc<Lease>> {
    let place = (slot, device.windows.registered);
    for (rank, (view, offer)) in (0..).map(Rank).zip(views.iter().zip(offers)) {
        if let (View::Mapped(mapping, _), true) = (view, offer.asked.asks) {
            device.windows.leases.keep(rank, place, Arc::clone(mapping));
        }
    }
    let own = &offers[device.me.index()];
    let lent = registration.filter(|_| own.asked.asks)?.lend();
    let maps = |(link, offer): (&Link, &Offer)| match link {
        Link::Direct { borrows, .. } => !borrows || offer.device != own.device,
        Link::Proxied(_) => false,
    };
    let all = (0..).map(Rank).zip(device.peers.links.iter().zip(offers));
    let readers = all.filter(|(_, other)| maps(*other)).map(|(rank, _)| rank).collect();
    Some(device.windows.leases.lease(place, lent, (readers, notice)))
}

/// Whether some rank that is reached has addresses of its own for this one's memory in pieces.
fn lends_apart(device: &DeviceEngine) -> bool {
    let is_reached = |link: &Link| matches!(link, Link::Direct { .. });
    let is_apart = |link: &Link| matches!(link, Link::Direct { borrows: false, .. });
    let links = &device.peers.links;
    links.iter().any(is_apart)
        || !device.peers.is_one_device && links.iter().filter(|link| is_reached(link)).count() > 1
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

/// What this rank says, and references to the pieces of its memory that it speaks of.
fn offer(
    device: Option<&DeviceEngine>,
    memory: &Registered<'_>,
    mistake: Option<&Error>,
) -> Result<(Offer, Vec<PhysicalMemory>)> {
    let (address, length) = memory.range();
    let mistake = mistake.map(|error| error.cause().to_owned());
    let way = Way::Closed("it is not a device's".to_owned());
    let mut offer = Offer {
        bytes: length as u64,
        address,
        device: [0; 16],
        way,
        refusal: None,
        mistake,
        asked: device.map_or_else(Asked::default, |device| device.windows.leases.asked()),
    };
    let (Some(device), None) = (device, &offer.mistake) else { return Ok((offer, Vec::new())) };
    let opened = &device.opened;
    let facts = PointerFacts::of(&opened.context, address).map_err(failed)?;
    offer.device = opened.uuid;
    if facts.kind != PointerKind::Device || facts.ipc_capable {
        offer.refusal = why_not(&facts, opened, &device.peers);
        offer.way = match SharedMemory::of(&opened.context, address) {
            Ok(shared) => Way::Handle(shared.handle.to_vec(), shared.offset_bytes),
            Err(_) => Way::Closed("processes cannot share it: it was not allocated by cuMemAlloc".to_owned()),
        };
        return Ok((offer, Vec::new()));
    }
    offer.refusal = not_its_own(&facts, opened);
    match Pieces::under(device, memory.range()) {
        Ok((pieces, own)) => {
            offer.way = Way::Pieces(pieces);
            offer.asked.asks = !opened.lends_nothing && lends_apart(device);
            Ok((offer, own))
        }
        Err(reason) => {
            let closed = format!("it was neither allocated by cuMemAlloc nor mapped by cuMemMap: {reason}");
            // Its own device reaches it all the same.
            let others = why_not(&facts, opened, &device.peers).map(|_| closed.clone());
            offer.refusal = offer.refusal.or(others);
            offer.way = Way::Closed(closed);
            Ok((offer, Vec::new()))
        }
    }
}

fn pieces_of(offers: &[Offer]) -> Vec<Option<&Pieces>> {
    let pieces = |offer| match offer {
        &Offer { way: Way::Pieces(ref pieces), .. } => Some(pieces),
        _ => None,
    };
    offers.iter().map(pieces).collect()
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
fn views(
    device: &DeviceEngine,
    offers: &[Offer],
    passed: &[Vec<PhysicalMemory>],
) -> Result<Vec<View>, String> {
    let named = |(rank, offer): (u32, &Offer)| {
        let passed = passed.get(rank as usize).map_or(&[][..], Vec::as_slice);
        view(device, Rank(rank), offer, passed)
            .map_err(|reason| format!("rank {} does not reach that of rank {rank}: {reason}", device.me))
    };
    (0..).zip(offers).map(named).collect()
}

fn view(device: &DeviceEngine, rank: Rank, offer: &Offer, passed: &[PhysicalMemory]) -> Result<View, String> {
    match (&device.peers.links[rank.index()], &offer.refusal, &offer.way) {
        (Link::Proxied(reason), ..) | (_, Some(reason), _) => Err(reason.clone()),
        (Link::Direct { borrows: true, .. }, _, Way::Pieces(pieces))
            if offer.device != device.opened.uuid =>
        {
            let mapping = pieces.map_beside(device, offer.address)?;
            Ok(View::Mapped(Arc::new(mapping), pieces.offset_bytes))
        }
        (Link::Direct { borrows: true, .. }, ..) => Ok(View::Here(offer.address)),
        (Link::Direct { .. }, _, Way::Handle(handle, offset_bytes)) => {
            let handle = handle.as_slice().try_into().map_err(|_| "its handle has another length")?;
            let shared = SharedMemory { handle, offset_bytes: *offset_bytes };
            let opened = IpcMemory::open(&device.opened.context, &shared);
            opened.map(View::Opened).map_err(|error| error.to_string())
        }
        (Link::Direct { .. }, _, Way::Pieces(pieces)) => {
            let mapping = pieces.map_apart(device, passed)?;
            Ok(View::Mapped(Arc::new(mapping), pieces.offset_bytes))
        }
        (Link::Direct { .. }, _, Way::Closed(reason)) => Err(reason.clone()),
    }
}

/// A buffer of a device given to a rank that has none.
#[cold]
pub(crate) fn not_of_the_host() -> Error {
    Error::usage(
        "expected host memory for a rank that works on host memory, found a DeviceBuffer",
        "let the rank work on the buffer's device (CCL_DEVICE), or copy the buffer to the host first",
    )
}
