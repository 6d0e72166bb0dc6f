//! Which ranks' devices reach each other, found by trying and agreed on by all.
//!
//! All ranks take part, those without a device too: first each says which device it has, then where its region is,
//! then whose it cannot reach. An edge is direct if both of its ends reach each other; else it goes through the host.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use ccl_cuda::{Context, Device, DeviceMemory, IpcMemory, SharedMemory};
use ccl_kernels::shape::Protocol;
use ccl_kernels::special::Special;
use ccl_plan::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::channels::{self, Channels, DeviceCut};
use super::group::rounds;
use super::protocol::{self, Ways};
use super::queues::Share;
use super::region::{BlockShape, Region, RegionView};
use super::special::OneShot;
use super::two_shot::TwoShot;
use super::{Opened, failed};
use crate::config::{Choices, Config};
use crate::error::{Error, Fault, Result};
use crate::transport::TransportInfo;

/// This rank's region and its way to all ranks' devices.
pub(super) struct Peers {
    pub(super) own: Arc<Region>,
    pub(super) links: Vec<Link>,
    /// How many ranks of the communicator share this rank's device.
    pub(super) sharing: u32,
    /// How many ranks share a device at most. The same on all ranks.
    pub(super) most_sharing: u32,
    /// Whether all ranks that have a device have this one.
    pub(super) is_one_device: bool,
    /// Of the queues of this rank's device.
    pub(super) share: Share,
    /// Each rank's number among the device ranks of its host.
    pub(super) seats: Vec<usize>,
    pub(super) ways: Ways,
    /// What there is in each region.
    pub(super) view: RegionView,
    /// Most channels of calls.
    pub(super) channels: Channels,
    /// Messages of a group that run at once: see [`rounds`](super::group::rounds). The same on all ranks.
    pub(super) rounds: u32,
    /// Most payload of a message, which all edges have room for. The same on all ranks.
    pub(super) slot_bytes: usize,
}

/// The way to a rank.
pub(super) enum Link {
    /// Its region is at this address here, and stays there. It borrows from this rank, and this rank from it, where
    /// addresses mean the same to both.
    Direct { address: u64, borrows: bool, _held: Held },
    /// Through the host, and why.
    Proxied(String),
}

/// What keeps a peer's region where it is.
#[expect(dead_code, reason = "held for their drops")]
pub(super) enum Held {
    /// A thread of this process owns it, too; and the context of another device, whose memory may be used.
    Region(Arc<Region>, Option<Context>),
    /// It is mapped from another process.
    Mapped(IpcMemory),
}

/// How all ranks tell all others something.
pub(crate) type Gather<'a> = &'a dyn Fn(Vec<u8>) -> Result<Vec<Bytes>>;

/// Which device a rank has.
#[derive(Clone, Serialize, Deserialize)]
struct Seat {
    uuid: [u8; 16],
    ordinal: i32,
    multiprocessors: u32,
    avoids_peers: bool,
    needs_all_slots: bool,
}

/// Where a rank's region is.
#[derive(Clone, Serialize, Deserialize)]
struct Place {
    address: u64,
    /// For other processes.
    shared: Option<(Vec<u8>, u64)>,
}

