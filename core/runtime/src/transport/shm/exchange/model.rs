//! Every interleaving of two ranks that exchange slots: loom fails where both touch a slot, a line or a word of it at a time.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU64};

use super::super::ring::{Consumer, Producer};
use super::*;

/// Slots in the region of each rank.
const SLOTS: usize = 2;
/// Messages of an edge that are in slots at a time.
const UNDER_WAY: usize = 1;
const LINES: usize = 2;

/// What one rank sends the other by.
struct Edge {
    head: AtomicU64,
    returned: Vec<AtomicU8>,
    /// A sequence word, and what it publishes: the slot, and whether the next message is in line 0.
    lines: Vec<(AtomicU64, UnsafeCell<(SlotId, bool)>)>,
}

struct Pair {
    /// By their senders.
    edges: [Edge; 2],
    slots: Vec<UnsafeCell<u64>>,
}

/// One rank, with its ends of both edges.
struct Rank {
    me: usize,
    pair: Arc<Pair>,
    pool: std::sync::Arc<Pool>,
    exchange: Exchange,
    producer: Producer,
    consumer: Consumer,
    given: usize,
}

impl Edge {
    fn new() -> Edge {
        let line = |_| (AtomicU64::new(0), UnsafeCell::new((SlotId::default(), false)));
        Edge {
            head: AtomicU64::new(0),
            returned: (0..RETURNED.min(MOST)).map(|_| AtomicU8::new(0)).collect(),
            lines: (0..LINES).map(line).collect(),
        }
    }
}

impl Rank {
    fn new(me: usize, pair: Arc<Pair>) -> Rank {
        let pool = std::sync::Arc::new(Pool::new(SLOTS, 1 - me, Reuse::InTurn));
        let exchange = Exchange::new(std::sync::Arc::clone(&pool), UNDER_WAY, (SLOTS, 1));
        let (producer, consumer) = (Producer::new(LINES, LINES), Consumer::new(LINES));
        Rank { me, pair, pool, exchange, producer, consumer, given: 0 }
    }

    /// Sends the next message, if there is room for it.
    fn sends(&mut self) -> bool {
        let edge = &self.pair.edges[self.me];
        if !self.producer.free(&edge.head) {
            return false;
        }
        let released = self.producer.released(&edge.head);
        let returned = |word: usize| edge.returned[word].load(Ordering::Relaxed);
        self.exchange.collect(returned, released, |_| true).unwrap();
        if self.exchange.is_full() {
            return false;
        }
        let Some(spot) = self.exchange.choose_read(1).or_else(|| self.exchange.choose_rested(1)) else {
            panic!("rank {} has no slot for message {}", self.me, self.producer.next());
        };
        let message = self.producer.next();
        // SAFETY: the slot was chosen; loom checks that it is this rank's.
        self.pair.slots[spot.slot.0 as usize]
            .with_mut(|payload| unsafe { *payload = carried(self.me, message) });
        self.exchange.take(message, spot, 1);
        let (sequence, line) = &edge.lines[self.producer.line()];
        let turns = self.producer.turns(&edge.head);
        // SAFETY: `free` says the line is the producer's; loom checks it.
        line.with_mut(|said| unsafe { *said = (spot.slot, turns) });
        self.producer.publish(sequence, turns);
        true
    }

    /// Receives the next message, if it is there.
    fn receives(&mut self) -> bool {
        let edge = &self.pair.edges[1 - self.me];
        let (sequence, line) = &edge.lines[self.consumer.line()];
        if !self.consumer.ready(sequence) {
            return false;
        }
        // SAFETY: `ready` says the line is the consumer's; loom checks it.
        let (slot, turns) = line.with(|said| unsafe { *said });
        // SAFETY: the line says the slot is; loom checks it.
        let found = self.pair.slots[slot.0 as usize].with(|payload| unsafe { *payload });
        assert_eq!(found, carried(1 - self.me, self.consumer.next()));
        let given = self.pool.give_for(Spot { slot, offset: 0 });
        edge.returned[self.given].store(given.to_byte(), Ordering::Relaxed);
        self.given += 1;
        self.consumer.release(&edge.head, turns);
        true
    }

    /// Sends and receives so many messages, whichever can be.
    fn goes_through(mut self, [mut to_send, mut to_receive]: [u64; 2]) {
        while to_send + to_receive > 0 {
            let (sent, received) = (to_send > 0 && self.sends(), to_receive > 0 && self.receives());
            (to_send, to_receive) = (to_send - u64::from(sent), to_receive - u64::from(received));
            if !sent && !received {
                loom::thread::yield_now();
            }
        }
    }
}

/// What a message holds.
fn carried(from: usize, message: u64) -> u64 {
    100 * (from as u64 + 1) + message
}

/// Rank 0 sends so many messages and rank 1 so many.
fn explore(messages: [u64; 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let slots = (0..2 * SLOTS).map(|_| UnsafeCell::new(0)).collect();
        let pair = Arc::new(Pair { edges: [Edge::new(), Edge::new()], slots });
        let other = Rank::new(1, Arc::clone(&pair));
        let other = loom::thread::spawn(move || other.goes_through([messages[1], messages[0]]));
        Rank::new(0, pair).goes_through(messages);
        other.join().unwrap();
    });
}

/// Words of what comes back that messages here use.
const MOST: usize = 4;
/// Switches of a thread that could go on, in an interleaving.
const PREEMPTIONS: usize = 3;

#[test]
fn a_slot_has_one_owner_in_every_interleaving_of_an_exchange() {
    explore([3, 3]);
}

#[test]
fn a_slot_has_one_owner_in_every_interleaving_of_a_stream() {
    explore([4, 0]);
}

#[test]
fn a_slot_has_one_owner_where_one_rank_sends_more() {
    explore([3, 1]);
}
