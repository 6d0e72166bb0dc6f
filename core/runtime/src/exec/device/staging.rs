//! Host memory of calls on its way to the device and back, and tables of blocks.

use ccl_cuda::{DeviceMemory, HostCaching, PinnedMemory, Stream};

use super::engine::{Call, Staged};
use super::{Opened, failed};
use crate::error::Result;

/// Memory for copies, used again and never given back before the communicator is: freeing waits for the device.
#[derive(Default)]
pub(super) struct Staging {
    spare: Vec<DeviceMemory>,
    tables: Vec<PinnedMemory>,
}

/// The device's copies of one call's buffers.
#[derive(Default)]
pub(super) struct Copies {
    send: Option<DeviceMemory>,
    recv: Option<DeviceMemory>,
}

impl Staging {
    /// Copies a call's buffers to the device when `stream` comes to it; where they are there. What the call does not
    /// write comes back as it was, so the receive buffer is copied as well.
    pub(super) fn bring(
        &mut self,
        staged: &Staged,
        copies: &mut Copies,
        opened: &Opened,
        stream: &Stream,
    ) -> Result<(u64, u64)> {
        let recv = self.copy_of((staged.recv.0.cast_const(), staged.recv.1), opened, stream)?;
        let at = recv.address();
        copies.recv = Some(recv);
        if let Some((send_offset, recv_offset)) = staged.in_place {
            return Ok((at + send_offset as u64, at + recv_offset as u64));
        }
        let send = copies.send.insert(self.copy_of(staged.send, opened, stream)?);
        Ok((send.address(), at))
    }

    /// Copies the result back and keeps the memory. Blocks for the copy.
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
        let memory = match self.tables.pop() {
            Some(memory) => memory,
            None => PinnedMemory::new(&opened.context, bytes, HostCaching::Cached).map_err(failed)?,
        };
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

    /// No kernel uses these tables any more.
    pub(super) fn keep_tables(&mut self, tables: Option<PinnedMemory>) {
        self.tables.extend(tables);
    }

    fn copy_of(
        &mut self,
        (host, bytes): (*const u8, usize),
        opened: &Opened,
        stream: &Stream,
    ) -> Result<DeviceMemory> {
        let fits = self.spare.iter().position(|memory| memory.bytes() >= bytes);
        let memory = match fits {
            Some(index) => self.spare.swap_remove(index),
            None => opened.memory(bytes.next_power_of_two().max(256))?,
        };
        if bytes > 0 {
            // SAFETY: the request's buffer has so many bytes and is borrowed until the call is complete; the copy is as
            // long and nobody else's.
            unsafe { ccl_cuda::copy(stream, memory.address(), host.addr() as u64, bytes) }.map_err(failed)?;
        }
        Ok(memory)
    }
}
