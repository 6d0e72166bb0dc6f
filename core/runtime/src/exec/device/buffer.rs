//! Memory by address: of a device or of the host.

use std::marker::PhantomData;
use std::sync::Arc;

use ccl_cuda::{DeviceMemory, Stream};

use super::{Opened, failed};
use crate::config::Config;
use crate::element::{Element, bytes_of, bytes_of_mut};
use crate::error::{Error, Result};

/// Device memory of our own, for programs that have no CUDA library of their own. Freed when dropped.
#[derive(Debug)]
pub struct DeviceBuffer {
    memory: Arc<DeviceMemory>,
    stream: Arc<Stream>,
    bytes: usize,
}

impl DeviceBuffer {
    /// `bytes` of zeros on device `device`.
    ///
    /// # Errors
    ///
    /// There is no such device, or too little memory.
    pub fn new(config: &Config, device: u32, bytes: usize) -> Result<DeviceBuffer> {
        let opened = Opened::numbered(config, device)?;
        let stream = opened.copies()?;
        let memory = opened.memory(bytes)?;
        memory.fill(0, &stream).and_then(|()| stream.synchronize()).map_err(failed)?;
        Ok(DeviceBuffer { memory: Arc::new(memory), stream, bytes })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it was asked for with no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it is, for the driver and for kernels.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The memory, for whoever lends it.
    pub(super) fn memory(&self) -> Arc<DeviceMemory> {
        Arc::clone(&self.memory)
    }

    /// Copies `values` to its start. Blocks.
    ///
    /// # Errors
    ///
    /// The buffer is shorter; the driver's.
    pub fn write<T: Element>(&mut self, values: &[T]) -> Result<()> {
        self.memory.write(0, bytes_of(values), &self.stream).map_err(failed)
    }

    /// Copies its start to `values`. Blocks.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::write`].
    pub fn read<T: Element>(&self, values: &mut [T]) -> Result<()> {
        self.memory.read(0, bytes_of_mut(values), &self.stream).map_err(failed)
    }
}

/// Where a call's data is, by address: of the communicator's device, or of pinned host memory.
///
/// For an in-place call both addresses are as NCCL has them: the vector itself; for all-gather the receive buffer and
/// this rank's block in it, and so on.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a> {
    pub(crate) send: *const u8,
    pub(crate) recv: *mut u8,
    /// Bytes of either, if they are device buffers of our own.
    pub(crate) lengths: Option<(usize, usize)>,
    borrowed: PhantomData<&'a mut DeviceBuffer>,
}

impl<'a> Addresses<'a> {
    /// Buffers that do not overlap.
    pub fn of(send: &'a DeviceBuffer, recv: &'a mut DeviceBuffer) -> Addresses<'a> {
        Addresses {
            send: send.address() as *const u8,
            recv: recv.address() as *mut u8,
            lengths: Some((send.bytes, recv.bytes)),
            borrowed: PhantomData,
        }
    }

    /// One buffer for both: the vector of an all-reduce, reduce or broadcast, or all blocks of an all-to-all.
    pub fn in_place(buffer: &'a mut DeviceBuffer) -> Addresses<'a> {
        let bytes = buffer.bytes;
        Addresses {
            lengths: Some((bytes, bytes)),
            ..Addresses::at(buffer.address() as *const u8, buffer.address() as *mut u8)
        }
    }

    /// Any addresses. Either may be null where the call uses no such buffer on this rank.
    ///
    /// # Safety
    ///
    /// Both must be valid for what the call reads and writes until it is complete, and nobody else may write the one or
    /// touch the other meanwhile.
    pub unsafe fn new(send: *const u8, recv: *mut u8) -> Addresses<'a> {
        Addresses::at(send, recv)
    }

    fn at(send: *const u8, recv: *mut u8) -> Addresses<'a> {
        Addresses { send, recv, lengths: None, borrowed: PhantomData }
    }

    /// Whether they are device buffers of our own.
    pub(crate) fn is_on_device(&self) -> bool {
        self.lengths.is_some()
    }

    /// Refuses buffers that are known to be shorter than a call needs.
    pub(crate) fn check(&self, send_bytes: usize, recv_bytes: usize) -> Result<()> {
        match self.lengths {
            Some((send, recv)) if send < send_bytes || recv < recv_bytes => Err(Error::usage(
                format!("expected buffers of {send_bytes} and {recv_bytes} bytes, found {send} and {recv}"),
                "check the buffers' lengths against the count argument",
            )),
            _ => Ok(()),
        }
    }
}