/// Agrees with all other ranks; nothing for a rank without a device. Blocks until all ranks have come.
///
/// # Errors
///
/// Of the driver; the ranks that do not come.
pub(super) fn agree(
    opened: Option<&Opened>,
    me: Rank,
    infos: &[TransportInfo],
    cut: DeviceCut,
    gather: Gather<'_>,
) -> Result<Option<Peers>> {
    let seat = opened.map(|opened| Seat::of(opened, cut));
    let seats: Vec<Option<Seat>> = told(&gather(bytes(&seat)?)?)?;
    let here: Vec<Rank> = device_ranks(infos, &seats, me);
    // Before the others go on, which count it, too.
    let share = opened.map(|opened| share(opened, me, infos, &seats));
    let inbox_bytes = opened.map_or(0, |opened| inbox(opened, infos, &seats));
    let mail_bytes = opened.map_or(0, |opened| mail(opened, infos, &seats));
    let has = protocols(opened, infos, &seats);
    let (view, channels) = view(cut, has, infos, &seats);
    let view = RegionView { inbox_bytes, mail_bytes, ..view };
    let own = opened.map(|opened| region(opened, view, here.len())).transpose()?;
    let place = opened.zip(own.as_ref()).map(|(opened, own)| place(opened, own));
    let places: Vec<Option<Place>> = told(&gather(bytes(&place)?)?)?;
    let peers: Vec<Theirs<'_>> = infos
        .iter()
        .zip(&seats)
        .zip(&places)
        .map(|((info, seat), place)| (info, seat.as_ref(), place.as_ref()))
        .collect();
    let reach = |rank: usize| match opened {
        Some(opened) => reach(opened, (me, &infos[me.index()]), Rank(rank as u32), peers[rank]),
        None => Err(format!("rank {me} works on host memory")),
    };
    let found: Vec<Result<(u64, Held), String>> = (0..infos.len()).map(reach).collect();
    let refusals: Vec<Option<String>> = found.iter().map(|found| found.as_ref().err().cloned()).collect();
    let keeps = opened.is_some_and(|opened| seats.iter().flatten().all(|seat| keeps_lines(opened, seat)));
    let told: Vec<(Vec<Option<String>>, bool)> = told(&gather(bytes(&(refusals, keeps))?)?)?;
    let (votes, keep): (Vec<_>, Vec<bool>) = told.into_iter().unzip();
    let (Some(opened), Some(own), Some(share)) = (opened, own, share) else { return Ok(None) };
    share.warn();
    let link = |(rank, found): (usize, Result<(u64, Held), String>)| {
        let refused = votes.get(rank).and_then(|vote| vote.get(me.index()).cloned().flatten());
        match (found, refused) {
            (Ok((address, held)), None) => {
                Link::Direct { address, borrows: matches!(held, Held::Region(..)), _held: held }
            }
            (Err(reason), _) | (_, Some(reason)) => Link::Proxied(reason),
        }
    };
    let links = found.into_iter().enumerate().map(link).collect();
    let same = |seat: &&Option<Seat>| seat.as_ref().is_some_and(|seat| seat.uuid == opened.uuid);
    let on_host = |rank: usize| {
        let all = device_ranks(infos, &seats, Rank(rank as u32));
        all.iter().position(|one| one.index() == rank).unwrap_or(0)
    };
    let ways = Ways {
        direct: are_together(infos, &seats) && votes.iter().flatten().all(Option::is_none),
        keep_lines: keep.into_iter().all(|keeps| keeps),
    };
    // What goes through the host has the fabric's channels.
    let channels = if ways.direct { channels } else { Channels::all(cut.channels.unwrap_or(1)) };
    Ok(Some(Peers {
        own,
        links,
        sharing: seats.iter().filter(same).count() as u32,
        most_sharing: most_sharing(&seats),
        is_one_device: seats.iter().flatten().all(|seat| seat.uuid == opened.uuid),
        share,
        seats: (0..infos.len()).map(on_host).collect(),
        ways,
        view,
        channels,
        rounds: rounds(infos.len() as u32, room(&seats), channels.messages),
        slot_bytes: if ways.direct { view.slot_bytes } else { view.slot_bytes.min(cut.slot_bytes) },
    }))
}

type Theirs<'a> = (&'a TransportInfo, Option<&'a Seat>, Option<&'a Place>);

impl Seat {
    fn of(opened: &Opened, cut: DeviceCut) -> Seat {
        Seat {
            uuid: opened.uuid,
            ordinal: opened.context.device().ordinal(),
            multiprocessors: opened.multiprocessors,
            avoids_peers: opened.avoids_peers,
            needs_all_slots: cut.needs_all_slots,
        }
    }
}

/// The ranks on the host of `rank` that have a device, in order.
fn device_ranks(infos: &[TransportInfo], seats: &[Option<Seat>], rank: Rank) -> Vec<Rank> {
    let host = &infos[rank.index()];
    let here = |(_, (info, seat)): &(u32, (&TransportInfo, &Option<Seat>))| {
        seat.is_some() && info.is_on_host_of(host)
    };
    (0..).zip(infos.iter().zip(seats)).filter(here).map(|(rank, _)| Rank(rank)).collect()
}

