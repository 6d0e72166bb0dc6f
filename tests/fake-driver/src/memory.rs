//! Device memory, copies, and what is known of addresses.

use std::os::fd::IntoRawFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::capture::breaks_others;
use crate::code::*;
use crate::state::{self, State, current, devices, fresh};
use crate::stream;
use crate::symbols::{Out, item, put};
use crate::virtual_memory::Physical;

/// A range of memory that the driver knows.
pub(crate) struct Range {
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    pub(crate) id: usize,
}

pub(crate) enum Kind {
    Device,
    Host,
    Registered,
    Ipc,
    /// With the devices that may use it.
    Mapped {
        physical: Arc<Physical>,
        devices: Vec<usize>,
    },
}

impl Kind {
    /// The name by which tests count it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Device => "memory",
            Self::Host => "host",
            Self::Registered => "registration",
            Self::Ipc => "ipc",
            Self::Mapped { .. } => "mapping",
        }
    }

    fn is_host(&self) -> bool {
        matches!(self, Self::Host | Self::Registered)
    }
}

impl State {
    /// The range that holds an address.
    pub(crate) fn range(&self, address: u64) -> Option<(u64, &Range)> {
        let (&base, range) = self.ranges.range(..=address).next_back()?;
        (address - base < range.bytes as u64).then_some((base, range))
    }

    pub(crate) fn insert(&mut self, base: u64, bytes: usize, kind: Kind, device: usize) {
        self.ranges.insert(base, Range { bytes, kind, device, id: fresh() });
    }

    /// Whether a device can read and write `bytes` at `address`: in one known range, in mappings one behind the other, or
    /// in ordinary memory of the host.
    pub(crate) fn check(&self, device: usize, address: u64, bytes: usize) -> Answer {
        match self.range(address) {
            Some((_, Range { kind: Kind::Mapped { physical, devices: may }, .. }))
                if physical.members.is_some() || !may.contains(&device) =>
            {
                Err(INVALID_VALUE)
            }
            Some((base, Range { kind: Kind::Mapped { .. }, bytes: length, .. }))
                if address - base + bytes as u64 > *length as u64 =>
            {
                let next = base + *length as u64;
                let rest = bytes - (next - address) as usize;
                let goes_on = matches!(self.ranges.get(&next), Some(Range { kind: Kind::Mapped { .. }, .. }));
                if goes_on { self.check(device, next, rest) } else { Err(INVALID_VALUE) }
            }
            Some((base, range)) if address - base + bytes as u64 <= range.bytes as u64 => Ok(()),
            Some((_, range)) if matches!(range.kind, Kind::Registered) => Ok(()),
            Some(_) => Err(INVALID_VALUE),
            None if address == 0 && bytes > 0 => Err(INVALID_VALUE),
            None if devices().all.iter().any(|device| device.arena.holds(address)) => Err(INVALID_VALUE),
            None if self.is_reserved(address) => Err(INVALID_VALUE),
            None => Ok(()),
        }
    }

    /// Whether kernels of a device may use a range.
    fn reaches(&self, device: usize, range: &Range) -> bool {
        match &range.kind {
            Kind::Host | Kind::Registered => true,
            Kind::Mapped { devices, .. } => devices.contains(&device),
            Kind::Device | Kind::Ipc => {
                range.device == device || self.peers.contains(&(device, range.device))
            }
        }
    }

    fn is_reserved(&self, address: u64) -> bool {
        self.reservation(address).is_some()
    }

    /// The reserved addresses around this one: where they begin and how long they are.
    fn reservation(&self, address: u64) -> Option<(u64, usize)> {
        let (&base, &bytes) = self.reservations.range(..=address).next_back()?;
        (address - base < bytes as u64).then_some((base, bytes))
    }

    /// Whether anything is mapped between `bytes` reserved addresses.
    pub(crate) fn is_mapped(&self, address: u64, bytes: usize) -> bool {
        self.range(address).is_some() || self.ranges.range(address..address + bytes as u64).next().is_some()
    }
}

pub(crate) fn mem_alloc(place: Out<u64>, bytes: usize) -> Answer {
    breaks_others()?;
    let device = current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    state::make();
    let address = devices().all[device].arena.take(bytes)?;
    state::lock(|state| state.insert(address, bytes, Kind::Device, device));
    place.set(address);
    Ok(())
}

pub(crate) fn mem_free(address: u64) -> Answer {
    if address == 0 {
        return Ok(());
    }
    breaks_others()?;
    crate::device::context_synchronize().ok();
    let range = state::lock(|state| match state.ranges.get(&address) {
        Some(Range { kind: Kind::Device, .. }) => state.ranges.remove(&address),
        _ => None,
    });
    devices().all[range.ok_or(INVALID_VALUE)?.device].arena.give(address)
}

pub(crate) fn mem_info(free: Out<usize>, total: Out<usize>) -> Answer {
    let arena = &devices().all[current()?].arena;
    free.set(arena.free_bytes());
    total.set(arena.bytes());
    Ok(())
}

