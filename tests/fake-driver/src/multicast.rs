//! Multicast objects. Behind one there is one memory of its own, and not that of every member.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::code::*;
use crate::state::device;
use crate::symbols::{In, Out};
use crate::virtual_memory::{self, GRANULARITY, Physical};

/// Who takes part in an object.
#[derive(Default)]
pub(crate) struct Members {
    wanted: usize,
    added: Vec<usize>,
    /// Device, offset, length and memory of what is bound.
    bound: Vec<(usize, usize, usize, Option<Arc<Physical>>)>,
}

/// The driver's `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    devices: u32,
    bytes: usize,
    kinds: u64,
    flags: u64,
}

pub(crate) fn multicast_create(handle: Out<u64>, properties: In<Properties>) -> Answer {
    let properties = properties.value()?;
    if properties.devices == 0 || properties.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let members = Members { wanted: properties.devices as usize, ..Members::default() };
    let object = Physical::new(properties.bytes, 0, properties.kinds as i32, Some(members))?;
    handle.set(virtual_memory::insert(object));
    Ok(())
}

pub(crate) fn multicast_add_device(handle: u64, ordinal: i32) -> Answer {
    device(ordinal)?;
    let object = virtual_memory::of(handle)?;
    let mut members = members(&object)?;
    let is_full = members.wanted > 0 && members.added.len() == members.wanted;
    if is_full || members.added.contains(&(ordinal as usize)) {
        return Err(INVALID_VALUE);
    }
    members.added.push(ordinal as usize);
    Ok(())
}

pub(crate) fn multicast_bind_mem(
    handle: u64,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> Answer {
    let (object, memory) = (virtual_memory::of(handle)?, virtual_memory::of(memory)?);
    let mut members = members(&object)?;
    let fits = offset + bytes <= object.bytes && memory_offset + bytes <= memory.bytes;
    if !fits || flags != 0 || !members.added.contains(&memory.device) {
        return Err(INVALID_VALUE);
    }
    members.bound.push((memory.device, offset, bytes, Some(memory)));
    Ok(())
}

pub(crate) fn multicast_unbind(handle: u64, ordinal: i32, offset: usize, bytes: usize) -> Answer {
    let object = virtual_memory::of(handle)?;
    let mut members = members(&object)?;
    let wanted = (ordinal as usize, offset, bytes);
    let place =
        members.bound.iter().position(|(device, offset, bytes, _)| (*device, *offset, *bytes) == wanted);
    members.bound.remove(place.ok_or(INVALID_VALUE)?);
    Ok(())
}

pub(crate) fn multicast_granularity(bytes: Out<usize>, properties: In<Properties>, _option: i32) -> Answer {
    properties.value()?;
    bytes.set(GRANULARITY);
    Ok(())
}

fn members(object: &Physical) -> Answer<MutexGuard<'_, Members>> {
    let members: &Mutex<Members> = object.members.as_ref().ok_or(INVALID_VALUE)?;
    Ok(members.lock().unwrap_or_else(PoisonError::into_inner))
}