/// What this rank adds to the streams of its device, among the ranks that are threads of this process.
fn share(opened: &Opened, me: Rank, infos: &[TransportInfo], seats: &[Option<Seat>]) -> Share {
    let mine = &infos[me.index()];
    let is_beside = |rank: &Rank| {
        let seat = seats[rank.index()].as_ref();
        is_thread_beside(&infos[rank.index()], mine) && seat.is_some_and(|seat| seat.uuid == opened.uuid)
    };
    let ranks = device_ranks(infos, seats, me).into_iter().filter(is_beside).collect();
    Share::new(opened.context.device().ordinal(), ranks)
}

/// Whether two ranks of one host are threads of one process.
fn is_thread_beside(one: &TransportInfo, other: &TransportInfo) -> bool {
    (one.process.number, one.process.namespace) == (other.process.number, other.process.namespace)
}

/// Whether there are several ranks, all of one host and all with devices: a rank alone only ever sends to itself.
fn are_together(infos: &[TransportInfo], seats: &[Option<Seat>]) -> bool {
    infos.len() > 1
        && seats.iter().all(Option::is_some)
        && infos.iter().all(|info| info.is_on_host_of(&infos[0]))
}

/// What regions look like, and how many channels there are, if all edges turn out to be direct. The same on all ranks.
fn view(
    cut: DeviceCut,
    has: [bool; 3],
    infos: &[TransportInfo],
    seats: &[Option<Seat>],
) -> (RegionView, Channels) {
    let are_near = are_together(infos, seats) && !seats.iter().flatten().any(|seat| seat.avoids_peers);
    if are_near {
        let needs_all = seats.iter().flatten().any(|seat| seat.needs_all_slots);
        return near_view((cut, needs_all), has, infos.len(), (room(seats), most_sharing(seats)));
    }
    let channels = Channels::all(cut.channels.unwrap_or(1));
    (RegionView::of((cut.slots, cut.slot_bytes), channels.collectives, has), channels)
}

/// Multiprocessors that each rank with a device has, at least.
fn room(seats: &[Option<Seat>]) -> u32 {
    seats.iter().flatten().map(|seat| seat.multiprocessors / sharing(seat, seats)).min().unwrap_or(0)
}

/// The same of `n` ranks that are near, each with `room` multiprocessors, at least, on devices that at most so many share.
fn near_view(
    (cut, needs_all): (DeviceCut, bool),
    has: [bool; 3],
    n: usize,
    (room, most_sharing): (u32, u32),
) -> (RegionView, Channels) {
    let near = cut.near(needs_all);
    let each_bytes = RegionView::of(near, 1, has).bytes(n);
    let most_bytes = channels::MOST_BYTES / most_sharing.max(1) as usize;
    let channels = match cut.channels {
        Some(channels) => Channels::all(channels),
        None => Channels::between(n as u32, room, (each_bytes, most_bytes)),
    };
    (RegionView::of(near, channels.collectives, has), channels)
}

/// Bytes of each rank's region, and the channels, where `n` ranks have devices of so many multiprocessors on one host, `sharing` of
/// them each, that reach each other.
///
/// # Errors
///
/// Settings of protocols that name none.
pub(crate) fn region_bytes(
    config: &Config,
    cut: DeviceCut,
    n: u32,
    (sharing, multiprocessors): (u32, u32),
) -> Result<(u64, Channels)> {
    let choices = protocol::allowed(config)?;
    let is_alone = n < 2;
    let has = Protocol::ALL
        .map(|one| one == Protocol::Simple || !is_alone && protocol::is_allowed(choices.as_ref(), one));
    let room = (multiprocessors / sharing.max(1), sharing);
    let (view, channels) = match is_alone {
        true => {
            let channels = Channels::all(cut.channels.unwrap_or(1));
            (RegionView::of((cut.slots, cut.slot_bytes), channels.collectives, has), channels)
        }
        false => near_view((cut, cut.needs_all_slots), has, n as usize, room),
    };
    let said = config.cuda_one_shot().map(|bytes| bytes as usize);
    let inbox_bytes = inbox_bytes((said, choices.as_ref()), n);
    let mail_bytes = mail_bytes(config.cuda_two_shot() as usize, n, sharing);
    let view = RegionView { inbox_bytes, mail_bytes, ..view };
    Ok((view.bytes(n as usize).max(BlockShape::LEAST_BYTES) as u64, channels))
}

