//! The protocol of one edge: who may touch a line, and when.
//!
//! The producer fills a line with message k (counted from 0) and stores k+1 in the line's sequence
//! word; the consumer, having read message k, stores k+1 in the edge's head word. A line, and the
//! payload it speaks of, is the producer's until its sequence word says k+1, the consumer's until the
//! head says k+1.
//!
//! Message 0 is in line 0. Message k+1 is in the line after message k's, or in line 0 if message k says
//! so: the last line must, and others may. A producer whose consumer keeps up goes round a few lines,
//! which stay in the nearest cache; one that is far ahead uses them all.
//!
//! Generic over the shared words so that the tests explore every interleaving with loom's.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word that both sides see. The protocol names the orderings, so that loom judges them.
pub(super) trait Word {
    fn load(&self, ordering: Ordering) -> u64;
    fn store(&self, value: u64, ordering: Ordering);
}

/// The producer's private view of an edge.
#[derive(Debug)]
pub(super) struct Producer {
    /// The message to fill next.
    next: u64,
    /// Messages below this one are known to be released; a cache of head.
    released: u64,
    lines: Uses,
    /// Lines of the shortest round,
    round: usize,
    /// and those up to the end of the one that the line to fill next belongs to.
    to_end: usize,
    /// Ends of short rounds to pass by, since the consumer was too far behind of late.
    behind: u32,
}

/// Cells that messages use in turn.
#[derive(Debug)]
struct Uses {
    /// The cell to use next.
    at: usize,
    /// One more than the message that last used each cell.
    last: Box<[u64]>,
}

/// The consumer's private view of an edge.
#[derive(Debug)]
pub(super) struct Consumer {
    /// The message to read next.
    next: u64,
    line: usize,
    lines: usize,
}

impl Producer {
    /// Over `lines` lines, of which at least `round` are used.
    pub(super) fn new(lines: usize, round: usize) -> Producer {
        Producer { next: 0, released: 0, lines: Uses::new(lines), round, to_end: round, behind: 0 }
    }

    /// Whether the line to fill next is free.
    #[inline]
    pub(super) fn free(&mut self, head: &impl Word) -> bool {
        self.lines.free(self.released) || {
            self.look(head);
            let free = self.lines.free(self.released);
            if !free {
                self.behind = LONG_ROUNDS;
            }
            free
        }
    }

    /// The line so many after the one to fill next, if it is known to be free; reads nothing that the consumer writes.
    #[inline]
    pub(super) fn free_after(&self, lines: usize) -> Option<usize> {
        let line = self.lines.at + lines;
        self.lines.last.get(line).is_some_and(|last| *last <= self.released).then_some(line)
    }

    /// Messages below this one are known to have been released; reads nothing that the consumer writes.
    #[inline]
    pub(super) fn known_released(&self) -> u64 {
        self.released
    }

    /// Messages below this one have been released.
    #[inline]
    pub(super) fn released(&mut self, head: &impl Word) -> u64 {
        self.look(head);
        self.released
    }

    /// Whether the message after the one about to be published goes to line 0; the line has to say so.
    #[inline]
    pub(super) fn turns(&mut self, head: &impl Word) -> bool {
        if self.lines.at + 1 == self.lines.last.len() {
            return true;
        }
        if self.to_end > 1 {
            return false;
        }
        if self.behind > 0 {
            self.behind -= 1;
            return false;
        }
        self.look(head);
        // A head above what was published is somebody's stray write.
        self.next.saturating_sub(self.released) <= self.round as u64 / 2
    }

    /// Publishes the line that is filled; `turns` as [`Producer::turns`] said.
    #[inline]
    pub(super) fn publish(&mut self, sequence: &impl Word, turns: bool) {
        self.next += 1;
        self.lines.last[self.lines.at] = self.next;
        self.lines.at = if turns { 0 } else { self.lines.at + 1 };
        self.to_end = if turns || self.to_end == 1 { self.round } else { self.to_end - 1 };
        // Release pairs with the load in `Consumer::ready`: payload and tag are written before.
        sequence.store(self.next, Ordering::Release);
    }

    /// The message to fill next.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The line to fill next.
    #[inline]
    pub(super) fn line(&self) -> usize {
        self.lines.at
    }

    /// Whether the consumer has given back every line published so far.
    pub(super) fn all_released(&self, head: &impl Word) -> bool {
        // Acquire pairs with the store in `Consumer::release`: its reads happen before what we do next.
        head.load(Ordering::Acquire) == self.next
    }

    fn look(&mut self, head: &impl Word) {
        // Acquire pairs with the consumer's store of head in `Consumer::release`: its reads of the
        // line and of its payload happen before our writes.
        self.released = head.load(Ordering::Acquire);
    }
}

impl Uses {
    /// Of `cells` cells.
    fn new(cells: usize) -> Uses {
        Uses { at: 0, last: vec![0; cells].into() }
    }

    #[inline]
    fn free(&self, released: u64) -> bool {
        self.last[self.at] <= released
    }
}

impl Consumer {
    pub(super) fn new(lines: usize) -> Consumer {
        Consumer { next: 0, line: 0, lines }
    }

