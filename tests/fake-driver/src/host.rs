//! Host memory that devices reach.

use rustix::mm::{MapFlags, ProtFlags};

use crate::capture::breaks_others;
use crate::code::*;
use crate::memory::{Kind, Range};
use crate::state::{self, current};
use crate::symbols::Out;

pub(crate) fn mem_host_alloc(place: Out<usize>, bytes: usize, _flags: u32) -> Answer {
    state::make();
    breaks_others()?;
    let device = current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let flags = MapFlags::SHARED;
    // SAFETY: a new mapping at an address that the system chooses.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    let address = mapped.map_err(|_| OUT_OF_MEMORY)? as usize;
    state::lock(|state| state.insert(address as u64, bytes, Kind::Host, device));
    place.set(address);
    Ok(())
}

pub(crate) fn mem_free_host(address: usize) -> Answer {
    breaks_others()?;
    crate::device::context_synchronize().ok();
    let range = remove(address, |kind| matches!(kind, Kind::Host)).ok_or(INVALID_VALUE)?;
    // SAFETY: mapped by `mem_host_alloc` with this length; the caller is done with it.
    unsafe { rustix::mm::munmap(address as *mut _, range.bytes) }.map_err(|_| OPERATING_SYSTEM)
}

pub(crate) fn mem_host_register(address: usize, bytes: usize, _flags: u32) -> Answer {
    breaks_others()?;
    let device = current()?;
    if address == 0 || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    state::lock(|state| {
        let overlaps = state.ranges.range(address as u64..(address + bytes) as u64).next().is_some();
        if overlaps || state.range(address as u64).is_some() {
            return Err(ALREADY_REGISTERED);
        }
        state.insert(address as u64, bytes, Kind::Registered, device);
        Ok(())
    })
}

pub(crate) fn mem_host_unregister(address: usize) -> Answer {
    breaks_others()?;
    crate::device::context_synchronize().ok();
    remove(address, |kind| matches!(kind, Kind::Registered)).map(drop).ok_or(NOT_REGISTERED)
}

pub(crate) fn mem_host_device_pointer(place: Out<u64>, host: usize, _flags: u32) -> Answer {
    current()?;
    let is_host = |range: &Range| matches!(range.kind, Kind::Host | Kind::Registered);
    let known = state::lock(|state| state.range(host as u64).is_some_and(|(_, range)| is_host(range)));
    if !known {
        return Err(INVALID_VALUE);
    }
    place.set(host as u64);
    Ok(())
}

/// Forgets the range that begins at an address, if it is of the right kind.
pub(crate) fn remove(address: usize, is_right: impl Fn(&Kind) -> bool) -> Option<Range> {
    state::lock(|state| {
        let right = state.ranges.get(&(address as u64)).is_some_and(|range| is_right(&range.kind));
        if right { state.ranges.remove(&(address as u64)) } else { None }
    })
}
