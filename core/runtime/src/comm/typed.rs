//! Blocking calls on typed slices. Each is [`Communicator::run`] on the [`Request`] of its name.

use ccl_plan::Rank;

use super::Communicator;
use crate::element::{Element, Reduce};
use crate::error::Result;
use crate::request::{Blocks, Request};

/// Every call blocks until this rank's buffers may be reused, and fails as [`Communicator::run`].
impl Communicator {
    /// Every rank gets the reduction of all `send` vectors in `recv` (same length).
    pub fn all_reduce<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduce: impl Into<Reduce>,
    ) -> Result<()> {
        self.run(Request::all_reduce(send, recv, reduce))
    }

    /// All-reduce in place.
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], reduce: impl Into<Reduce>) -> Result<()> {
        self.run(Request::all_reduce_in_place(buffer, reduce))
    }

    /// The root gets the reduction of all `send` vectors in `recv`, which is empty elsewhere.
    pub fn reduce<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduce: impl Into<Reduce>,
        root: Rank,
    ) -> Result<()> {
        self.run(Request::reduce(send, recv, reduce, root))
    }

    /// Every rank gets the root's `buffer`.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        self.run(Request::broadcast(buffer, root))
    }

    /// Every rank gets every `send`, in rank order; `recv` is n times as long.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.run(Request::all_gather(send, recv))
    }

    /// Rank r gets the reduction of everybody's block r; `send` is n times as long as `recv`.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduce: impl Into<Reduce>,
    ) -> Result<()> {
        self.run(Request::reduce_scatter(send, recv, reduce))
    }

    /// Rank r gets everybody's block r; both buffers hold n blocks.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let count = send.len() / self.size() as usize;
        self.run(Request::all_to_all(send, recv, count))
    }

    /// The root gets every `send`, in rank order, in `recv`, which is empty elsewhere.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.run(Request::gather(send, recv, root))
    }

    /// Every rank gets its block of the root's `send`, which is empty elsewhere.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.run(Request::scatter(send, recv, root))
    }

    /// All-gather of blocks of different lengths.
    pub fn all_gather_v<T: Element>(&self, send: &[T], recv: &mut [T], blocks: Blocks<'_>) -> Result<()> {
        self.run(Request::all_gather_v(send, recv, blocks))
    }

    /// Reduce-scatter of blocks of different lengths.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduce: impl Into<Reduce>,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        self.run(Request::reduce_scatter_v(send, recv, reduce, blocks))
    }

    /// All-to-all of blocks of different lengths.
    pub fn all_to_all_v<T: Element>(&self, send: &[T], recv: &mut [T], blocks: Blocks<'_>) -> Result<()> {
        self.run(Request::all_to_all_v(send, recv, blocks))
    }

    /// Gather of blocks of different lengths.
    pub fn gather_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: Rank,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        self.run(Request::gather_v(send, recv, root, blocks))
    }

    /// Scatter of blocks of different lengths.
    pub fn scatter_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: Rank,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        self.run(Request::scatter_v(send, recv, root, blocks))
    }

    /// One message to `peer`, which receives the same count and dtype.
    pub fn send<T: Element>(&self, buffer: &[T], peer: Rank) -> Result<()> {
        self.run(Request::send(buffer, peer))
    }

    /// One message from `peer`.
    pub fn recv<T: Element>(&self, buffer: &mut [T], peer: Rank) -> Result<()> {
        self.run(Request::recv(buffer, peer))
    }
}
