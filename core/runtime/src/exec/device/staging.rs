//! Host memory of calls on its way to the device and back, and tables of blocks.

use ccl_cuda::{DeviceMemory, HostCaching, PinnedMemory, Stream};

use super::engine::{Call, Staged};
use super::{Opened, failed};
use crate::error::Result;

/// Memory for copies, used again and never given back before the communicator is: freeing waits for the device.
#[derive(Default)]
pub(super) struct Staging {
    spare: Vec<DeviceMemory>,
    pinned: Vec<PinnedMemory>,
}

/// The device's copies of one call's buffers.
#[derive(Default)]
pub(super) struct Copies {
    send: Option<DeviceMemory>,
    recv: Option<DeviceMemory>,
}

impl Staging {
    /// Memory for a call's buffers. May block for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn allot(&mut self, staged: &Staged, opened: &Opened) -> Result<Copies> {
        let recv = Some(self.spare(staged.recv.1, opened)?);
        if staged.in_place.is_some() {
            return Ok(Copies { send: None, recv });
        }
        match self.spare(staged.send.1, opened) {
            Ok(send) => Ok(Copies { send: Some(send), recv }),
            Err(error) => {
                self.keep(Copies { send: None, recv });
                Err(error)
            }
        }
    }

    /// Keeps the memory of a call that is not made. Freeing it would wait for kernels that may wait for this rank.
    pub(super) fn keep(&mut self, copies: Copies) {
        self.spare.extend(copies.recv.into_iter().chain(copies.send));
    }

    /// Copies a call's buffers to the device, through a stream without kernels that wait for anybody: of memory that is not
    /// pinned it may wait for all that is there. Where they are on the device. What the call does not
    /// write comes back as it was, so the receive buffer is copied as well.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn bring(&self, staged: &Staged, copies: &Copies, stream: &Stream) -> Result<(u64, u64)> {
        let recv = copy_of((staged.recv.0.cast_const(), staged.recv.1), copies.recv.as_ref(), stream)?;
        if let Some((send_offset, recv_offset)) = staged.in_place {
            return Ok((recv + send_offset as u64, recv + recv_offset as u64));
        }
        Ok((copy_of(staged.send, copies.send.as_ref(), stream)?, recv))
    }

    /// Copies the result back and keeps the memory, through a stream as above; the call is done. Blocks for the copy.
    pub(super) fn take_back(&mut self, staged: &Staged, copies: &mut Copies, stream: &Stream) -> Result<()> {
        if let Some(recv) = copies.recv.take() {
            // SAFETY: the request's buffer has so many bytes and is borrowed until the call is complete.
            let host = unsafe { std::slice::from_raw_parts_mut(staged.recv.0, staged.recv.1) };
            if !host.is_empty() {
                recv.read(0, host, stream).map_err(failed)?;
            }
            self.spare.push(recv);
        }
        self.spare.extend(copies.send.take());
        Ok(())
    }

    /// The tables of a call with uneven blocks, where the device reads them.
    pub(super) fn tables(&mut self, call: &Call, n: u32, opened: &Opened) -> Result<Option<PinnedMemory>> {
        if !call.bound.collective.uneven() {
            return Ok(None);
        }
        let bytes = 4 * 8 * n as usize;
        let memory = self.pinned(bytes, opened)?;
        let tables = call.tables.borrow();
        let parts = [tables.send_counts, tables.send_offsets, tables.recv_counts, tables.recv_offsets];
        for (part, values) in parts.into_iter().enumerate() {
            for rank in 0..n as usize {
                let value = values.get(rank).copied().unwrap_or(0) as u64;
                let place = memory.as_ptr().cast::<u64>().wrapping_add(part * n as usize + rank);
                // SAFETY: the memory has four tables of n words, and no kernel uses it now.
                unsafe { place.write(value) };
            }
        }
        Ok(Some(memory))
    }

    /// All device memory that no call has.
    pub(super) fn memory(&self) -> impl Iterator<Item = &DeviceMemory> {
        self.spare.iter()
    }

    /// Host memory that kernels read. May block for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn pinned(&mut self, bytes: usize, opened: &Opened) -> Result<PinnedMemory> {
        match self.pinned.iter().position(|memory| memory.bytes() >= bytes) {
            Some(index) => Ok(self.pinned.swap_remove(index)),
            None => PinnedMemory::new(&opened.context, bytes, HostCaching::Cached).map_err(failed),
        }
    }

    /// No kernel reads this memory any more.
    pub(super) fn keep_pinned(&mut self, memory: impl IntoIterator<Item = PinnedMemory>) {
        self.pinned.extend(memory);
    }

    fn spare(&mut self, bytes: usize, opened: &Opened) -> Result<DeviceMemory> {
        match self.spare.iter().position(|memory| memory.bytes() >= bytes) {
            Some(index) => Ok(self.spare.swap_remove(index)),
            None => opened.memory(bytes.next_power_of_two().max(256)),
        }
    }
}

/// Copies host memory to a call's copy of it; where that is.
fn copy_of((host, bytes): (*const u8, usize), memory: Option<&DeviceMemory>, stream: &Stream) -> Result<u64> {
    let address = memory.map_or(0, DeviceMemory::address);
    if bytes > 0 {
        // SAFETY: the request's buffer has so many bytes and is borrowed until the call is complete; the copy is as
        // long and nobody else's.
        unsafe { ccl_cuda::copy(stream, address, host.addr() as u64, bytes) }.map_err(failed)?;
    }
    Ok(address)
}
