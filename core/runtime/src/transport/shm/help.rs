//! Help: both ends of an edge copy what is lent, each with its own core.
//!
//! A producer that has nothing to do but wait says so in the line of what it lends. The consumer then reads the payload from its beginning
//! and *offers* blocks of its end to the producer, which writes them to where the consumer would have read them to. Each block is *taken* by
//! one of the two, in the order of the offers; what nobody has taken when the consumer gets there it takes itself. At most two offers are
//! open, so that there is a next one when one is done.
//!
//! The consumer alone says where a block goes, in a list of one entry that the producer hands to the kernel as it lies in shared memory. A
//! consumer that gives up empties these lists. So a producer that was stopped before its call into the kernel, and runs again when the
//! consumer's buffer is something else, writes nothing; one within its call is seen to visit (see [`super::visits`]).
//!
//! A producer that cannot write there says so in place of what it has done, and is never offered anything again; the consumer reads the block.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::memory::PeerMemory;

/// What the consumer of an edge offers, in the edge's head line.
#[repr(C)]
pub(super) struct Offers {
    /// Blocks that were ever offered.
    made: AtomicU64,
    /// Of these, blocks that either end has taken: the first ones.
    taken: AtomicU64,
    /// Where the last two go,
    targets: [Target; OPEN],
    /// and where each begins in what is lent.
    starts: [AtomicU32; OPEN],
}

/// An entry of a list for the kernel (`iovec`) that both processes see.
#[repr(C)]
struct Target {
    address: AtomicUsize,
    bytes: AtomicUsize,
}

/// The consumer's part of an edge.
#[derive(Debug, Default)]
pub(super) struct Borrower {
    /// The message that is being read, counted from 1.
    message: u64,
    /// Bytes of it that were read or given out: from its beginning,
    front: usize,
    /// and what follows from here to its end.
    back: usize,
    /// Blocks of it that were offered, and not taken by this end.
    given: u64,
    /// Blocks ever offered.
    made: u64,
    /// The last two offers.
    offers: [Block; OPEN],
    /// The producer cannot write here.
    refused: bool,
}

/// A part of what is lent.
#[derive(Clone, Copy, Default, Debug)]
struct Block {
    start: usize,
    bytes: usize,
    /// Whether the consumer took it.
    kept: bool,
}

/// The producer's part of an edge.
#[derive(Debug)]
pub(super) struct Lender {
    /// The memory of the consumer's process, if it may be written.
    consumer: Option<PeerMemory>,
    /// What is lent and not known to be back.
    loans: VecDeque<Loan>,
    /// 0, or [`REFUSED`] once a block could not be written.
    refused: u64,
}

#[derive(Debug)]
struct Loan {
    /// The message, counted from 0, and its line.
    message: u64,
    line: usize,
    address: usize,
    bytes: usize,
    /// Blocks of it written, and [`READY`].
    done: u64,
}

/// What became of a reading so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// All is there.
    Done,
    /// The producer is still writing its last block.
    Awaited,
}

impl Offers {
    /// Offers the next block.
    pub(super) fn make(&self, number: u64, to: *mut u8, start: usize, bytes: usize) {
        let at = cell(number);
        // Relaxed: published by the store of the count.
        self.targets[at].address.store(to.expose_provenance(), Ordering::Relaxed);
        self.targets[at].bytes.store(bytes, Ordering::Relaxed);
        self.starts[at].store(start as u32, Ordering::Relaxed);
        // Release pairs with the load in `take`.
        self.made.store(number + 1, Ordering::Release);
    }

    /// Takes the first block that nobody has taken; its number.
    fn take(&self) -> Option<u64> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        // Acquire pairs with the store in `make`: where the block goes is visible after.
        while taken < self.made.load(Ordering::Acquire) {
            match self.taken.compare_exchange_weak(taken, taken + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(found) => taken = found,
            }
        }
        None
    }

    /// Whether there may be something to take.
    fn are_open(&self) -> bool {
        // Relaxed: whoever takes looks again.
        self.taken.load(Ordering::Relaxed) < self.made.load(Ordering::Relaxed)
    }

    /// From now on a producer that has not begun to write a block writes nothing.
    pub(super) fn withdraw(&self) {
        for target in &self.targets {
            target.bytes.store(0, Ordering::SeqCst);
        }
    }
}

