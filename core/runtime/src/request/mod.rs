//! One call as the caller states it, checked before anything moves.

mod typed;

use ccl_plan::layout::Tables;
use ccl_plan::{Collective, Dtype, Rank, Shape};

use crate::element::Reduce;
use crate::error::{Error, Result};
use crate::exec::device::Addresses;

/// A collective, or one side of a message, on byte buffers.
///
/// `count` is what the collective's buffers are measured in (elements): the whole vector for
/// all-reduce, reduce and broadcast; one block for all-gather, reduce-scatter, all-to-all, gather
/// and scatter; the message for send and receive. The v-forms take [`Blocks`] instead.
#[derive(Debug)]
pub struct Request<'a> {
    /// What to do.
    pub collective: Collective,
    /// Element type of both buffers.
    pub dtype: Dtype,
    /// How contributions are combined; ignored where nothing is.
    pub reduce: Reduce,
    /// Elements, as above.
    pub count: usize,
    /// The root, or the peer of a send or receive; ignored elsewhere.
    pub root: Rank,
    /// The user's memory.
    pub buffers: Buffers<'a>,
    /// Counts and offsets of the v-forms.
    pub blocks: Option<Blocks<'a>>,
}

/// The memory of one call, borrowed until the call is complete.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// Send and receive buffers that do not overlap. Unused sides may be empty.
    Separate {
        /// What this rank contributes.
        send: &'a [u8],
        /// Where the result goes.
        recv: &'a mut [u8],
    },
    /// One buffer for both: the vector itself; for all-gather and gather (at the root) the receive
    /// buffer with this rank's block in its place; for reduce-scatter and scatter (at the root) the
    /// send buffer, in which this rank's block is replaced; for all-to-all both.
    InPlace(&'a mut [u8]),
}

/// Elements and offsets of each rank's block, indexed by rank; offsets in elements.
///
/// | collective | send side | receive side |
/// |---|---|---|
/// | all_gather_v | not used | every block |
/// | reduce_scatter_v | every block | not used |
/// | all_to_all_v | to each rank | from each rank |
/// | gather_v | own entry | every block, at the root |
/// | scatter_v | every block, at the root | own entry |
///
/// A side that is used has n entries; one that is not may be empty. Where both sides have an entry for this rank's own
/// block (all_to_all_v, and the root of gather_v and scatter_v) they are equal. The offset of an empty block says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blocks<'a> {
    /// Elements of each block in the send buffer.
    pub send_counts: &'a [usize],
    /// Where each starts.
    pub send_offsets: &'a [usize],
    /// Elements of each block in the receive buffer.
    pub recv_counts: &'a [usize],
    /// Where each starts.
    pub recv_offsets: &'a [usize],
}

/// A request after checking: raw addresses, ready to bind to a program.
///
/// The addresses stay valid as long as the request's borrows, which whoever holds a `Bound` must
/// outlive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) reduce: Reduce,
    pub(crate) count: usize,
    pub(crate) root: Rank,
    pub(crate) send: *const u8,
    pub(crate) recv: *mut u8,
    pub(crate) in_place: bool,
}

/// What a request in order was like that depends neither on what is to be done nor on where its buffers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    send_bytes: usize,
    /// Of the receive buffer, or of the only one.
    recv_bytes: usize,
    in_place: bool,
    /// Where in an in-place buffer this rank's own part starts.
    send_offset: usize,
    recv_offset: usize,
}

/// Refuses a root or peer that is no rank.
pub(crate) fn check_root(collective: Collective, root: Rank, n: u32) -> Result<()> {
    if names_root(collective) && root.0 >= n {
        return Err(Error::usage(
            format!("expected a root or peer below {n}, found {root}"),
            "ranks are numbered from 0 within their communicator",
        ));
    }
    Ok(())
}