/// The protocols that regions have blocks for, the same on all ranks: others than simple only where all edges may be direct.
fn protocols(opened: Option<&Opened>, infos: &[TransportInfo], seats: &[Option<Seat>]) -> [bool; 3] {
    let together = are_together(infos, seats);
    let choices = opened.and_then(|opened| opened.protocols.as_ref());
    Protocol::ALL.map(|one| one == Protocol::Simple || together && protocol::is_allowed(choices, one))
}

/// How long inboxes are, the same on all ranks: only where all edges may be direct is there any.
fn inbox(opened: &Opened, infos: &[TransportInfo], seats: &[Option<Seat>]) -> usize {
    let settings = (opened.one_shot_bytes, opened.protocols.as_ref());
    if are_together(infos, seats) { inbox_bytes(settings, infos.len() as u32) } else { 0 }
}

/// Of ranks that are together.
fn inbox_bytes((said, protocols): (Option<usize>, Option<&Choices>), n: u32) -> usize {
    match OneShot::most_bytes(said, protocols, n) {
        0 => 0,
        bytes => ccl_kernels::special::inbox_bytes(n, bytes),
    }
}

/// How long mail is, the same on all ranks: only where all edges may be direct is there any.
fn mail(opened: &Opened, infos: &[TransportInfo], seats: &[Option<Seat>]) -> usize {
    let n = infos.len() as u32;
    if are_together(infos, seats) { mail_bytes(opened.two_shot_bytes, n, most_sharing(seats)) } else { 0 }
}

/// Of ranks that are together, of which so many share a device.
fn mail_bytes(two_shot_bytes: usize, n: u32, most_sharing: u32) -> usize {
    match two_shot_bytes {
        0 => 0,
        _ if n < 2 || n > Special::TwoShot.most_ranks() => 0,
        _ => ccl_kernels::special::mail_bytes(n, TwoShot::most_blocks(most_sharing)),
    }
}

/// How many ranks share a device at most.
fn most_sharing(seats: &[Option<Seat>]) -> u32 {
    seats.iter().flatten().map(|seat| sharing(seat, seats)).max().unwrap_or(0)
}

/// How many ranks have the device of `seat`, which is one of `seats`.
fn sharing(seat: &Seat, seats: &[Option<Seat>]) -> u32 {
    seats.iter().flatten().filter(|other| other.uuid == seat.uuid).count() as u32
}

/// Whether lines of 128 bytes stay whole on their way to a device: on the device itself, and on links over which its atomic
/// operations work, which is NVLink and not PCIe. Of a device that is not visible here nobody knows.
fn keeps_lines(opened: &Opened, seat: &Seat) -> bool {
    let own = opened.context.device();
    let same = |device: &&Device| device.uuid().is_ok_and(|uuid| uuid == seat.uuid);
    let keeps = |device: &Device| own.link_to(device).is_ok_and(|link| link.native_atomics);
    seat.uuid == opened.uuid
        || opened.context.driver().devices().is_ok_and(|all| all.iter().find(same).is_some_and(keeps))
}

/// This rank's region, cleared, and known to the other threads of the process.
fn region(opened: &Opened, view: RegionView, ranks: usize) -> Result<Arc<Region>> {
    let memory =
        DeviceMemory::new(&opened.context, view.bytes(ranks).max(BlockShape::LEAST_BYTES)).map_err(failed)?;
    let stream = opened.copies()?;
    memory.fill(0, &stream).and_then(|()| stream.synchronize()).map_err(failed)?;
    let region = Arc::new(Region::new(memory));
    let mut known = lock();
    known.retain(|region| region.strong_count() > 0);
    known.push(Arc::downgrade(&region));
    Ok(region)
}

