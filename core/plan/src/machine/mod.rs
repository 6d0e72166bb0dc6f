//! The machine: the one walk over the programs of all ranks.
//!
//! Every lane of every rank runs its cursor over edges with a fixed number of slots, until all are
//! done or none can go on. What the data *is* belongs to the [`Domain`]: sets of contributions for
//! the verifier ([`provenance`]), time for the cost model ([`clock`]), bytes per edge
//! ([`traffic`]).
//!
//! **Why one walk proves a plan.** Lanes are sequential, an edge has one producing and one consuming
//! lane, and nothing branches on data or timing, so the plan is a Kahn process network: what is
//! computed does not depend on the schedule, a Move that can run stays able to run, and if one fair
//! schedule completes with F slots, all do. The walk checks the premises as it goes: one lane on
//! each side of an edge, and no two lanes of a rank in conflict over memory.

mod case;
pub mod clock;
mod edges;
pub mod entered;
mod fault;
mod fiber;
mod memory;
pub mod numbers;
pub mod provenance;
pub mod tally;
pub mod traffic;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

pub use self::case::{Blocks, Buffers, Case, Seat, Stage};
use self::edges::{Edges, Slot};
pub use self::fault::{At, EdgeName, Failure, Fault, Waiting, Wrong};
use self::fiber::{Fiber, Want};
use crate::cursor::{Action, Site, Step};
use crate::ids::Rank;

/// What data means during a walk.
pub trait Domain {
    /// What a range of elements holds while it travels: the content of a slot or a cell.
    type Value: Clone;
    /// What an empty slot brings back to its sender.
    type Credit: Clone + Default;

    /// A range of the send buffer; `pre` if the scalar is applied.
    fn input(&mut self, who: &Who, offset: usize, count: usize, pre: bool) -> Result<Self::Value, Fault>;

    /// A range of the receive buffer.
    fn output(&mut self, who: &Who, offset: usize, count: usize) -> Result<Self::Value, Fault>;

    /// What a signal carries.
    fn token(&mut self, who: &Who) -> Self::Value;

    /// Puts `more` behind `value`.
    fn join(&mut self, value: &mut Self::Value, more: Self::Value) -> Result<(), Fault>;

    /// The `count` elements of a value from element `start` on.
    fn piece(&mut self, value: &Self::Value, start: usize, count: usize) -> Self::Value;

    /// Folds `right` into `left`.
    fn fold(&mut self, left: &mut Self::Value, right: Self::Value) -> Result<(), Fault>;

    /// Completes a reduction.
    fn post(&mut self, value: &mut Self::Value) -> Result<(), Fault>;

    /// Stores a range of the receive buffer.
    fn store(&mut self, who: &Who, offset: usize, value: &Self::Value) -> Result<(), Fault>;

    /// A step is done: it touched `work`, its sends had to wait for `credits`. Its result may be
    /// stamped.
    fn done(&mut self, who: &Who, work: &Work, credits: &[Self::Credit], value: &mut Self::Value) {
        let _ = (who, work, credits, value);
    }

    /// What goes back with a slot that the step emptied.
    fn credit(&mut self, who: &Who, to: Rank) -> Self::Credit {
        let _ = (who, to);
        Self::Credit::default()
    }

    /// What of `value` reaches the far end of an edge.
    fn travel(&mut self, who: &Who, to: Rank, count: usize, value: &Self::Value) -> Self::Value {
        let _ = (who, to, count);
        value.clone()
    }

    /// What `value` is to the rank so many places further on that has met the same: see [`walk_turned`].
    fn turn(&mut self, value: Self::Value, by: u32) -> Self::Value {
        let _ = by;
        value
    }

    /// All lanes of a rank's channel have met.
    fn barrier(&mut self, who: &Who) {
        let _ = who;
    }
}

/// Which lane a domain is asked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The rank.
    pub rank: Rank,
    /// Index of the lane among all lanes of all channels of the rank, from 0.
    pub lane: u16,
    /// Index of the lane among all lanes of all ranks, from 0.
    pub fiber: u32,
}

/// What one step touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Elements of each operand; 0 for a signal or a wait.
    pub count: usize,
    /// Inputs folded.
    pub inputs: u8,
    /// Outputs stored.
    pub outputs: u8,
    /// Slots filled.
    pub sends: u8,
    /// Slots emptied.
    pub receives: u8,
}

/// A walk that went to its end.
#[derive(Clone, Debug)]
pub struct Walked<D> {
    /// The domain, with what it learned.
    pub domain: D,
    /// Moves, signals and waits carried out.
    pub steps: u64,
}

/// Walks the programs of `stage` in `domain`.
///
/// Fails at the first fault, with the lane and instruction where it happened; a deadlock is a
/// fault of the walk as a whole.
pub fn walk<D: Domain>(stage: &Stage<'_>, domain: D) -> Result<Walked<D>, Failure> {
    walk_of(stage, 0..stage.case.n, domain)
}

