//! Who runs next, and for how long.

use crate::random::Random;

/// How the next fiber is chosen among those that can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// In turn. The seed does not matter.
    RoundRobin,
    /// Any, for a few points.
    #[default]
    Random,
    /// Any, but some threads, warps and blocks are left out for long whiles.
    Adversarial,
}

/// The fibers that can run, and the choice among them.
pub(crate) struct Schedule {
    order: Order,
    random: Random,
    ready: Vec<usize>,
    /// Where each fiber is in `ready`; `NOWHERE` if it waits or has ended.
    places: Vec<usize>,
    turn: usize,
    /// Until which turn each fiber is left out.
    asleep: Vec<usize>,
}

/// Whose turn it is.
pub(crate) struct Turn {
    pub(crate) fiber: usize,
    /// Points until the next turn.
    pub(crate) fuel: i32,
    /// Plain accesses until the next turn.
    pub(crate) plain_fuel: i32,
}

impl Schedule {
    pub(crate) fn new(order: Order, seed: u64) -> Schedule {
        let random = Random::new(seed);
        Schedule { order, random, ready: Vec::new(), places: Vec::new(), turn: 0, asleep: Vec::new() }
    }

    /// One more fiber, which cannot run yet.
    pub(crate) fn add(&mut self) {
        self.places.push(NOWHERE);
        self.asleep.push(0);
    }

    /// The fiber can run.
    pub(crate) fn wake(&mut self, fiber: usize) {
        if self.places[fiber] == NOWHERE {
            self.places[fiber] = self.ready.len();
            self.ready.push(fiber);
        }
    }

    /// The fiber waits, or has ended.
    pub(crate) fn park(&mut self, fiber: usize) {
        let place = std::mem::replace(&mut self.places[fiber], NOWHERE);
        if place != NOWHERE {
            self.ready.swap_remove(place);
            if let Some(moved) = self.ready.get(place) {
                self.places[*moved] = place;
            }
        }
    }

    pub(crate) fn next(&mut self) -> Option<Turn> {
        if self.ready.is_empty() {
            return None;
        }
        self.turn += 1;
        if self.order == Order::RoundRobin {
            let fiber = self.ready[self.turn % self.ready.len()];
            return Some(Turn { fiber, fuel: 2, plain_fuel: 64 });
        }
        if self.order == Order::Adversarial && self.random.below(ADVERSITY) == 0 {
            self.put_to_sleep();
        }
        let fiber = self.draw();
        let long = self.random.below(4) == 0;
        let fuel = self.random.below(if long { 64 } else { 4 }) as i32;
        Some(Turn { fiber, fuel, plain_fuel: self.random.below(64) as i32 })
    }

    fn draw(&mut self) -> usize {
        let mut fiber = self.ready[self.random.below(self.ready.len())];
        for _ in 0..TRIES {
            if self.asleep[fiber] <= self.turn {
                break;
            }
            fiber = self.ready[self.random.below(self.ready.len())];
        }
        fiber
    }

    /// Leaves out a fiber, its warp or many neighbours for 64 to 65,536 turns.
    fn put_to_sleep(&mut self) {
        let fiber = self.ready[self.random.below(self.ready.len())];
        let neighbours = [1, 32, 256][self.random.below(3)];
        let first = fiber / neighbours * neighbours;
        let until = self.turn + (64 << self.random.below(11));
        for asleep in self.asleep.iter_mut().skip(first).take(neighbours) {
            *asleep = until;
        }
    }
}

const NOWHERE: usize = usize::MAX;

/// One turn in so many leaves somebody out.
const ADVERSITY: usize = 200;

/// Draws before one that is left out runs all the same.
const TRIES: usize = 16;
