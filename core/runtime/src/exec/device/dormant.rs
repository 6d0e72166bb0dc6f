//! Ranks that have given their device memory back for a while.
//!
//! What the caller may hold on to stays: the device, the stream of calls that wait, the flag that ends kernels, what was
//! registered. Loaded kernels stay as well; their code is the driver's to place.

use std::sync::Arc;

use ccl_cuda::{DeviceMemory, Stream};

use super::engine::DeviceEngine;
use super::kernels::Kernels;
use super::lent::Lending;
use super::signals::Signals;
use super::windows::Windows;
use super::{Opened, failed};
use crate::error::Result;

/// A rank's device, and what outlives an engine that gave its memory back.
pub(crate) struct Dormant {
    pub(super) opened: Arc<Opened>,
    /// Nothing before the first engine.
    pub(super) kept: Option<Kept>,
}

/// What one engine hands to the next.
pub(super) struct Kept {
    pub(super) stream: Arc<Stream>,
    pub(super) signals: Arc<Signals>,
    pub(super) kernels: Kernels,
    pub(super) lending: Lending,
    pub(super) windows: Windows,
}

impl Dormant {
    pub(super) fn new(opened: Opened) -> Dormant {
        Dormant { opened: Arc::new(opened), kept: None }
    }

    /// The rank's device.
    pub(crate) fn ordinal(&self) -> u32 {
        self.opened.context.device().ordinal() as u32
    }
}

impl DeviceEngine {
    /// Device memory that the communicator has taken for this rank, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let programs = self.programs.values().map(|program| &program.memory);
        let lists = self.comms.iter().chain([&self.barriers]).chain(&self.scratch).chain(&self.aside);
        let single = lists.chain(programs).chain(self.edges.memory()).chain(self.staging.memory());
        let one_shot = self.one_shot.iter().flat_map(|one_shot| one_shot.memory());
        let two_shot = self.two_shot.iter().flat_map(|two_shot| two_shot.memory());
        let bytes: usize = single.chain(one_shot).chain(two_shot).map(DeviceMemory::bytes).sum();
        let switch = self.switch.as_ref().map_or(0, |switch| switch.bytes());
        (bytes + switch + self.peers.own.bytes()) as u64
    }

    /// Whether a graph may run a call of this communicator, with addresses of its memory.
    pub(crate) fn is_in_graphs(&self) -> bool {
        self.captured.is_any()
    }

    /// Lets go of other ranks' memory. No call is outstanding on any rank.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(crate) fn leave_peers(&mut self) -> Result<()> {
        for stream in self.streams.values().chain([&self.own_stream]) {
            stream.synchronize().map_err(failed)?;
        }
        self.peers.links.clear();
        self.windows.leases.sweep();
        Ok(())
    }

    /// Gives all memory back, once no rank has a way to it any more.
    pub(crate) fn sleep(mut self: Box<Self>) -> Dormant {
        // Other kernels than ours may run meanwhile, and later ones of ours: nothing is to end them.
        self.is_put_down = true;
        let kept = Kept {
            stream: Arc::clone(&self.own_stream),
            signals: Arc::clone(&self.signals),
            kernels: std::mem::replace(&mut self.kernels, Kernels::new()),
            lending: std::mem::take(&mut self.lending),
            windows: std::mem::take(&mut self.windows),
        };
        Dormant { opened: Arc::clone(&self.opened), kept: Some(kept) }
    }
}
