//! Physical memory, reserved addresses, and what joins them.

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::arena::memory_file;
use crate::code::*;
use crate::ipc::Place;
use crate::memory::{Kind, Range};
use crate::state::{self, device, fresh};
use crate::symbols::{In, Out, item, put};

/// Memory without an address, or a multicast object.
pub(crate) struct Physical {
    pub(crate) file: OwnedFd,
    pub(crate) bytes: usize,
    pub(crate) device: usize,
    /// How it may be shared: a set of the driver's kinds.
    pub(crate) kinds: i32,
    /// Of a multicast object.
    pub(crate) members: Option<Mutex<crate::multicast::Members>>,
}

/// The driver's `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: i32,
    shared_by: i32,
    location_kind: i32,
    location: i32,
    windows: usize,
    flags: u64,
}

/// The driver's `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    location_kind: i32,
    location: i32,
    flags: i32,
}

impl Physical {
    pub(crate) fn new(
        bytes: usize,
        device: usize,
        kinds: i32,
        members: Option<crate::multicast::Members>,
    ) -> Answer<Arc<Self>> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        // The name tells processes that import it what it is.
        let is_multicast = u8::from(members.is_some());
        let file = memory_file(&format!("ccl-fake-physical-{device}-{kinds}-{is_multicast}"), bytes)?;
        Ok(Arc::new(Self { file, bytes, device, kinds, members: members.map(Mutex::new) }))
    }

    /// What another process, or this one, has shared.
    fn import(file: OwnedFd) -> Answer<Arc<Self>> {
        let link = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
        let name = link.map_err(|_| INVALID_VALUE)?.to_string_lossy().into_owned();
        let name = name.strip_prefix("/memfd:ccl-fake-physical-").ok_or(INVALID_VALUE)?;
        let name = name.split(' ').next().unwrap_or_default();
        let mut parts = name.split('-').filter_map(|part| part.parse::<i32>().ok());
        let (Some(device), Some(kinds), Some(is_multicast)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(INVALID_VALUE);
        };
        let bytes = rustix::fs::fstat(&file).map_err(|_| OPERATING_SYSTEM)?.st_size as usize;
        let members = (is_multicast == 1).then(Mutex::default);
        Ok(Arc::new(Self { file, bytes, device: device as usize, kinds, members }))
    }
}

/// A first reference.
pub(crate) fn insert(physical: Arc<Physical>) -> u64 {
    let handle = fresh() as u64;
    state::lock(|state| state.physical.insert(handle, (physical, 1)));
    handle
}

pub(crate) fn of(handle: u64) -> Answer<Arc<Physical>> {
    let found = state::lock(|state| state.physical.get(&handle).map(|(physical, _)| physical.clone()));
    found.ok_or(INVALID_VALUE)
}

pub(crate) fn mem_allocation_granularity(
    bytes: Out<usize>,
    properties: In<Properties>,
    _option: i32,
) -> Answer {
    device(properties.value()?.location)?;
    bytes.set(GRANULARITY);
    Ok(())
}

pub(crate) fn mem_create(handle: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) -> Answer {
    let properties = properties.value()?;
    device(properties.location)?;
    let is_known = properties.kind == PINNED && properties.location_kind == DEVICE && properties.windows == 0;
    if flags != 0 || !is_known {
        return Err(INVALID_VALUE);
    }
    let _ = properties.flags;
    handle.set(insert(Physical::new(bytes, properties.location as usize, properties.shared_by, None)?));
    Ok(())
}

pub(crate) fn mem_release(handle: u64) -> Answer {
    let gone = state::lock(|state| {
        let (_, references) = state.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        *references -= 1;
        Ok::<_, i32>(if *references == 0 { state.physical.remove(&handle) } else { None })
    })?;
    drop(gone);
    Ok(())
}

pub(crate) fn mem_address_reserve(
    address: Out<u64>,
    bytes: usize,
    _alignment: usize,
    _wish: u64,
    flags: u64,
) -> Answer {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the system chooses.
    let reserved =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
    let reserved = reserved.map_err(|_| OUT_OF_MEMORY)? as u64;
    state::lock(|state| state.reservations.insert(reserved, bytes));
    address.set(reserved);
    Ok(())
}

pub(crate) fn mem_address_free(address: u64, bytes: usize) -> Answer {
    state::lock(|state| {
        if state.is_mapped(address, bytes) || state.reservations.get(&address) != Some(&bytes) {
            return Err(INVALID_VALUE);
        }
        state.reservations.remove(&address);
        Ok(())
    })?;
    // SAFETY: reserved with this length, and nothing is mapped there.
    unsafe { rustix::mm::munmap(address as *mut _, bytes) }.map_err(|_| OPERATING_SYSTEM)
}

pub(crate) fn mem_map(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Answer {
    let physical = of(handle)?;
    state::lock(|state| {
        let before = state.reservations.range(..=address).next_back();
        let fits = before.is_some_and(|(base, length)| {
            (address - base).is_multiple_of(GRANULARITY as u64)
                && address - base + bytes as u64 <= *length as u64
        });
        let is_whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY) && bytes <= physical.bytes;
        // Drivers take no other offset yet.
        if !fits || !is_whole || (flags, offset) != (0, 0) || state.is_mapped(address, bytes) {
            return Err(INVALID_VALUE);
        }
        let place = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is reserved, so nothing of anybody's is mapped there.
        let mapped = unsafe {
            let start = address as *mut std::ffi::c_void;
            rustix::mm::mmap(start, bytes, ProtFlags::empty(), place, &physical.file, offset as u64)
        };
        mapped.map_err(|_| MAP_FAILED)?;
        let device = physical.device;
        state.insert(address, bytes, Kind::Mapped { physical, devices: Vec::new() }, device);
        Ok(())
    })
}