/// Walks the program of one rank for all, where every rank does the same turned round: what rank r sends to
/// rank r + d is what r − d sends to r, with the places of all ranks, blocks and chunks d further on. So a
/// rank receives what it has sent itself, and as many steps are walked as one rank has.
///
/// That all ranks do the same is the caller's to know, and places must be ranks.
pub fn walk_turned<D: Domain>(stage: &Stage<'_>, rank: Rank, domain: D) -> Result<Walked<D>, Failure> {
    walk_of(stage, rank.0..rank.0 + 1, domain)
}

fn walk_of<D: Domain>(stage: &Stage<'_>, ranks: Range<u32>, domain: D) -> Result<Walked<D>, Failure> {
    let mut machine = Machine::new(stage, ranks, domain);
    while let Some(fiber) = machine.ready.pop_front() {
        let index = fiber as usize;
        machine.fibers[index].queued = false;
        let result = machine.run(index);
        result.map_err(|fault| Failure { at: Some(machine.fibers[index].at()), fault })?;
    }
    machine.finished()?;
    Ok(Walked { domain: machine.domain, steps: machine.steps })
}

/// What to look out for during a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watch {
    /// Who writes an element of a rank's receive buffer.
    Element(Rank, usize),
    /// Who fills an edge.
    Edge(EdgeName),
}

/// The last step that did what `watch` says, in a walk that goes as far as it can; if none did, the last of the
/// rank in question.
pub(crate) fn last_touch<D: Domain>(stage: &Stage<'_>, domain: D, watch: Watch) -> Option<At> {
    let mut machine = Machine::new(stage, 0..stage.case.n, domain);
    machine.watch = Some(watch);
    while let Some(fiber) = machine.ready.pop_front() {
        let index = fiber as usize;
        machine.fibers[index].queued = false;
        if machine.run(index).is_err() {
            break;
        }
    }
    machine.touched.or(machine.last)
}

struct Machine<'a, D: Domain> {
    n: u32,
    fibers: Vec<Fiber<'a, D::Value>>,
    edges: Edges<D::Value, D::Credit>,
    /// Fibers that may be able to go on.
    ready: VecDeque<u32>,
    domain: D,
    steps: u64,
    watch: Option<Watch>,
    /// The last step that did what is watched for, and the last of its rank.
    touched: Option<At>,
    last: Option<At>,
}

impl<'a, D: Domain> Machine<'a, D> {
    fn new(stage: &'a Stage<'a>, ranks: Range<u32>, domain: D) -> Self {
        let (n, turned) = (stage.case.n, ranks.len() < stage.case.n as usize);
        let fibers = fiber::of(stage, ranks);
        let ready = (0..fibers.len() as u32).collect();
        let edges = Edges::new(stage.case.slots, turned);
        Machine { n, edges, ready, fibers, domain, steps: 0, watch: None, touched: None, last: None }
    }

    /// Runs one fiber as far as it goes.
    fn run(&mut self, index: usize) -> Result<(), Fault> {
        loop {
            if self.fibers[index].pending.is_none() && !self.fetch(index)? {
                return Ok(());
            }
            let Some(action) = self.fibers[index].pending else { return Ok(()) };
            if let Some(want) = self.missing(index, &action) {
                self.fibers[index].want = Some(want);
                return Ok(());
            }
            self.fibers[index].pending = None;
            self.fibers[index].want = None;
            self.steps += 1;
            if let Some(watch) = self.watch {
                self.look(index, &action, watch);
            }
            match action {
                Action::Move(step) => self.moved(index, &step)?,
                Action::Signal(_) => self.signal(index)?,
                Action::Wait(_) => self.wait(index)?,
                Action::Barrier => {}
            }
        }
    }

    /// Gets the fiber's next action and finds its edges; false at the end of the lane.
    fn fetch(&mut self, index: usize) -> Result<bool, Fault> {
        let fiber = &mut self.fibers[index];
        let Some(action) = fiber.cursor.next(fiber.program, &fiber.layout) else {
            fiber.finished = true;
            return Ok(false);
        };
        fiber.pending = Some(action);
        fiber.sends.clear();
        fiber.receives.clear();
        match &action {
            Action::Move(step) => {
                let sites = step.inputs().iter().chain(step.outputs());
                sites.into_iter().try_for_each(|site| self.edges.resolve(fiber, index, site))?;
            }
            Action::Signal(site) | Action::Wait(site) => self.edges.resolve(fiber, index, site)?,
            Action::Barrier => self.arrive(index),
        }
        Ok(true)
    }

