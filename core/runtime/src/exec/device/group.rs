//! Messages of a group, launched together. One kernel carries out all of them, so messages that wait for each other need no
//! promise that several kernels run at the same time.
//!
//! Messages lie in lists, each with blocks of its own that carry out its messages one after the other. In round r a rank sends
//! to the rank r after it and receives from the rank r before it, so a message has one round at both ends. All ranks have as
//! many lists, and put the same rounds into each, in ascending order: what a list waits for is a message of its own round, whose
//! other end waits for earlier rounds only.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccl_cuda::{CaptureInfo, Launch, PinnedMemory, Stream};
use ccl_kernels::layout::{GroupArgs, GroupedCall};
use ccl_kernels::shape::{GROUP_KERNEL, SHARED_BYTES, block_threads};
use ccl_plan::Rank;

use super::engine::{DeviceEngine, Order, Queued};
use super::failed;
use super::kernels::Kernel;
use super::launch::{Prepared, place};
use crate::error::{Error, Result};
use crate::transport::Fabric;

/// Whether a call belongs to messages that are launched together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grouped {
    /// It does not.
    Alone,
    /// More of them may come.
    Open,
    /// All are there.
    Closed,
}

/// What messages that are launched together take, as far as they are there.
#[derive(Default)]
pub(super) struct Open {
    messages: usize,
    lists: BTreeSet<u32>,
    /// Blocks of the longest.
    each: u32,
    /// Room for so many of the table has been brought.
    table_bytes: usize,
}

/// Where a message is among those that are launched together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    list: u32,
    round: u32,
}

impl Place {
    /// Of `n` ranks, whose lists take each `rounds`-th round.
    fn of(peer: Rank, is_sent: bool, (me, n): (Rank, u32), rounds: u32) -> Place {
        let (from, to) = if is_sent { (me, peer) } else { (peer, me) };
        let round = (to.0 + n - from.0) % n;
        Place { list: round % rounds * 2 + u32::from(is_sent), round }
    }
}

/// Messages as the kernel finds them.
#[derive(PartialEq, Eq, Debug)]
struct Table {
    /// By their places in the table: the message, and the number of the next of its list, counted from 1, or 0.
    rows: Vec<(usize, u32)>,
    lists: u32,
}

impl Table {
    /// The first of every list, then the others; those of one round in the order in which they were made.
    fn of(places: &[Place]) -> Table {
        let mut sorted: Vec<usize> = (0..places.len()).collect();
        sorted.sort_by_key(|message| places[*message]);
        let lists: Vec<_> = sorted.chunk_by(|one, next| places[*one].list == places[*next].list).collect();
        let mut rows: Vec<(usize, u32)> = lists.iter().map(|list| (list[0], 0)).collect();
        for (first, list) in lists.iter().enumerate() {
            let mut last = first;
            for message in &list[1..] {
                rows[last].1 = rows.len() as u32 + 1;
                last = rows.len();
                rows.push((*message, 0));
            }
        }
        Table { rows, lists: lists.len() as u32 }
    }
}

/// Messages of as many peers, each way, as `n` ranks may have under way at once in each launch: all blocks of a launch must fit
/// `room` multiprocessors, and a message has `channels` blocks.
pub(super) fn rounds(n: u32, room: u32, channels: u16) -> u32 {
    (room / (2 * u32::from(channels).max(1))).clamp(1, n.max(1))
}

impl DeviceEngine {
    /// Makes what one message more takes that is launched with those of its group before it. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver; blocks that do not fit the device.
    pub(super) fn prepare_grouped(&mut self, order: Order, blocks: u32) -> Result<Option<PinnedMemory>> {
        let list = self.place(order).list;
        let open = &mut self.open;
        open.messages += 1;
        open.lists.insert(list);
        open.each = open.each.max(blocks);
        if open.messages == 1 {
            return Ok(None);
        }
        let (needed, bytes) = (open.lists.len() as u32 * open.each, open.messages * size_of::<GroupedCall>());
        self.group_kernel()?.admit(needed, self.peers.sharing, &self.opened)?;
        if bytes <= self.open.table_bytes {
            return Ok(None);
        }
        self.open.table_bytes = bytes.next_power_of_two().max(LEAST_TABLE_BYTES);
        self.staging.pinned(self.open.table_bytes, &self.opened).map(Some)
    }

