//! Memory and events of other processes: a handle says the process, its descriptor, and where.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::code::*;
use crate::event::{self, Event};
use crate::memory::Kind;
use crate::state::{self, current, devices};
use crate::symbols::{Bytes64, Out};

/// What a handle's bytes say.
pub(crate) struct Place {
    pub(crate) process: u32,
    pub(crate) descriptor: i32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// What else it says, by kind.
    pub(crate) extra: u64,
}

impl Place {
    pub(crate) fn encoded(&self, magic: u64) -> [u8; 64] {
        let words = [
            magic,
            u64::from(self.process),
            u64::from(self.descriptor.cast_unsigned()),
            self.offset,
            self.bytes,
            self.extra,
            0,
            0,
        ];
        let mut encoded = [0; 64];
        for (bytes, word) in encoded.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        encoded
    }

    pub(crate) fn decoded(bytes: &[u8; 64], magic: u64) -> Answer<Self> {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        if words[0] != magic {
            return Err(INVALID_VALUE);
        }
        let (process, descriptor) = (words[1] as u32, words[2] as i32);
        Ok(Self { process, descriptor, offset: words[3], bytes: words[4], extra: words[5] })
    }

    /// The file, while its process has it.
    pub(crate) fn open(&self) -> Answer<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|_| MAP_FAILED)
    }
}

pub(crate) fn ipc_mem_handle(handle: Out<Bytes64>, address: u64) -> Answer {
    let place = state::lock(|state| {
        let (base, range) = state.range(address).ok_or(INVALID_VALUE)?;
        if !matches!(range.kind, Kind::Device) {
            return Err(INVALID_VALUE);
        }
        let (descriptor, offset) = devices().all[range.device].arena.place(base);
        let (process, bytes) = (std::process::id(), range.bytes as u64);
        Ok(Place { process, descriptor, offset, bytes, extra: range.device as u64 })
    })?;
    handle.set(Bytes64(place.encoded(MEMORY)));
    Ok(())
}

pub(crate) fn ipc_open_mem_handle(address: Out<u64>, handle: Bytes64, _flags: u32) -> Answer {
    current()?;
    let place = Place::decoded(&handle.0, MEMORY)?;
    if place.process == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    let (file, bytes) = (place.open()?, place.bytes as usize);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the system chooses.
    let mapped = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, place.offset)
    };
    let mapped = mapped.map_err(|_| MAP_FAILED)? as u64;
    let device = place.extra as usize % devices().all.len();
    state::lock(|state| state.insert(mapped, bytes, Kind::Ipc, device));
    address.set(mapped);
    Ok(())
}

pub(crate) fn ipc_close_mem_handle(address: u64) -> Answer {
    crate::device::context_synchronize().ok();
    let range =
        crate::host::remove(address as usize, |kind| matches!(kind, Kind::Ipc)).ok_or(INVALID_VALUE)?;
    // SAFETY: mapped by `ipc_open_mem_handle` with this length; the caller is done with it.
    unsafe { rustix::mm::munmap(address as *mut _, range.bytes) }.map_err(|_| OPERATING_SYSTEM)
}

pub(crate) fn ipc_event_handle(handle: Out<Bytes64>, event: usize) -> Answer {
    let descriptor = event::of(event)?.descriptor().ok_or(INVALID_VALUE)?;
    let place = Place { process: std::process::id(), descriptor, offset: 0, bytes: 0, extra: 0 };
    handle.set(Bytes64(place.encoded(EVENT)));
    Ok(())
}

pub(crate) fn ipc_open_event_handle(place: Out<usize>, handle: Bytes64) -> Answer {
    current()?;
    let from = Place::decoded(&handle.0, EVENT)?;
    if from.process == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    place.set(event::insert(Event::open(from.open()?)?));
    Ok(())
}

const MEMORY: u64 = 0x6363_6c20_6d65_6d31;
const EVENT: u64 = 0x6363_6c20_6576_7431;