pub(crate) fn memcpy_async(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    let stream = stream::of(stream)?;
    let device = stream.device;
    check(device, &[(to, bytes), (from, bytes)])?;
    let is_pageable = |address| state::lock(|state| state.range(address).is_none());
    let waits = bytes > MOST_STAGED && stream.part().is_none() && (is_pageable(to) || is_pageable(from));
    let work = move || {
        check(device, &[(to, bytes), (from, bytes)]).map_err(|_| ILLEGAL_ADDRESS)?;
        // SAFETY: both ranges were checked above; ordinary host memory the caller keeps valid.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    };
    stream.submit("copy", Arc::new(work))?;
    if waits {
        // As drivers may, from memory that is not pinned and where their own does not hold all of it.
        stream.synchronize();
    }
    Ok(())
}

pub(crate) fn memset_bytes_async(address: u64, value: u8, bytes: usize, stream: usize) -> Answer {
    let stream = stream::of(stream)?;
    let device = stream.device;
    check(device, &[(address, bytes)])?;
    let work = move || {
        check(device, &[(address, bytes)]).map_err(|_| ILLEGAL_ADDRESS)?;
        // SAFETY: the range was checked above.
        unsafe { std::ptr::write_bytes(address as *mut u8, value, bytes) };
        Ok(())
    };
    stream.submit("fill", Arc::new(work))
}

pub(crate) fn memset_words_async(address: u64, value: u32, count: usize, stream: usize) -> Answer {
    let stream = stream::of(stream)?;
    if !address.is_multiple_of(4) {
        return Err(INVALID_VALUE);
    }
    let device = stream.device;
    check(device, &[(address, count * 4)])?;
    let work = move || {
        check(device, &[(address, count * 4)]).map_err(|_| ILLEGAL_ADDRESS)?;
        (0..count).for_each(|index| put(address as usize, index, value));
        Ok(())
    };
    stream.submit("fill", Arc::new(work))
}

pub(crate) fn mem_address_range(base: Out<u64>, bytes: Out<usize>, address: u64) -> Answer {
    current()?;
    state::lock(|state| {
        let (start, range) = state.range(address).ok_or(NOT_FOUND)?;
        base.set(start);
        bytes.set(range.bytes);
        Ok(())
    })
}

pub(crate) fn pointer_attributes(count: u32, attributes: usize, values: usize, address: u64) -> Answer {
    let asking = current()?;
    state::lock(|state| {
        let found = state.range(address);
        let is_reached = found.is_some_and(|(_, range)| state.reaches(asking, range));
        // Of what is mapped it is the reservation that counts; `cuMemGetAddressRange` says what is mapped.
        let whole = match found {
            Some((_, Range { kind: Kind::Mapped { .. }, .. })) => state.reservation(address),
            other => other.map(|(base, range)| (base, range.bytes)),
        };
        for index in 0..count as usize {
            answer(
                (found, whole),
                if is_reached { address } else { 0 },
                item(attributes, index),
                item(values, index),
            )?;
        }
        Ok(())
    })
}

/// The range around an address, and what counts as its allocation: where it begins and how long it is.
type Found<'a> = (Option<(u64, &'a Range)>, Option<(u64, usize)>);

/// One attribute; for addresses that are not known it is nothing, and no error. `address` is 0 if kernels of the current
/// context do not reach it.
fn answer((found, whole): Found<'_>, address: u64, attribute: i32, place: usize) -> Answer {
    let host = found.is_some_and(|(_, range)| range.kind.is_host());
    match attribute {
        1 => put(
            place,
            0,
            found.filter(|(_, range)| owner(range)).map_or(0, |(_, range)| state::context_of(range.device)),
        ),
        2 => put(place, 0, found.map_or(0u32, |_| if host { 1 } else { 2 })),
        3 => put(place, 0, address),
        4 => put(place, 0, if host { address } else { 0 }),
        7 => put(place, 0, found.map_or(0u64, |(_, range)| range.id as u64)),
        8 => put(place, 0, 0u32),
        9 => put(place, 0, found.map_or(-2i32, |(_, range)| range.device as i32)),
        10 => put(place, 0, u8::from(found.is_some_and(|(_, range)| matches!(range.kind, Kind::Device)))),
        11 => put(place, 0, whole.map_or(0, |(base, _)| base)),
        12 => put(place, 0, whole.map_or(0, |(_, bytes)| bytes)),
        14 => put(place, 0, found.map_or(0u64, |(_, range)| kinds(range))),
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

/// How a range's physical memory can be shared: a set of the driver's kinds.
fn kinds(range: &Range) -> u64 {
    match &range.kind {
        Kind::Mapped { physical, .. } => u64::from(physical.kinds.cast_unsigned()),
        _ => 0,
    }
}

/// Whether a range belongs to a context.
fn owner(range: &Range) -> bool {
    !matches!(range.kind, Kind::Mapped { .. })
}

pub(crate) fn pointer_set_attribute(value: usize, attribute: i32, address: u64) -> Answer {
    current()?;
    let known = state::lock(|state| state.range(address).is_some());
    if known && value != 0 && attribute == SYNC_MEMOPS { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn mem_handle_for_address_range(
    handle: usize,
    address: u64,
    bytes: usize,
    kind: i32,
    flags: u64,
) -> Answer {
    let device = current()?;
    check(device, &[(address, bytes)])?;
    if kind != DMA_BUF || flags != 0 || !address.is_multiple_of(4096) || !bytes.is_multiple_of(4096) {
        return Err(INVALID_VALUE);
    }
    let copy: OwnedFd = devices().all[device].arena.file().try_clone().map_err(|_| OPERATING_SYSTEM)?;
    put(handle, 0, copy.into_raw_fd());
    Ok(())
}

/// Whether a device can read and write all of these.
pub(crate) fn check(device: usize, ranges: &[(u64, usize)]) -> Answer {
    state::lock(|state| ranges.iter().try_for_each(|(address, bytes)| state.check(device, *address, *bytes)))
}

/// Of memory that is not pinned the driver takes so much aside.
const MOST_STAGED: usize = 64 << 10;
const SYNC_MEMOPS: i32 = 6;
const DMA_BUF: i32 = 1;