/// The root or peer of a call; rank 0 where none is named, whatever the request says, so that nothing depends on it.
#[inline]
pub(crate) fn named_root(collective: Collective, root: Rank) -> Rank {
    if names_root(collective) { root } else { Rank(0) }
}

/// Whether calls name a root or a peer.
#[inline]
fn names_root(collective: Collective) -> bool {
    collective.rooted() || collective.is_message()
}

impl Request<'_> {
    /// Whether it is a message that [`Request::bind`] has nothing against, found out in few instructions.
    #[inline]
    pub(crate) fn is_message_in_order(&self, n: u32) -> bool {
        let Buffers::Separate { send, recv } = &self.buffers else { return false };
        let bytes = match self.collective {
            Collective::Send => send.len(),
            Collective::Recv => recv.len(),
            _ => return false,
        };
        self.root.0 < n
            && self.count.checked_mul(self.dtype.size_bytes()).is_some_and(|needed| needed <= bytes)
    }

    /// Checks lengths, root and tables for `rank` of `n`, and resolves addresses.
    pub(crate) fn bind(&mut self, rank: Rank, n: u32) -> Result<Bound> {
        check_root(self.collective, self.root, n)?;
        if self.collective.uneven() {
            self.check_blocks(rank, n)?;
        }
        let (send_count, recv_count) = self.buffer_counts(rank, n)?;
        let size = self.dtype.size_bytes();
        let in_place = matches!(self.buffers, Buffers::InPlace(_));
        let (send, recv) = match &mut self.buffers {
            Buffers::Separate { send, recv } => {
                check_length("send", send.len(), send_count, size)?;
                check_length("receive", recv.len(), recv_count, size)?;
                (send.as_ptr(), recv.as_mut_ptr())
            }
            Buffers::InPlace(buffer) => {
                check_length("in-place", buffer.len(), send_count.max(recv_count), size)?;
                let base = buffer.as_mut_ptr();
                let (send_offset, recv_offset) = self.in_place_offsets(rank);
                // `check_length` found this rank's block to end within the buffer.
                // That of an empty block may be anything.
                let at = |offset: usize| base.wrapping_add(offset.wrapping_mul(size));
                (at(send_offset).cast_const(), at(recv_offset))
            }
        };
        Ok(Bound {
            collective: self.collective,
            dtype: self.dtype,
            reduce: self.reduce,
            count: self.count,
            root: named_root(self.collective, self.root),
            send,
            recv,
            in_place,
        })
    }

    /// [`Request::bind`] to memory given by address, which takes the place of the request's buffers.
    pub(crate) fn bind_at(&self, at: Addresses<'_>, rank: Rank, n: u32) -> Result<Bound> {
        check_root(self.collective, self.root, n)?;
        if self.collective.uneven() {
            self.check_blocks(rank, n)?;
        }
        let (send_count, recv_count) = self.buffer_counts(rank, n)?;
        let size = self.dtype.size_bytes();
        at.check(send_count.saturating_mul(size), recv_count.saturating_mul(size))?;
        Ok(Bound {
            collective: self.collective,
            dtype: self.dtype,
            reduce: self.reduce,
            count: self.count,
            root: named_root(self.collective, self.root),
            send: at.send,
            recv: at.recv,
            in_place: at.send.cast_mut() == at.recv,
        })
    }

    /// Bytes of the buffers that this rank gives by address.
    ///
    /// # Errors
    ///
    /// Blocks that do not fit each other.
    pub(crate) fn lengths_at(&self, rank: Rank, n: u32) -> Result<(usize, usize)> {
        let (send, recv) = self.buffer_counts(rank, n)?;
        let bytes = |count: usize| count.saturating_mul(self.dtype.size_bytes());
        Ok((bytes(send), bytes(recv)))
    }

    /// What this request, which was bound so, was like.
    pub(crate) fn fit(&self, bound: &Bound) -> Fit {
        match &self.buffers {
            Buffers::Separate { send, recv } => Fit {
                send_bytes: send.len(),
                recv_bytes: recv.len(),
                in_place: false,
                send_offset: 0,
                recv_offset: 0,
            },
            Buffers::InPlace(buffer) => Fit {
                send_bytes: 0,
                recv_bytes: buffer.len(),
                in_place: true,
                send_offset: bound.send.addr() - buffer.as_ptr().addr(),
                recv_offset: bound.recv.addr() - buffer.as_ptr().addr(),
            },
        }
    }

    /// [`Request::bind`] of a request that is to do the same as one that was like this: nothing is left to check but
    /// that its buffers are as long. `None` if they are not.
    #[inline]
    pub(crate) fn bind_as(&mut self, fit: &Fit) -> Option<Bound> {
        let (send, recv) = match &mut self.buffers {
            Buffers::Separate { send, recv } => {
                let same = !fit.in_place && send.len() == fit.send_bytes && recv.len() == fit.recv_bytes;
                same.then_some((send.as_ptr(), recv.as_mut_ptr()))?
            }
            Buffers::InPlace(buffer) => {
                let base = buffer.as_mut_ptr();
                let parts =
                    (base.wrapping_add(fit.send_offset).cast_const(), base.wrapping_add(fit.recv_offset));
                (fit.in_place && buffer.len() == fit.recv_bytes).then_some(parts)?
            }
        };
        Some(Bound {
            collective: self.collective,
            dtype: self.dtype,
            reduce: self.reduce,
            count: self.count,
            root: named_root(self.collective, self.root),
            send,
            recv,
            in_place: fit.in_place,
        })
    }

    /// The v-form's tables as layouts take them.
    pub(crate) fn tables(&self) -> Option<Tables<'_>> {
        let blocks = self.blocks.filter(|_| self.collective.uneven())?;
        Some(Tables {
            send_counts: blocks.send_counts,
            send_offsets: blocks.send_offsets,
            recv_counts: blocks.recv_counts,
            recv_offsets: blocks.recv_offsets,
        })
    }

    /// Elements that the send and receive buffers must hold on this rank.
    fn buffer_counts(&self, rank: Rank, n: u32) -> Result<(usize, usize)> {
        let (at_root, c) = (rank == self.root, self.collective);
        let side = |shape: Shape, counts: &[usize], offsets: &[usize]| -> Option<usize> {
            match shape {
                Shape::None => Some(0),
                Shape::Whole => Some(self.count),
                Shape::Own if c.uneven() => Some(counts.get(rank.index()).copied().unwrap_or(0)),
                Shape::Own => Some(self.count),
                Shape::PerRank if c.uneven() => extent(counts, offsets),
                Shape::PerRank => self.count.checked_mul(n as usize),
            }
        };
        let blocks = self.blocks.unwrap_or_default();
        let sends = match c {
            Collective::Broadcast | Collective::Scatter | Collective::ScatterV => at_root,
            _ => true,
        };
        let receives = match c {
            Collective::Reduce | Collective::Gather | Collective::GatherV => at_root,
            _ => true,
        };
        let send = if sends { side(c.input(), own_side(c, &blocks), blocks.send_offsets) } else { Some(0) };
        let recv =
            if receives { side(c.output(), recv_side(c, &blocks), blocks.recv_offsets) } else { Some(0) };
        send.zip(recv).ok_or_else(|| {
            Error::usage(
                format!("expected a total count that fits the address space, found {} x {n}", self.count),
                "check the count argument",
            )
        })
    }

    /// Where this rank's own block starts in an in-place buffer: (send side, receive side).
    fn in_place_offsets(&self, rank: Rank) -> (usize, usize) {
        let offset = |offsets: &[usize]| match self.blocks.filter(|_| self.collective.uneven()) {
            Some(_) => offsets.get(rank.index()).copied().unwrap_or(0),
            None => rank.index() * self.count,
        };
        let blocks = self.blocks.unwrap_or_default();
        let at_root = rank == self.root;
        match self.collective {
            Collective::AllGather | Collective::AllGatherV => (offset(blocks.recv_offsets), 0),
            Collective::ReduceScatter | Collective::ReduceScatterV => (0, offset(blocks.send_offsets)),
            Collective::Gather | Collective::GatherV if at_root => (offset(blocks.recv_offsets), 0),
            Collective::Scatter | Collective::ScatterV if at_root => (0, offset(blocks.send_offsets)),
            _ => (0, 0),
        }
    }

    fn check_blocks(&self, rank: Rank, n: u32) -> Result<()> {
        let Some(blocks) = &self.blocks else {
            return Err(Error::usage(
                format!("expected block counts for {}, found none", self.collective),
                "give Request::blocks for the v-forms",
            ));
        };
        let at_root = rank == self.root;
        let needs_send = match self.collective {
            Collective::AllGatherV => false,
            Collective::ScatterV => at_root,
            _ => true,
        };
        let needs_recv = match self.collective {
            Collective::ReduceScatterV => false,
            Collective::GatherV => at_root,
            _ => true,
        };
        let sides = [
            ("send", needs_send, blocks.send_counts, blocks.send_offsets),
            ("receive", needs_recv, blocks.recv_counts, blocks.recv_offsets),
        ];
        for (side, needed, counts, offsets) in sides {
            if needed && (counts.len() != n as usize || offsets.len() != n as usize) {
                return Err(Error::usage(
                    format!(
                        "expected {n} {side} counts and offsets, found {} and {}",
                        counts.len(),
                        offsets.len()
                    ),
                    "give one count and one offset for each rank",
                ));
            }
        }
        self.check_own_block(rank, blocks)
    }

    /// What a rank sends to itself is as long as what it receives from itself.
    fn check_own_block(&self, rank: Rank, blocks: &Blocks<'_>) -> Result<()> {
        let keeps_own = match self.collective {
            Collective::AllToAllV => true,
            Collective::GatherV | Collective::ScatterV => rank == self.root,
            _ => false,
        };
        let own = |counts: &[usize]| counts.get(rank.index()).copied().unwrap_or(0);
        let (sent, received) = (own(blocks.send_counts), own(blocks.recv_counts));
        if keeps_own && sent != received {
            return Err(Error::usage(
                format!(
                    "expected equal counts for this rank's own block, found {sent} to send and {received} to receive"
                ),
                "give entry [rank] of send_counts and recv_counts the same value",
            ));
        }
        Ok(())
    }
}