    /// Remembers a step that does what is watched for.
    fn look(&mut self, index: usize, action: &Action, watch: Watch) {
        let fiber = &self.fibers[index];
        let (rank, touches) = match watch {
            Watch::Edge(edge) => (edge.from, fiber.sends.iter().any(|id| self.edges.name(*id) == edge)),
            Watch::Element(rank, element) => {
                let Action::Move(step) = action else { return };
                let wrote = |site: &Site| {
                    (0..step.pieces).any(|piece| match step.piece(&fiber.layout, *site, piece) {
                        (Site::Output { offset }, count) => (offset..offset + count).contains(&element),
                        _ => false,
                    })
                };
                (rank, step.outputs().iter().any(wrote))
            }
        };
        if fiber.who.rank == rank {
            self.last = Some(fiber.at());
            self.touched = if touches { self.last } else { self.touched };
        }
    }

    /// What an action still has to wait for.
    fn missing(&self, index: usize, action: &Action) -> Option<Want> {
        let fiber = &self.fibers[index];
        if let Action::Barrier = action {
            return fiber.at_barrier.then_some(Want::Barrier);
        }
        let empty =
            fiber.receives.iter().find(|edge| self.edges.is_empty(**edge)).map(|edge| Want::Slot(*edge));
        empty.or_else(|| {
            fiber.sends.iter().find(|edge| self.edges.is_full(**edge)).map(|edge| Want::Credit(*edge))
        })
    }

    fn moved(&mut self, index: usize, step: &Step) -> Result<(), Fault> {
        let mut receives = 0;
        let mut folded: Option<D::Value> = None;
        for site in step.inputs() {
            let value = self.read(index, site, step, &mut receives)?;
            match &mut folded {
                None => folded = Some(value),
                Some(left) => self.domain.fold(left, value)?,
            }
        }
        let Some(mut value) = folded else { return Ok(()) };
        if step.finish.post {
            self.domain.post(&mut value)?;
        }
        let work = Work {
            count: step.count,
            inputs: step.inputs().len() as u8,
            outputs: step.outputs().len() as u8,
            sends: self.fibers[index].sends.len() as u8,
            receives: receives as u8,
        };
        self.complete(index, &work, &mut value);
        for site in step.outputs() {
            self.write(index, site, step, &value)?;
        }
        self.post_slots(index, step.count, &value);
        Ok(())
    }