    /// Nothing more comes to the messages that are launched together.
    pub(super) fn close_group(&mut self) {
        self.open = Open::default();
        let open = self.queue.iter_mut().filter(|queued| queued.grouped == Grouped::Open);
        open.for_each(|queued| queued.grouped = Grouped::Closed);
    }

    /// Launches all messages of the group that is closed, those of each capture together; whether there was any. Waits for
    /// nothing.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn launch_groups(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let is_left = |queued: &Queued| queued.grouped == Grouped::Closed && queued.event.is_none();
        let mut moved = false;
        while let Some(first) = self.queue.iter().find(|queued| is_left(queued)) {
            let capture = first.capture();
            let is_one = |queued: &Queued| is_left(queued) && queued.capture() == capture;
            let places: Vec<usize> = (0..self.queue.len()).filter(|at| is_one(&self.queue[*at])).collect();
            let taken = places.iter().rev().filter_map(|at| self.queue.remove(*at));
            let mut batch: Vec<Queued> = taken.collect();
            batch.reverse();
            let launched = match &mut batch[..] {
                [only] => self.launch_queued(only, fabric),
                several => self.launch_together(several, fabric),
            };
            // Captured messages are complete as far as this process can tell: they run when their graph does.
            if launched.is_err() || capture.is_none() {
                for (at, queued) in places.into_iter().zip(batch) {
                    self.queue.insert(at, queued);
                }
            }
            launched?;
            moved = true;
        }
        Ok(moved)
    }

    /// One kernel for all: on the first caller's stream, which the others follow, or on one of this engine's.
    fn launch_together(&mut self, batch: &mut [Queued], fabric: &mut Fabric) -> Result<()> {
        let streams = streams_of(batch);
        let stream = match streams.first() {
            Some(stream) => Arc::clone(stream),
            None => self.stream_of(&batch[0].call.bound)?,
        };
        for queued in batch.iter_mut() {
            self.bring(queued, &stream)?;
        }
        let (args, blocks) = self.table(batch)?;
        for other in streams.iter().skip(1) {
            self.let_follow(&stream, other)?;
        }
        let info = batch[0].target.as_mut().and_then(|target| target.capture.take());
        let mut orders: Vec<Order> = batch.iter().map(Queued::order).collect();
        orders.sort_unstable();
        orders.dedup();
        for order in &orders {
            match &info {
                Some(info) => self.captured.follow(info, *order, &stream)?,
                None => self.follow_last(*order, &stream)?,
            }
        }
        let kernel = self.group_kernel()?;
        let launch = Launch {
            grid: [blocks, 1, 1],
            block: [kernel.threads, 1, 1],
            shared_bytes: SHARED_BYTES,
            attributes: &[],
        };
        // SAFETY: the kernel takes one `GroupArgs`. The table is kept with the call that brought it until all are over, and what
        // its rows point to as what a launch of their own would pass.
        let run = || unsafe { launch.run(&kernel.function, &stream, &args) };
        self.launched(run, info.is_some(), fabric)?;
        self.passed((batch, &orders), info.as_ref(), &stream)?;
        for other in streams.iter().skip(1) {
            self.let_follow(other, &stream)?;
        }
        Ok(())
    }

    /// Notes what stands behind messages that were launched.
    fn passed(
        &mut self,
        (batch, orders): (&mut [Queued], &[Order]),
        info: Option<&CaptureInfo>,
        stream: &Stream,
    ) -> Result<()> {
        if let Some(info) = info {
            for order in orders {
                self.captured.passed(info, *order, stream, &self.opened)?;
            }
            let mut all = batch.iter_mut().map(|queued| std::mem::take(&mut queued.used));
            return all.try_for_each(|used| self.captured.keep(info, used));
        }
        let event = self.event()?;
        event.record(stream).map_err(failed)?;
        for order in orders {
            self.last.insert(*order, (place(stream), Arc::clone(&event)));
        }
        batch.iter_mut().for_each(|queued| queued.event = Some(Arc::clone(&event)));
        Ok(())
    }

    /// Writes the table of messages to the memory that one of them has brought; what to launch, on how many blocks.
    fn table(&self, batch: &mut [Queued]) -> Result<(GroupArgs, u32)> {
        let places: Vec<Place> = batch.iter().map(|queued| self.place(queued.order())).collect();
        let Table { rows, lists } = Table::of(&places);
        let mut calls = Vec::new();
        for queued in batch.iter_mut() {
            let prepared = queued.prepared.take();
            let Some((plan, blocks)) = prepared.as_ref().and_then(Prepared::interpreted) else {
                return Err(Error::bug("a message of a group was not made ready"));
            };
            let Some(mut prepared) = prepared else { continue };
            queued.used.list = prepared.list.take();
            let call = self.args(&queued.call, plan, &prepared, None);
            calls.push(GroupedCall {
                call,
                protocol: prepared.protocol as u32,
                blocks,
                ..GroupedCall::default()
            });
        }
        let bytes = rows.len() * size_of::<GroupedCall>();
        let memory = batch.iter().filter_map(|queued| queued.used.list.as_ref());
        let Some(memory) =
            memory.max_by_key(|memory| memory.bytes()).filter(|memory| memory.bytes() >= bytes)
        else {
            return Err(Error::bug("there is no room for a group's messages"));
        };
        for (row, (message, next)) in rows.iter().enumerate() {
            let record = GroupedCall { next: *next, ..calls[*message] };
            let to = memory.as_ptr().cast::<GroupedCall>().wrapping_add(row);
            // SAFETY: the memory has so many records, is aligned to pages, and no kernel uses it now.
            unsafe { to.write(record) };
        }
        let each = calls.iter().map(|call| call.blocks).max().unwrap_or(1);
        Ok((GroupArgs { calls: memory.device_address(), each, reserved: 0 }, lists * each))
    }

    fn place(&self, order: Order) -> Place {
        match order {
            Order::Message(peer, is_sent) => Place::of(peer, is_sent, (self.me, self.n), self.peers.rounds),
            Order::Collectives => Place { list: 0, round: 0 },
        }
    }

    fn group_kernel(&mut self) -> Result<Kernel> {
        let threads = block_threads(self.opened.worker_threads);
        self.kernels.of(&self.opened, GROUP_KERNEL.to_owned(), (threads, SHARED_BYTES))
    }
}

