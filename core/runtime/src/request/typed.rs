//! Requests from typed slices: counts and dtypes follow from the arguments.

use ccl_plan::{Collective, Dtype, Rank, ReduceOp};

use super::{Blocks, Buffers, Request};
use crate::element::{Element, Reduce, bytes_of, bytes_of_mut};

impl<'a> Request<'a> {
    /// Every rank gets the reduction of all `send` vectors in `recv` (same length).
    pub fn all_reduce<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        reduce: impl Into<Reduce>,
    ) -> Request<'a> {
        let count = send.len().max(recv.len());
        Request::separate(Collective::AllReduce, count, send, recv).reducing(reduce)
    }

    /// All-reduce in place.
    pub fn all_reduce_in_place<T: Element>(buffer: &'a mut [T], reduce: impl Into<Reduce>) -> Request<'a> {
        Request::in_place(Collective::AllReduce, buffer.len(), buffer).reducing(reduce)
    }

    /// The root gets the reduction of all `send` vectors in `recv`, which is empty elsewhere.
    pub fn reduce<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        reduce: impl Into<Reduce>,
        root: Rank,
    ) -> Request<'a> {
        Request::separate(Collective::Reduce, send.len(), send, recv).reducing(reduce).rooted(root)
    }

    /// Every rank gets the root's `buffer`.
    pub fn broadcast<T: Element>(buffer: &'a mut [T], root: Rank) -> Request<'a> {
        Request::in_place(Collective::Broadcast, buffer.len(), buffer).rooted(root)
    }

    /// Every rank gets every `send`, in rank order; `recv` is n times as long.
    pub fn all_gather<T: Element>(send: &'a [T], recv: &'a mut [T]) -> Request<'a> {
        Request::separate(Collective::AllGather, send.len(), send, recv)
    }

    /// Rank r gets the reduction of everybody's block r; `send` is n times as long as `recv`.
    pub fn reduce_scatter<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        reduce: impl Into<Reduce>,
    ) -> Request<'a> {
        Request::separate(Collective::ReduceScatter, recv.len(), send, recv).reducing(reduce)
    }

    /// Rank r gets everybody's block r; blocks have `count` elements, both buffers n blocks.
    pub fn all_to_all<T: Element>(send: &'a [T], recv: &'a mut [T], count: usize) -> Request<'a> {
        Request::separate(Collective::AllToAll, count, send, recv)
    }

    /// The root gets every `send`, in rank order, in `recv`, which is empty elsewhere.
    pub fn gather<T: Element>(send: &'a [T], recv: &'a mut [T], root: Rank) -> Request<'a> {
        Request::separate(Collective::Gather, send.len(), send, recv).rooted(root)
    }

    /// Every rank gets its block of the root's `send`, which is empty elsewhere.
    pub fn scatter<T: Element>(send: &'a [T], recv: &'a mut [T], root: Rank) -> Request<'a> {
        Request::separate(Collective::Scatter, recv.len(), send, recv).rooted(root)
    }

    /// All-gather of blocks of different lengths; every rank knows all receive counts and offsets.
    pub fn all_gather_v<T: Element>(send: &'a [T], recv: &'a mut [T], blocks: Blocks<'a>) -> Request<'a> {
        Request::separate(Collective::AllGatherV, 0, send, recv).with_blocks(blocks)
    }

    /// Reduce-scatter of blocks of different lengths; every rank knows all send counts and offsets.
    pub fn reduce_scatter_v<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        reduce: impl Into<Reduce>,
        blocks: Blocks<'a>,
    ) -> Request<'a> {
        Request::separate(Collective::ReduceScatterV, 0, send, recv).reducing(reduce).with_blocks(blocks)
    }

    /// All-to-all of blocks of different lengths; a rank knows what it sends and receives.
    pub fn all_to_all_v<T: Element>(send: &'a [T], recv: &'a mut [T], blocks: Blocks<'a>) -> Request<'a> {
        Request::separate(Collective::AllToAllV, 0, send, recv).with_blocks(blocks)
    }

    /// Gather of blocks of different lengths.
    pub fn gather_v<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        root: Rank,
        blocks: Blocks<'a>,
    ) -> Request<'a> {
        Request::separate(Collective::GatherV, 0, send, recv).rooted(root).with_blocks(blocks)
    }

    /// Scatter of blocks of different lengths.
    pub fn scatter_v<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        root: Rank,
        blocks: Blocks<'a>,
    ) -> Request<'a> {
        Request::separate(Collective::ScatterV, 0, send, recv).rooted(root).with_blocks(blocks)
    }

    /// One message to `peer`, which receives the same count and dtype.
    pub fn send<T: Element>(buffer: &'a [T], peer: Rank) -> Request<'a> {
        Request::separate::<T>(Collective::Send, buffer.len(), buffer, &mut []).rooted(peer)
    }

    /// One message from `peer`.
    pub fn recv<T: Element>(buffer: &'a mut [T], peer: Rank) -> Request<'a> {
        Request::separate::<T>(Collective::Recv, buffer.len(), &[], buffer).rooted(peer)
    }

    /// Nobody leaves before everybody has entered.
    pub fn barrier() -> Request<'static> {
        Request {
            collective: Collective::Barrier,
            dtype: Dtype::U8,
            reduce: ReduceOp::Sum.into(),
            count: 0,
            root: Rank(0),
            buffers: Buffers::Separate { send: &[], recv: &mut [] },
            blocks: None,
        }
    }

    fn separate<T: Element>(
        collective: Collective,
        count: usize,
        send: &'a [T],
        recv: &'a mut [T],
    ) -> Request<'a> {
        let buffers = Buffers::Separate { send: bytes_of(send), recv: bytes_of_mut(recv) };
        Request { buffers, ..Request::bare::<T>(collective, count) }
    }

    fn in_place<T: Element>(collective: Collective, count: usize, buffer: &'a mut [T]) -> Request<'a> {
        Request { buffers: Buffers::InPlace(bytes_of_mut(buffer)), ..Request::bare::<T>(collective, count) }
    }

    fn bare<T: Element>(collective: Collective, count: usize) -> Request<'a> {
        Request { collective, dtype: T::DTYPE, count, ..Request::barrier() }
    }

    fn reducing(mut self, reduce: impl Into<Reduce>) -> Request<'a> {
        self.reduce = reduce.into();
        self
    }

    fn rooted(mut self, root: Rank) -> Request<'a> {
        self.root = root;
        self
    }

    fn with_blocks(mut self, blocks: Blocks<'a>) -> Request<'a> {
        self.blocks = Some(blocks);
        self
    }
}