    /// The line to read next.
    #[inline]
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Whether the line to read next is filled.
    #[inline]
    pub(super) fn ready(&self, sequence: &impl Word) -> bool {
        self.ready_after(0, sequence)
    }

    /// Whether the line of the message `after` messages behind the one to read next is filled.
    #[inline]
    pub(super) fn ready_after(&self, after: u64, sequence: &impl Word) -> bool {
        // Acquire pairs with the store in `Producer::publish`: payload and tag are visible after. The line is this side's
        // until it has released all up to it.
        sequence.load(Ordering::Acquire) == self.next + after + 1
    }

    /// The message to read next.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The line of the message behind the one in `line`, which said whether that is line 0.
    #[inline]
    pub(super) fn line_after(&self, line: usize, turns: bool) -> usize {
        if turns { 0 } else { following(line, self.lines) }
    }

    /// Gives the line back, which said whether the next message is in line 0.
    #[inline]
    pub(super) fn release(&mut self, head: &impl Word, turns: bool) {
        self.next += 1;
        // Release pairs with the load in `Producer::look`: we no longer read the line or its payload.
        head.store(self.next, Ordering::Release);
        self.line = self.line_after(self.line, turns);
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        AtomicU64::load(self, ordering)
    }

    #[inline]
    fn store(&self, value: u64, ordering: Ordering) {
        AtomicU64::store(self, value, ordering);
    }
}

/// Ends of short rounds that are passed by after a wait.
const LONG_ROUNDS: u32 = 16;

#[inline]
fn following(cell: usize, cells: usize) -> usize {
    if cell + 1 == cells { 0 } else { cell + 1 }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    impl Word for AtomicU64 {
        fn load(&self, ordering: Ordering) -> u64 {
            AtomicU64::load(self, ordering)
        }

        fn store(&self, value: u64, ordering: Ordering) {
            AtomicU64::store(self, value, ordering);
        }
    }

    struct Edge {
        head: AtomicU64,
        /// A sequence word, and what it publishes: a payload, and whether the next is in line 0.
        lines: Vec<(AtomicU64, UnsafeCell<(u64, bool)>)>,
    }

    /// Every interleaving of one producer and one consumer: loom fails on a data race, the
    /// assertion on a lost, repeated or stale message.
    fn explore(lines: usize, round: usize, messages: u64) {
        loom::model(move || {
            let line = |_| (AtomicU64::new(0), UnsafeCell::new((0, false)));
            let edge = Arc::new(Edge { head: AtomicU64::new(0), lines: (0..lines).map(line).collect() });
            let shared = Arc::clone(&edge);
            let producer = loom::thread::spawn(move || {
                let mut producer = Producer::new(lines, round);
                for message in 0..messages {
                    while !producer.free(&shared.head) {
                        loom::thread::yield_now();
                    }
                    let line = &shared.lines[producer.line()];
                    let turns = producer.turns(&shared.head);
                    // SAFETY: `free` says the line is the producer's; loom checks it.
                    line.1.with_mut(|payload| unsafe { *payload = (100 + message, turns) });
                    producer.publish(&line.0, turns);
                }
            });
            let mut consumer = Consumer::new(lines);
            for message in 0..messages {
                let line = &edge.lines[consumer.line()];
                while !consumer.ready(&line.0) {
                    loom::thread::yield_now();
                }
                // SAFETY: `ready` says the line is the consumer's; loom checks it.
                let (found, turns) = line.1.with(|payload| unsafe { *payload });
                assert_eq!(found, 100 + message);
                consumer.release(&edge.head, turns);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn one_line_has_one_owner_in_every_interleaving() {
        explore(1, 1, 3);
    }

    #[test]
    fn two_lines_have_one_owner_each_in_every_interleaving() {
        explore(2, 2, 3);
    }

    #[test]
    fn rounds_of_any_length_keep_their_order_in_every_interleaving() {
        explore(3, 1, 3);
        explore(2, 1, 3);
    }

    #[test]
    fn a_stray_head_is_no_panic() {
        let head = std::sync::atomic::AtomicU64::new(u64::MAX);
        let sequence = std::sync::atomic::AtomicU64::new(0);
        let mut producer = Producer::new(4, 2);
        for message in 1..=9 {
            assert!(producer.free(&head));
            let turns = producer.turns(&head);
            producer.publish(&sequence, turns);
            assert_eq!(producer.next(), message);
        }
    }

    #[test]
    fn a_producer_goes_round_few_lines_or_uses_all() {
        let head = std::sync::atomic::AtomicU64::new(0);
        let sequence = std::sync::atomic::AtomicU64::new(0);
        let mut producer = Producer::new(8, 2);
        let mut used = Vec::new();
        let mut fill = |producer: &mut Producer| {
            used.push(producer.line());
            let turns = producer.turns(&head);
            producer.publish(&sequence, turns);
        };
        for message in 0..4 {
            assert!(producer.free(&head));
            fill(&mut producer);
            head.store(message + 1, Ordering::Release);
        }
        // The consumer stops, is waited for, and stops again.
        while producer.free(&head) {
            fill(&mut producer);
        }
        head.store(6, Ordering::Release);
        while producer.free(&head) {
            fill(&mut producer);
        }
        assert_eq!(used, [0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