impl Borrower {
    /// Reads on in message `message` (counted from 0) of `bytes` bytes, with the producer's help, until nothing is left that nobody has
    /// taken. `done`: what the producer says; `read`: reads so many bytes from where the payload begins, or further on.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub(super) fn read<E>(
        &mut self,
        (offers, done): (&Offers, &AtomicU64),
        message: u64,
        (to, bytes): (*mut u8, usize),
        read: impl Fn(usize, usize) -> Result<(), E>,
    ) -> Result<Progress, E> {
        if self.message != message + 1 {
            (self.message, self.front, self.back, self.given) = (message + 1, 0, bytes, 0);
        }
        let block_bytes = block_bytes(bytes);
        loop {
            // Acquire pairs with the store in `Lender::help`: what was written is visible after.
            let said = done.load(Ordering::Acquire);
            self.refused |= said & REFUSED != 0;
            // More than was given is somebody's stray write.
            let open = self.given.saturating_sub(said & !(REFUSED | READY));
            let helps = said & READY != 0 && !self.refused;
            if helps && open < OPEN as u64 && self.back - self.front > block_bytes {
                self.back -= block_bytes;
                self.offers[cell(self.made)] = Block { start: self.back, bytes: block_bytes, kept: false };
                offers.make(self.made, to.wrapping_add(self.back), self.back, block_bytes);
                (self.made, self.given) = (self.made + 1, self.given + 1);
            } else if self.front < self.back {
                let bytes = if helps { block_bytes } else { ALONE_BYTES }.min(self.back - self.front);
                read(self.front, bytes)?;
                self.front += bytes;
            } else if let Some(number) = offers.take() {
                self.keep(number, &read)?;
            } else if open == 0 {
                return Ok(Progress::Done);
            } else if self.refused {
                // The one that the producer took last and did not write.
                let first = self.made.saturating_sub(OPEN as u64);
                match (first..self.made).rev().find(|number| !self.offers[cell(*number)].kept) {
                    Some(number) => self.keep(number, &read)?,
                    None => return Ok(Progress::Done),
                }
            } else {
                return Ok(Progress::Awaited);
            }
        }
    }

    fn keep<E>(&mut self, number: u64, read: impl Fn(usize, usize) -> Result<(), E>) -> Result<(), E> {
        let block = &mut self.offers[cell(number)];
        block.kept = true;
        // Less is somebody's stray write.
        self.given = self.given.saturating_sub(1);
        read(block.start, block.bytes)
    }
}

impl Lender {
    /// Whose consumer is that process, if it may be written to.
    pub(super) fn new(consumer: Option<PeerMemory>) -> Lender {
        Lender { consumer, loans: VecDeque::new(), refused: 0 }
    }

    /// Something is lent in this message, all messages before `released` being back; what the line has to say of the producer's help.
    pub(super) fn lends(
        &mut self,
        (message, released): (u64, u64),
        line: usize,
        (address, bytes): (*const u8, usize),
        ready: bool,
    ) -> u64 {
        let done = if ready && self.consumer.is_some() && self.refused == 0 { READY } else { 0 };
        if self.consumer.is_some() && is_shared(bytes) {
            self.forget(released);
            let address = address.expose_provenance();
            self.loans.push_back(Loan { message, line, address, bytes, done });
        }
        self.refused | done
    }

    /// This rank has nothing else to do. The line of the first message that is not back, and what that has to say from now on, if it does not
    /// say so. All messages before `released` are back.
    pub(super) fn is_ready(&mut self, released: u64) -> Option<(usize, u64)> {
        self.forget(released);
        let refused = self.refused != 0;
        let loan = self.loans.front_mut().filter(|loan| !refused && loan.done & READY == 0)?;
        loan.done |= READY;
        Some((loan.line, loan.done))
    }

    /// Whether the consumer wants help with something.
    pub(super) fn is_asked(&self, offers: &Offers) -> bool {
        !self.loans.is_empty() && self.refused == 0 && offers.are_open()
    }