/// The callers' streams, each once.
fn streams_of(batch: &[Queued]) -> Vec<Arc<Stream>> {
    let mut streams: Vec<Arc<Stream>> = Vec::new();
    for target in batch.iter().filter_map(|queued| queued.target.as_ref()) {
        if streams.iter().all(|known| place(known) != place(&target.stream)) {
            streams.push(Arc::clone(&target.stream));
        }
    }
    streams
}

/// 36 messages.
const LEAST_TABLE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_message_have_its_round() {
        for n in 1..9 {
            for rounds in 1..=n {
                for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (Rank(from), Rank(to)))) {
                    let sent = Place::of(to, true, (from, n), rounds);
                    let received = Place::of(from, false, (to, n), rounds);
                    assert_eq!((sent.round, sent.list), (received.round, received.list + 1));
                    assert!(sent.list < 2 * rounds && sent.list % 2 == 1);
                }
            }
        }
    }

    #[test]
    fn lists_go_through_their_rounds_in_order() {
        let place = |list, round| Place { list, round };
        let table =
            Table::of(&[place(1, 4), place(0, 2), place(1, 0), place(0, 2), place(1, 2), place(5, 1)]);
        // Lists 0, 1 and 5 begin with messages 1, 2 and 5; then come 3, and 4 and 0.
        assert_eq!(table, Table { rows: vec![(1, 4), (2, 5), (5, 0), (3, 0), (4, 6), (0, 0)], lists: 3 });
        assert_eq!(Table::of(&[place(7, 1)]), Table { rows: vec![(0, 0)], lists: 1 });
    }

    #[test]
    fn all_messages_of_few_ranks_run_at_once() {
        assert_eq!([(2, 132, 16), (8, 132, 4), (8, 16, 1)].map(|(n, room, c)| rounds(n, room, c)), [2, 8, 8]);
        assert_eq!([(256, 132, 1), (8, 16, 2), (8, 3, 4)].map(|(n, room, c)| rounds(n, room, c)), [66, 4, 1]);
    }
}