fn place(opened: &Opened, own: &Region) -> Place {
    let shared = SharedMemory::of(&opened.context, own.address());
    let shared = shared
        .inspect_err(|error| tracing::debug!(%error, "other processes will not reach this device's memory"));
    let shared = shared.ok().map(|shared| (shared.handle.to_vec(), shared.offset_bytes));
    Place { address: own.address(), shared }
}

/// Where a peer's region is here; or why it is not.
fn reach(
    opened: &Opened,
    (me, mine): (Rank, &TransportInfo),
    rank: Rank,
    (info, seat, place): Theirs<'_>,
) -> Result<(u64, Held), String> {
    let (Some(seat), Some(place)) = (seat, place) else {
        return Err(format!("rank {rank} works on host memory"));
    };
    if !info.is_on_host_of(mine) {
        return Err(format!("another host, {}", info.process.host_name));
    }
    if rank != me && opened.avoids_peers {
        return Err("CCL_P2P_DISABLE".to_owned());
    }
    if is_thread_beside(info, mine) {
        let known = lock().iter().filter_map(Weak::upgrade).find(|region| region.address() == place.address);
        let region = known.ok_or_else(|| "its region is gone".to_owned())?;
        let context = if seat.uuid == opened.uuid { None } else { Some(peer_context(opened, seat)?) };
        return Ok((place.address, Held::Region(region, context)));
    }
    let (handle, offset_bytes) =
        place.shared.as_ref().ok_or("its driver shares no memory between processes")?;
    let handle = handle.as_slice().try_into().map_err(|_| "its handle has another length")?;
    let shared = SharedMemory { handle, offset_bytes: *offset_bytes };
    let mapped = IpcMemory::open(&opened.context, &shared).map_err(|error| error.to_string())?;
    Ok((mapped.address(), Held::Mapped(mapped)))
}

/// The context of another device of this process, whose memory this rank's kernels may use from now on.
fn peer_context(opened: &Opened, seat: &Seat) -> Result<Context, String> {
    let devices = opened.context.driver().devices().map_err(text)?;
    let same = |device: &&Device| device.uuid().is_ok_and(|uuid| uuid == seat.uuid);
    let device =
        devices.iter().find(same).ok_or_else(|| format!("device {} is not visible here", seat.ordinal))?;
    if !opened.context.device().link_to(device).map_err(text)?.access {
        return Err(format!(
            "no peer access between devices {} and {}",
            opened.context.device().ordinal(),
            seat.ordinal
        ));
    }
    let context = Context::primary(device).map_err(text)?;
    opened.context.enable_peer(&context).map_err(text)?;
    Ok(context)
}

pub(super) fn bytes<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| Error::bug(format!("what ranks say of devices: {error}")))
}

pub(super) fn told<T: DeserializeOwned>(all: &[Bytes]) -> Result<Vec<T>> {
    let one = |(rank, bytes): (u32, &Bytes)| {
        postcard::from_bytes(bytes).map_err(|error| {
            let cause = format!("expected what rank {rank} says of its device, found {error}");
            Error::new(Fault::Remote { rank: Rank(rank) }, cause, "run the same version of ccl on every rank")
        })
    };
    (0..).zip(all).map(one).collect()
}

/// Whether all ranks have come so far; else why not, and which rank says so. Blocks until all have voted.
pub(super) fn vote(gather: Gather<'_>, refusal: Option<&String>) -> Result<Result<(), String>> {
    let votes: Vec<Option<String>> = told(&gather(bytes(&refusal)?)?)?;
    let refused = (0..).zip(votes).find_map(|(rank, vote)| Some(format!("rank {rank}: {}", vote?)));
    Ok(refused.map_or(Ok(()), Err))
}

/// What a rank tells others of a failed call of the driver.
pub(super) fn text(error: ccl_cuda::Error) -> String {
    error.to_string()
}

/// The regions of this process's ranks.
static REGIONS: Mutex<Vec<Weak<Region>>> = Mutex::new(Vec::new());

fn lock() -> std::sync::MutexGuard<'static, Vec<Weak<Region>>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}