    fn forget(&mut self, released: u64) {
        while self.loans.front().is_some_and(|loan| loan.message < released) {
            self.loans.pop_front();
        }
    }

    /// Writes a block that is offered, of the first message that is not back: `released` says which. Its line, and what that has to say from
    /// now on; `None` if there was nothing to do.
    ///
    /// # Safety
    ///
    /// What is lent is still there, and the caller has found the consumer not to have withdrawn since it began a visit.
    pub(super) unsafe fn help(
        &mut self,
        offers: &Offers,
        released: impl FnOnce() -> u64,
    ) -> Option<(usize, u64)> {
        let (consumer, number) = (self.consumer?, offers.take()?);
        // The message that the offer is of is not back before the block is done, and no later one is offered.
        let message = released();
        self.forget(message);
        let loan = self.loans.front_mut().filter(|loan| loan.message == message)?;
        let (start, target) =
            (offers.starts[cell(number)].load(Ordering::Relaxed), &offers.targets[cell(number)]);
        let (start, bytes) = (start as usize, target.bytes.load(Ordering::Relaxed));
        let inside = bytes > 0 && start.checked_add(bytes).is_some_and(|end| end <= loan.bytes);
        let from = std::ptr::with_exposed_provenance::<u8>(loan.address).wrapping_add(start);
        // SAFETY: what is lent is as long, and there; the target has the form that the kernel expects, and says where its
        // owner wants to have it, or nothing.
        let written =
            inside && unsafe { consumer.write_listed(from, bytes, std::ptr::from_ref(target).cast()) };
        match written {
            true => loan.done += 1,
            false => self.refused = REFUSED,
        }
        Some((loan.line, loan.done | self.refused))
    }
}

/// Whether so many bytes are worth both ends' work.
pub(super) fn is_shared(bytes: usize) -> bool {
    (LEAST_SHARED_BYTES..=u32::MAX as usize).contains(&bytes)
}

/// As many bytes are read or written at a time where both ends work.
fn block_bytes(bytes: usize) -> usize {
    (bytes / 2).next_multiple_of(4096).clamp(LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES)
}

fn cell(number: u64) -> usize {
    (number % OPEN as u64) as usize
}

