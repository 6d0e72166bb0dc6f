//! Pumps: what moves messages between a device's slots in pinned host memory and an edge of the fabric.
//!
//! To the kernel the pump is the other end of the edge; to the other rank it is this rank. Whoever drives the engine
//! turns it, so it never blocks.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ccl_cuda::PinnedMemory;
use ccl_kernels::layout::Direction;
use ccl_plan::Rank;

use super::engine::DeviceEngine;
use super::region::{BlockShape, HEAD_AT, SIZES_AT, TAIL_AT};
use crate::error::{Error, Result};
use crate::transport::{EdgeIndex, Fabric};

/// One edge between a device and the fabric.
pub(super) struct Pump {
    block: Block,
    edge: EdgeIndex,
    peer: Rank,
    direction: Direction,
    /// Messages moved so far.
    done: u64,
    /// Nothing more comes.
    ended: bool,
}

impl Pump {
    pub(super) fn new(block: Block, edge: EdgeIndex, peer: Rank, direction: Direction) -> Pump {
        Pump { block, edge, peer, direction, done: 0, ended: false }
    }

    /// Moves all messages that can be moved; whether there was one.
    ///
    /// # Errors
    ///
    /// Of the edge; a message that does not fit.
    pub(super) fn turn(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let before = self.done;
        match self.direction {
            _ if self.ended => {}
            Direction::Send => while self.send(fabric)? {},
            Direction::Receive => while self.receive(fabric)? {},
        }
        Ok(self.done != before)
    }

    /// Whether an error may only say that the peer is done: a pump fetches what no kernel may ask for.
    pub(super) fn may_be_over(&self) -> bool {
        self.direction == Direction::Receive
    }

    /// Fetches nothing more.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the device has put nothing there that is not on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.direction == Direction::Receive || self.block.tail().load(Ordering::Acquire) == self.done
    }

    fn send(&mut self, fabric: &mut Fabric) -> Result<bool> {
        // Acquire: pairs with the kernel's release of the tail, at system scope: the payload is there.
        if self.block.tail().load(Ordering::Acquire) == self.done {
            return Ok(false);
        }
        let slot = (self.done % self.block.shape.slots as u64) as usize;
        let size = self.block.size(slot).load(Ordering::Relaxed);
        let (bytes, tag) = (size as u32 as usize, (size >> 32) as u32);
        if bytes > self.block.shape.slot_bytes {
            return Err(Error::bug(format!("a kernel says that {bytes} bytes are in a slot")));
        }
        let Some(to) = fabric.sender(self.edge).acquire(bytes)? else { return Ok(false) };
        // SAFETY: the edge gave `bytes` bytes at `to`; the slot holds as many, and the kernel leaves it alone until
        // the head has passed it.
        unsafe { std::ptr::copy_nonoverlapping(self.block.slot(slot), to.as_ptr(), bytes) };
        fabric.sender(self.edge).post(bytes, tag)?;
        self.done += 1;
        // Release: pairs with the kernel's acquire of the head: the slot has been read.
        self.block.head().store(self.done, Ordering::Release);
        Ok(true)
    }

    fn receive(&mut self, fabric: &mut Fabric) -> Result<bool> {
        // Acquire: pairs with the kernel's release of the head: it has read the slot.
        if self.done - self.block.head().load(Ordering::Acquire) == self.block.shape.slots as u64 {
            return Ok(false);
        }
        let Some(found) = fabric.receiver(self.edge).peek()? else { return Ok(false) };
        if found.lent || found.bytes > self.block.shape.slot_bytes {
            let (peer, most) = (self.peer, self.block.shape.slot_bytes);
            let cause = format!("rank {peer} sent {} bytes to a device's slot of {most}", found.bytes);
            return Err(Error::bug(cause));
        }
        let slot = (self.done % self.block.shape.slots as u64) as usize;
        // SAFETY: the payload fits the slot, which the kernel leaves alone until the tail has passed it.
        unsafe { std::ptr::copy_nonoverlapping(found.data.as_ptr(), self.block.slot(slot), found.bytes) };
        let size = found.bytes as u64 | u64::from(found.tag) << 32;
        self.block.size(slot).store(size, Ordering::Relaxed);
        self.done += 1;
        // Release: pairs with the kernel's acquire of the tail: payload and size are there.
        self.block.tail().store(self.done, Ordering::Release);
        fabric.receiver(self.edge).release()?;
        Ok(true)
    }
}

impl DeviceEngine {
    /// Turns all pumps; whether something moved. One whose peer is done ends.
    ///
    /// # Errors
    ///
    /// Of the edges.
    pub(super) fn turn_pumps(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let mut moved = false;
        for pump in &mut self.edges.pumps {
            match pump.turn(fabric) {
                Ok(turned) => moved |= turned,
                Err(error) if pump.may_be_over() => {
                    pump.end();
                    self.ended.get_or_insert((error, Instant::now()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Fails if nothing goes on, for a while, and some pump has ended.
    ///
    /// # Errors
    ///
    /// Why the pump has ended.
    pub(super) fn wait_for_what_ended(&mut self, goes_on: bool) -> Result<()> {
        match &mut self.ended {
            Some((_, since)) if goes_on => *since = Instant::now(),
            Some((error, since)) if since.elapsed() >= GRACE => return Err(error.clone()),
            _ => {}
        }
        Ok(())
    }
}

/// How long nothing moves before a call is taken to wait for a peer that has ended its edge.
const GRACE: Duration = Duration::from_secs(1);

/// A block in pinned host memory.
pub(super) struct Block {
    memory: PinnedMemory,
    shape: BlockShape,
}

impl Block {
    /// `memory` is at least as long as the shape says; it is cleared.
    pub(super) fn new(memory: PinnedMemory, shape: BlockShape) -> Result<Block> {
        if memory.bytes() < shape.bytes() {
            return Err(Error::bug(format!("a block of {} bytes in {}", shape.bytes(), memory.bytes())));
        }
        // SAFETY: the memory has that many bytes, and no kernel knows of it yet.
        unsafe { memory.as_ptr().write_bytes(0, shape.bytes()) };
        Ok(Block { memory, shape })
    }

    /// Where the device finds it.
    pub(super) fn device_address(&self) -> u64 {
        self.memory.device_address()
    }

    fn tail(&self) -> &AtomicU64 {
        self.word(TAIL_AT)
    }

    fn head(&self) -> &AtomicU64 {
        self.word(HEAD_AT)
    }

    fn size(&self, slot: usize) -> &AtomicU64 {
        self.word(SIZES_AT + 8 * slot)
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.shape.slots_at() + slot * self.shape.stride_bytes())
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let word = NonNull::new(self.memory.as_ptr().wrapping_add(offset).cast::<u64>());
        // SAFETY: the offsets of a block's words are multiples of 8 within it, pinned memory starts on a page, lives as
        // long as the block, and everybody uses these words as atomics.
        unsafe { AtomicU64::from_ptr(word.unwrap_or(NonNull::dangling()).as_ptr()) }
    }
}