/// The table that says how long this rank's own send block is.
fn own_side<'a>(collective: Collective, blocks: &Blocks<'a>) -> &'a [usize] {
    match collective {
        Collective::AllGatherV => blocks.recv_counts,
        _ => blocks.send_counts,
    }
}

/// The table that says how long this rank's own receive block is.
fn recv_side<'a>(collective: Collective, blocks: &Blocks<'a>) -> &'a [usize] {
    match collective {
        Collective::ReduceScatterV => blocks.send_counts,
        _ => blocks.recv_counts,
    }
}

/// The first element after every block; `None` on overflow.
pub(crate) fn extent(counts: &[usize], offsets: &[usize]) -> Option<usize> {
    counts.iter().zip(offsets).try_fold(0, |end: usize, (count, offset)| {
        Some(if *count == 0 { end } else { end.max(offset.checked_add(*count)?) })
    })
}

fn check_length(side: &str, found_bytes: usize, expected_count: usize, size: usize) -> Result<()> {
    let expected_bytes = expected_count.checked_mul(size);
    if expected_bytes.is_none_or(|expected| found_bytes < expected) {
        return Err(Error::usage(
            format!(
                "expected a {side} buffer of at least {expected_count} elements of {size} bytes, found {found_bytes} bytes"
            ),
            "check the buffer's length against the count argument",
        ));
    }
    Ok(())
}