/// Offers that may be open.
const OPEN: usize = 2;
/// The producer cannot write: the block that it took last is not there.
const REFUSED: u64 = 1 << 63;
/// The producer writes what it is offered.
const READY: u64 = 1 << 62;
const LEAST_SHARED_BYTES: usize = 64 << 10;
const LEAST_BLOCK_BYTES: usize = 32 << 10;
const MOST_BLOCK_BYTES: usize = 64 << 10;
/// Read at a time while the producer does not say that it would help.
const ALONE_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    fn offers() -> Offers {
        let target = || Target { address: AtomicUsize::new(0), bytes: AtomicUsize::new(0) };
        Offers {
            made: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            targets: [target(), target()],
            starts: [AtomicU32::new(0), AtomicU32::new(0)],
        }
    }

    /// Two ends in one process, and the words in the lines of two messages that are lent at a time.
    struct Ends {
        offers: Offers,
        borrower: Borrower,
        lender: RefCell<Lender>,
        words: [AtomicU64; 2],
    }

    impl Ends {
        fn new(consumer: u32) -> Ends {
            let lender = RefCell::new(Lender::new(Some(PeerMemory::of(consumer))));
            Ends { offers: offers(), borrower: Borrower::default(), lender, words: Default::default() }
        }

        fn lend(&self, message: u64, payload: &[u8], ready: bool) {
            let line = (message % 2) as usize;
            let lent = (payload.as_ptr(), payload.len());
            let word =
                self.lender.borrow_mut().lends((message, message.saturating_sub(1)), line, lent, ready);
            self.words[line].store(word, Ordering::Relaxed);
        }

        /// Reads a message, its lender doing what `turns` says whenever the borrower has read something or waits: whether it helps. How
        /// many blocks it wrote, if all bytes arrived.
        fn read(&mut self, message: u64, payload: &[u8], mut turns: impl FnMut() -> bool) -> Option<usize> {
            let mut found = vec![0u8; payload.len()];
            let to = found.as_mut_ptr();
            let (lender, offers) = (&self.lender, &self.offers);
            let word = &self.words[(message % 2) as usize];
            let (helped, turns) = (RefCell::new(0), RefCell::new(&mut turns));
            let help = || {
                let mut lender = lender.borrow_mut();
                if !(turns.borrow_mut())() || !lender.is_asked(offers) {
                    return;
                }
                // SAFETY: the payload is there, and nobody withdraws.
                if let Some((_, said)) = unsafe { lender.help(offers, || message) } {
                    word.store(said, Ordering::Release);
                    *helped.borrow_mut() += usize::from(said & REFUSED == 0);
                }
            };
            let read = |start: usize, bytes: usize| {
                help();
                // SAFETY: both are as long as the payload.
                unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr().add(start), to.add(start), bytes) };
                help();
                Ok::<_, ()>(())
            };
            let progress = self.borrower.read((offers, word), message, (to, payload.len()), read);
            assert_eq!(progress, Ok(Progress::Done), "nobody is in the middle of a block");
            let helped = *helped.borrow();
            (found == payload).then_some(helped)
        }
    }

    proptest! {
        #[test]
        fn each_byte_arrives_once_whoever_copies_it(
            lengths in prop::collection::vec(is_shared_bytes(), 1..6),
            turns in prop::collection::vec(any::<bool>(), 1..40),
            ready in any::<bool>(),
        ) {
            let payloads: Vec<Vec<u8>> =
                lengths.iter().map(|bytes| (0..*bytes).map(|at| (at % 251 + 1) as u8).collect()).collect();
            let mut ends = Ends::new(std::process::id());
            let mut turns = turns.into_iter().cycle();
            ends.lend(0, &payloads[0], ready);
            for (message, payload) in (0..).zip(&payloads) {
                if let Some(next) = payloads.get(message as usize + 1) {
                    ends.lend(message + 1, next, ready);
                }
                let helped = ends.read(message, payload, || turns.next().unwrap());
                prop_assert!(helped.is_some(), "message {message}");
                prop_assert!(ready || helped == Some(0), "offered to who did not say that it helps");
            }
        }
    }

    fn is_shared_bytes() -> impl Strategy<Value = usize> {
        LEAST_SHARED_BYTES..(700 << 10)
    }

    #[test]
    fn who_helps_writes_about_half() {
        let (mut ends, payload) = (Ends::new(std::process::id()), vec![7u8; 1 << 20]);
        ends.lend(0, &payload, true);
        let mut turn = false;
        let helped = ends.read(0, &payload, || {
            turn = !turn;
            turn
        });
        assert_eq!(helped, Some(8));
    }

    #[test]
    fn who_cannot_write_is_asked_once() {
        // No process has this number.
        let (mut ends, payload) = (Ends::new(i32::MAX as u32), vec![7u8; 1 << 20]);
        for message in 0..3 {
            ends.lend(message, &payload, true);
            assert_eq!(ends.read(message, &payload, || true), Some(0), "message {message}");
        }
        assert_eq!(ends.offers.made.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn who_says_later_that_it_helps_is_asked_from_then_on() {
        let (ends, payload) = (Ends::new(std::process::id()), vec![7u8; 1 << 20]);
        ends.lend(0, &payload, false);
        let mut lender = ends.lender.borrow_mut();
        assert_eq!(lender.is_ready(0), Some((0, READY)));
        assert_eq!(lender.is_ready(0), None, "it said so");
        assert_eq!(lender.is_ready(1), None, "the message is back");
    }

    #[test]
    fn what_was_offered_and_withdrawn_is_not_written() {
        let (ends, payload, mut target) =
            (Ends::new(std::process::id()), vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
        ends.lend(0, &payload, true);
        ends.offers.make(0, target.as_mut_ptr(), 0, 64 << 10);
        ends.offers.withdraw();
        // SAFETY: the payload is there; the offer was taken back.
        let said = unsafe { ends.lender.borrow_mut().help(&ends.offers, || 0) };
        assert_eq!(said, Some((0, READY | REFUSED)));
        assert!(target.iter().all(|byte| *byte == 0));
    }
}