pub(crate) fn mem_unmap(address: u64, bytes: usize) -> Answer {
    state::lock(|state| {
        let Some(Range { kind: Kind::Mapped { .. }, bytes: length, .. }) = state.ranges.get(&address) else {
            return Err(INVALID_VALUE);
        };
        if *length != bytes {
            return Err(INVALID_VALUE);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range was mapped by `mem_map`; it is reserved again, for nobody's use.
        let reserved =
            unsafe { rustix::mm::mmap_anonymous(address as *mut _, bytes, ProtFlags::empty(), flags) };
        reserved.map_err(|_| OPERATING_SYSTEM)?;
        state.ranges.remove(&address);
        Ok(())
    })
}

/// Of one mapping, or of several that lie one behind the other.
pub(crate) fn mem_set_access(address: u64, bytes: usize, access: usize, count: usize) -> Answer {
    let mut given = Vec::new();
    for index in 0..count {
        let access: Access = item(access, index);
        device(access.location)?;
        if access.location_kind != DEVICE || access.flags != READ_WRITE {
            return Err(INVALID_VALUE);
        }
        given.push(access.location as usize);
    }
    state::lock(|state| {
        let (mut at, end) = (address, address + bytes as u64);
        while at < end {
            match state.ranges.get(&at) {
                Some(Range { kind: Kind::Mapped { .. }, bytes, .. }) => at += *bytes as u64,
                _ => return Err(INVALID_VALUE),
            }
        }
        if at != end || given.is_empty() {
            return Err(INVALID_VALUE);
        }
        state.ranges.range_mut(address..end).try_for_each(|(base, range)| give(*base, range, &given))
    })
}

/// Lets devices use a mapping.
fn give(base: u64, range: &mut Range, given: &[usize]) -> Answer {
    let Kind::Mapped { physical, devices } = &mut range.kind else { return Err(INVALID_VALUE) };
    devices.extend(given);
    if physical.members.is_some() {
        // Kernels store there in a way of their own.
        return Ok(());
    }
    let flags = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the range was mapped by `mem_map`.
    unsafe { rustix::mm::mprotect(base as *mut _, range.bytes, flags) }.map_err(|_| OPERATING_SYSTEM)
}

pub(crate) fn mem_retain_allocation_handle(handle: Out<u64>, address: usize) -> Answer {
    let found = state::lock(|state| {
        let Some((_, Range { kind: Kind::Mapped { physical, .. }, .. })) = state.range(address as u64) else {
            return Err(INVALID_VALUE);
        };
        let wanted = physical.clone();
        let known = state.physical.iter_mut().find(|(_, (physical, _))| Arc::ptr_eq(physical, &wanted));
        if let Some((handle, (_, references))) = known {
            *references += 1;
            return Ok((*handle, None));
        }
        Ok((0, Some(wanted)))
    })?;
    handle.set(match found {
        (known, None) => known,
        (_, Some(physical)) => insert(physical),
    });
    Ok(())
}

pub(crate) fn mem_export_to_shareable_handle(shared: usize, handle: u64, kind: i32, flags: u64) -> Answer {
    let physical = of(handle)?;
    if flags != 0 || physical.kinds & kind == 0 {
        return Err(INVALID_VALUE);
    }
    if kind == FABRIC {
        let (process, descriptor) = (std::process::id(), physical.file.as_raw_fd());
        let place = Place { process, descriptor, offset: 0, bytes: physical.bytes as u64, extra: 0 };
        put(shared, 0, place.encoded(FABRIC_MAGIC));
    } else {
        let copy = physical.file.try_clone().map_err(|_| OPERATING_SYSTEM)?;
        put(shared, 0, copy.into_raw_fd());
    }
    Ok(())
}

pub(crate) fn mem_import_from_shareable_handle(handle: Out<u64>, shared: usize, kind: i32) -> Answer {
    let file = match kind {
        FABRIC => Place::decoded(&item(shared, 0), FABRIC_MAGIC)?.open()?,
        DESCRIPTOR if i32::try_from(shared).is_ok() => {
            // SAFETY: the caller keeps the descriptor open during the call.
            let shared = unsafe { BorrowedFd::borrow_raw(shared as i32) };
            shared.try_clone_to_owned().map_err(|_| INVALID_VALUE)?
        }
        _ => return Err(INVALID_VALUE),
    };
    handle.set(insert(Physical::import(file)?));
    Ok(())
}

pub(crate) const GRANULARITY: usize = 2 << 20;
const PINNED: i32 = 1;
const DEVICE: i32 = 1;
const READ_WRITE: i32 = 3;
const DESCRIPTOR: i32 = 1;
const FABRIC: i32 = 8;
const FABRIC_MAGIC: u64 = 0x6363_6c20_6661_6231;
