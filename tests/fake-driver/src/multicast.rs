//! Multicast objects: what a kernel stores in one reaches the memory of every member, also of other processes. The object's own
//! file says who takes part and what is bound; nothing can be read or written where it is mapped.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ccl_kernels_emulator::Window;
use rustix::mm::{MapFlags, ProtFlags};

use crate::code::*;
use crate::ipc::Place;
use crate::memory::Kind;
use crate::state::{self, device, setting};
use crate::symbols::{In, Out};
use crate::virtual_memory::{self, GRANULARITY, Physical};

/// What this process keeps of an object.
#[derive(Default)]
pub(crate) struct Members {
    /// Memory that it has bound, by device.
    bound: HashMap<usize, Arc<Physical>>,
    /// Where it has mapped members' memory, by what the object's file says of them.
    copies: HashMap<[u64; WORDS], Copied>,
}

/// A member's memory, mapped here.
struct Copied {
    base: usize,
    bytes: usize,
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

impl Drop for Copied {
    fn drop(&mut self) {
        // SAFETY: mapped by `copy_of` with this length; kernels that knew it have ended.
        let _ = unsafe { rustix::mm::munmap(self.base as *mut _, self.bytes) };
    }
}

pub(crate) fn multicast_create(handle: Out<u64>, properties: In<Properties>) -> Answer {
    let properties = properties.value()?;
    if properties.devices == 0 || properties.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let object = Physical::new(properties.bytes, 0, properties.kinds as i32, Some(Members::default()))?;
    write(&object, WANTED, &[u64::from(properties.devices)])?;
    handle.set(virtual_memory::insert(object));
    Ok(())
}

pub(crate) fn multicast_add_device(handle: u64, ordinal: i32) -> Answer {
    device(ordinal)?;
    let object = virtual_memory::of(handle)?;
    let _members = members(&object)?;
    let [is_added, ..] = entry(&object, ordinal as usize)?;
    if ordinal as usize >= MOST_DEVICES || is_added != 0 || is_full(&object)? {
        return Err(INVALID_VALUE);
    }
    write(&object, place(ordinal as usize), &[1])
}

/// Waits, as the driver may, until all devices are added.
pub(crate) fn multicast_bind_mem(
    handle: u64,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> Answer {
    let (object, memory) = (virtual_memory::of(handle)?, virtual_memory::of(memory)?);
    let fits = offset + bytes <= object.bytes && memory_offset + bytes <= memory.bytes;
    let [is_added, is_bound, ..] = entry(&object, memory.device)?;
    if !fits || flags != 0 || is_added == 0 || is_bound != 0 {
        return Err(INVALID_VALUE);
    }
    let begin = Instant::now();
    while !is_full(&object)? {
        if begin.elapsed() > Duration::from_secs(10) {
            return Err(INVALID_VALUE);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let file = u64::from(std::process::id()) << 32 | memory.file.as_raw_fd() as u64;
    write(&object, place(memory.device), &[1, file, memory_offset as u64, offset as u64, bytes as u64])?;
    members(&object)?.bound.insert(memory.device, memory);
    Ok(())
}

pub(crate) fn multicast_unbind(handle: u64, ordinal: i32, offset: usize, bytes: usize) -> Answer {
    let object = virtual_memory::of(handle)?;
    let [is_added, file, _, bound_at, bound_bytes] = entry(&object, ordinal as usize)?;
    if file == 0 || (bound_at, bound_bytes) != (offset as u64, bytes as u64) {
        return Err(INVALID_VALUE);
    }
    write(&object, place(ordinal as usize), &[is_added, 0, 0, 0, 0])?;
    members(&object)?.bound.remove(&(ordinal as usize));
    Ok(())
}

pub(crate) fn multicast_granularity(bytes: Out<usize>, properties: In<Properties>, _option: i32) -> Answer {
    properties.value()?;
    bytes.set(GRANULARITY);
    Ok(())
}

/// Where objects are mapped in this process, with the memory of those members that have bound all of it.
pub(crate) fn windows() -> Vec<Window> {
    let mapped: Vec<_> = state::lock(|state| {
        let object = |(base, range): (&u64, &crate::memory::Range)| match &range.kind {
            Kind::Mapped { physical, devices } if physical.members.is_some() && !devices.is_empty() => {
                Some((*base as usize, range.bytes, Arc::clone(physical)))
            }
            _ => None,
        };
        state.ranges.iter().filter_map(object).collect()
    });
    let window = |(base, bytes, object): (usize, usize, Arc<Physical>)| {
        let deaf = setting("CCL_FAKE_DEAF_DEVICE", MOST_DEVICES);
        let copies = (0..MOST_DEVICES).filter(|device| *device != deaf);
        let copies = copies.filter_map(|device| copy_of(&object, device));
        Window { addresses: base..base + bytes, members: copies.collect() }
    };
    mapped.into_iter().map(window).collect()
}

/// Where a member's memory is here, if it has bound all that the object has.
fn copy_of(object: &Physical, device: usize) -> Option<usize> {
    let known = entry(object, device).ok()?;
    let [_, file, offset, bound_at, bytes] = known;
    if file == 0 || bound_at != 0 || bytes != object.bytes as u64 {
        return None;
    }
    let mut members = members(object).ok()?;
    if let Some(copied) = members.copies.get(&known) {
        return Some(copied.base);
    }
    let place = Place { process: (file >> 32) as u32, descriptor: file as i32, offset, bytes, extra: 0 };
    let (file, protection) = (place.open().ok()?, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address that the system chooses.
    let base = unsafe {
        let flags = MapFlags::SHARED;
        rustix::mm::mmap(std::ptr::null_mut(), object.bytes, protection, flags, &file, offset)
    };
    let base = base.ok()? as usize;
    members.copies.insert(known, Copied { base, bytes: object.bytes });
    Some(base)
}

fn is_full(object: &Physical) -> Answer<bool> {
    let mut wanted = [0; 8];
    rustix::io::pread(&object.file, &mut wanted, WANTED).map_err(|_| OPERATING_SYSTEM)?;
    let added = (0..MOST_DEVICES).filter(|device| entry(object, *device).is_ok_and(|[added, ..]| added != 0));
    Ok(added.count() as u64 >= u64::from_ne_bytes(wanted))
}

/// What the object's file says of a device: whether it is added; process and descriptor of what it has bound, or 0; where that
/// begins there, where in the object, and its length.
fn entry(object: &Physical, device: usize) -> Answer<[u64; WORDS]> {
    let mut bytes = [0; 8 * WORDS];
    rustix::io::pread(&object.file, &mut bytes, place(device)).map_err(|_| OPERATING_SYSTEM)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    Ok(words)
}

fn place(device: usize) -> u64 {
    (64 + device.min(MOST_DEVICES) * 8 * WORDS) as u64
}

fn write(object: &Physical, place: u64, words: &[u64]) -> Answer {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    rustix::io::pwrite(&object.file, &bytes, place).map(drop).map_err(|_| OPERATING_SYSTEM)
}

fn members(object: &Physical) -> Answer<MutexGuard<'_, Members>> {
    let members: &Mutex<Members> = object.members.as_ref().ok_or(INVALID_VALUE)?;
    Ok(members.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Where the file says for how many devices the object is.
const WANTED: u64 = 0;
const WORDS: usize = 5;
const MOST_DEVICES: usize = 64;