    /// Stores a result where it stays, piece by piece.
    fn write(&mut self, index: usize, site: &Site, step: &Step, value: &D::Value) -> Result<(), Fault> {
        if let Site::Receive { .. } | Site::Send { .. } = site {
            return Ok(());
        }
        for piece in 0..step.pieces {
            let (site, count) = step.piece(&self.fibers[index].layout, *site, piece);
            let value = match step.pieces {
                1 => value.clone(),
                _ => self.domain.piece(value, piece * step.piece_count, count),
            };
            match site {
                Site::Output { offset } => {
                    self.domain.store(&self.fibers[index].who, offset, &value)?;
                }
                Site::Scratch { cell } => self.fibers[index].put(cell, count, value)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        index: usize,
        site: &Site,
        step: &Step,
        receives: &mut usize,
    ) -> Result<D::Value, Fault> {
        if let Site::Receive { .. } | Site::Send { .. } = site {
            let edge = self.fibers[index].receives.get(*receives).copied().ok_or(Fault::NotAnEdge)?;
            *receives += 1;
            return self.take(edge, step.count);
        }
        let mut value = self.read_piece(index, site, step, 0)?;
        for piece in 1..step.pieces {
            let more = self.read_piece(index, site, step, piece)?;
            self.domain.join(&mut value, more)?;
        }
        Ok(value)
    }

    fn read_piece(
        &mut self,
        index: usize,
        site: &Site,
        step: &Step,
        piece: usize,
    ) -> Result<D::Value, Fault> {
        let fiber = &self.fibers[index];
        let (site, count) = step.piece(&fiber.layout, *site, piece);
        match site {
            Site::Input { offset } => self.domain.input(&fiber.who, offset, count, step.finish.pre),
            Site::Output { offset } => self.domain.output(&fiber.who, offset, count),
            Site::Scratch { cell } => fiber.cell(cell, count),
            Site::Receive { .. } | Site::Send { .. } => Err(Fault::NotAnEdge),
        }
    }

    /// Empties the oldest slot of an edge, which must hold `count` elements.
    fn take(&mut self, edge: u32, count: usize) -> Result<D::Value, Fault> {
        match self.edges.take(edge) {
            Some(slot) if slot.count == count && self.edges.turned => {
                let EdgeName { from, to, .. } = self.edges.name(edge);
                Ok(self.domain.turn(slot.value, (from.0 + self.n - to.0) % self.n))
            }
            Some(slot) if slot.count == count => Ok(slot.value),
            Some(slot) => {
                Err(Fault::Length { edge: self.edges.name(edge), expected: count, found: slot.count })
            }
            None => Err(Fault::NotAnEdge),
        }
    }

    fn signal(&mut self, index: usize) -> Result<(), Fault> {
        let mut value = self.domain.token(&self.fibers[index].who);
        self.complete(index, &Work { count: 0, inputs: 0, outputs: 1, sends: 1, receives: 0 }, &mut value);
        self.post_slots(index, 0, &value);
        Ok(())
    }

    fn wait(&mut self, index: usize) -> Result<(), Fault> {
        let edge = self.fibers[index].receives.first().copied().ok_or(Fault::NotAnEdge)?;
        let mut value = self.take(edge, 0)?;
        self.complete(index, &Work { count: 0, inputs: 1, outputs: 0, sends: 0, receives: 1 }, &mut value);
        Ok(())
    }

    /// Spends the credits of this step's sends and returns those of its receives.
    fn complete(&mut self, index: usize, work: &Work, value: &mut D::Value) {
        let fiber = &self.fibers[index];
        let credits: [D::Credit; 4] = core::array::from_fn(|k| match fiber.sends.get(k) {
            Some(edge) => self.edges.spend(*edge),
            None => D::Credit::default(),
        });
        let (who, spent) = (fiber.who, fiber.sends.len().min(4));
        self.domain.done(&who, work, &credits[..spent], value);
        for k in 0..self.fibers[index].receives.len() {
            let edge = self.fibers[index].receives[k];
            let credit = self.domain.credit(&who, self.edges.name(edge).from);
            self.edges.refund(edge, credit);
            let producer = self.edges.producer(edge);
            self.wake(producer, Want::Credit(edge));
        }
    }

    fn post_slots(&mut self, index: usize, count: usize, value: &D::Value) {
        let who = self.fibers[index].who;
        for k in 0..self.fibers[index].sends.len() {
            let edge = self.fibers[index].sends[k];
            let value = self.domain.travel(&who, self.edges.to(edge), count, value);
            self.edges.post(edge, Slot { count, value });
            let consumer = self.edges.consumer(edge);
            self.wake(consumer, Want::Slot(edge));
        }
    }

    fn wake(&mut self, fiber: Option<u32>, want: Want) {
        let Some(index) = fiber else { return };
        let fiber = &mut self.fibers[index as usize];
        if fiber.want == Some(want) && !fiber.queued {
            fiber.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Counts a fiber in at its barrier and frees all when it is the last.
    fn arrive(&mut self, index: usize) {
        self.fibers[index].at_barrier = true;
        let mates = self.fibers[index].mates.clone();
        if !self.fibers[mates.clone()].iter().all(|mate| mate.at_barrier) {
            return;
        }
        self.domain.barrier(&self.fibers[index].who);
        for mate in mates {
            self.fibers[mate].at_barrier = false;
            self.wake(Some(mate as u32), Want::Barrier);
        }
    }

    /// All lanes done and nothing left on any edge.
    fn finished(&self) -> Result<(), Failure> {
        if self.fibers.iter().any(|fiber| !fiber.finished) {
            return Err(self.deadlock());
        }
        match self.edges.leftover() {
            None => Ok(()),
            Some((edge, slots)) => {
                Err(Failure { at: None, fault: Fault::Leftover { edge: self.edges.name(edge), slots } })
            }
        }
    }

    /// Follows who waits for whom from the first blocked lane until it comes round.
    fn deadlock(&self) -> Failure {
        let blocked = self.fibers.iter().filter(|fiber| !fiber.finished).count();
        let mut seen = vec![false; self.fibers.len()];
        let mut chain = Vec::new();
        let mut next = self.fibers.iter().position(|fiber| !fiber.finished);
        while let Some(index) = next.filter(|index| !core::mem::replace(&mut seen[*index], true)) {
            let fiber = &self.fibers[index];
            let (on, waits_for) = match fiber.want {
                Some(Want::Slot(edge)) => (Some(self.edges.name(edge)), self.edges.producer(edge)),
                Some(Want::Credit(edge)) => (Some(self.edges.name(edge)), self.edges.consumer(edge)),
                _ => (None, self.absent_mate(index)),
            };
            if chain.len() < MOST_WAITING {
                let for_slot = matches!(fiber.want, Some(Want::Slot(_)));
                chain.push(Waiting { at: fiber.at(), on, for_slot });
            }
            next = waits_for.map(|fiber| fiber as usize).filter(|fiber| !self.fibers[*fiber].finished);
        }
        Failure { at: None, fault: Fault::Deadlock { blocked, chain } }
    }

    fn absent_mate(&self, index: usize) -> Option<u32> {
        let mates = self.fibers[index].mates.clone();
        mates.into_iter().find(|mate| !self.fibers[*mate].at_barrier).map(|mate| mate as u32)
    }
}

/// Most lanes that a deadlock report names.
const MOST_WAITING: usize = 8;
