//! The domain of contributions: which ranks are in each element, where it came from, in which order
//! it was folded, and what was applied to it.
//!
//! With [`Exact`](super::tally::Exact) tallies it is a proof, up to 128 ranks; with
//! [`Nonce`](super::tally::Nonce) tallies it holds for any number, up to an accident of 2⁻⁶⁴, and with
//! [`Span`](super::tally::Span) tallies one rank can be walked for all: see [`super::walk_turned`].

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::fault::{Fault, Wrong};
use super::memory::Memory;
use super::tally::{Tally, mix};
use super::{Domain, Stage, Who};
use crate::contract::Contributors;
use crate::ids::Rank;
use crate::level::Level;

/// The walk's data as contributions.
pub struct Provenance<T> {
    /// The memory of all ranks, or of the only one.
    ranks: Vec<Memory<T>>,
    first: Rank,
    reduces: bool,
    /// What the only rank sends.
    turned: Option<(Turning, Vec<Sent<T>>)>,
}

/// What a rank sent, as rank 0 would have.
#[derive(Clone, PartialEq, Debug)]
pub struct Sent<T> {
    lane: u16,
    distance: u32,
    strip: Option<Strip<T>>,
}

/// How the elements of a walk's results were folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Orders {
    /// Nothing was folded.
    None,
    /// All by the expression with this digest: their bits do not depend on where they lie.
    Same(u64),
    /// By several.
    Mixed,
}

/// What happens to data where every rank is moved to another place of the order, all by as many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turning {
    /// How many ranks there are.
    pub n: u32,
    /// What of the data has a place.
    pub data: Turned,
}

/// What of the data has a place in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turned {
    /// Neither chunks nor blocks.
    Nothing,
    /// The blocks of send buffers.
    Blocks,
    /// n chunks of so many elements, in every pass.
    Chunks(usize),
}

/// A block of a send buffer and an element of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(u64);

/// What one element holds. In a [`Strip`], the next elements have the next origins.
#[derive(Clone, PartialEq, Debug)]
pub struct Run<T> {
    tally: T,
    origin: Origin,
    /// Digest of the fold expression.
    order: u64,
    pre: bool,
    post: bool,
}

/// What a range of elements holds: nearly always one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Strip<T> {
    first: Run<T>,
    first_count: usize,
    more: Vec<(Run<T>, usize)>,
}

impl<T: Tally> Provenance<T> {
    /// All buffers before the collective.
    pub fn new(stage: &Stage<'_>) -> Provenance<T> {
        let all = T::all(stage.case.n);
        let ranks = (0..stage.case.n).map(|rank| Memory::new(stage, Rank(rank), all.clone())).collect();
        Provenance { ranks, first: Rank(0), reduces: stage.collective.reduces(), turned: None }
    }

    /// The buffers of one rank before the collective.
    pub fn of_one(stage: &Stage<'_>, rank: Rank, turning: Turning) -> Provenance<T> {
        let memory = Memory::new(stage, rank, T::all(stage.case.n));
        let turned = Some((turning, Vec::new()));
        Provenance { ranks: [memory].into(), first: rank, reduces: stage.collective.reduces(), turned }
    }

    /// What the only rank sent, lane by lane.
    pub fn sent(self) -> Vec<Sent<T>> {
        let mut sent = self.turned.map_or(Vec::new(), |(_, sent)| sent);
        sent.sort_by_key(|sent| sent.lane);
        sent
    }

    /// Judges what the ranks hold after the walk by the collective's contract.
    pub fn judge(&self, stage: &Stage<'_>) -> Result<Orders, Fault> {
        let all = T::all(stage.case.n);
        let mut orders = Vec::new();
        let mut seen = Orders::None;
        for (rank, memory) in (self.first.0..).map(Rank).zip(&self.ranks) {
            for (block, (offset, count)) in stage.output_blocks(rank).into_iter().enumerate() {
                let due = stage.collective.due(rank, block as u32, stage.source());
                let tally = match due.from {
                    Contributors::All => all.clone(),
                    Contributors::One(one) => T::one(one, stage.case.n),
                };
                for element in 0..count {
                    let origin = Origin::new(due.block, element);
                    let found = memory.element(offset + element);
                    let right = found.is_some_and(|run| self.is(run, &tally, origin));
                    let Some(run) = found.filter(|_| right) else {
                        return Err(self.wrong(rank, block, element, &tally, origin, found));
                    };
                    if due.from == Contributors::All {
                        seen = seen.and(Orders::Same(run.order));
                        agree(&mut orders, stage, rank, element, run.order)?;
                    }
                }
            }
        }
        Ok(seen)
    }

    fn memory(&mut self, who: &Who) -> &mut Memory<T> {
        &mut self.ranks[who.rank.index() - self.first.index()]
    }

    fn is(&self, run: &Run<T>, tally: &T, origin: Origin) -> bool {
        run.tally == *tally && run.origin == origin && (run.pre, run.post) == (self.reduces, self.reduces)
    }

    fn wrong(
        &self,
        rank: Rank,
        block: usize,
        element: usize,
        tally: &T,
        origin: Origin,
        found: Option<&Run<T>>,
    ) -> Fault {
        let wanted = Run { tally: tally.clone(), origin, order: 0, pre: self.reduces, post: self.reduces };
        Fault::Wrong(Box::new(Wrong {
            rank,
            block: block as u32,
            element,
            expected: wanted.describe(),
            found: found.map_or_else(|| "nothing".into(), Run::describe),
        }))
    }
}

impl<T: Tally> Domain for Provenance<T> {
    type Value = Option<Strip<T>>;
    type Credit = ();

    fn input(&mut self, who: &Who, offset: usize, count: usize, pre: bool) -> Result<Self::Value, Fault> {
        self.memory(who).input(who, offset, count, pre).map(Some)
    }

    fn output(&mut self, who: &Who, offset: usize, count: usize) -> Result<Self::Value, Fault> {
        self.memory(who).output(who, offset, count).map(Some)
    }

    fn token(&mut self, _: &Who) -> Self::Value {
        None
    }

    fn join(&mut self, value: &mut Self::Value, more: Self::Value) -> Result<(), Fault> {
        match (value, more) {
            (Some(value), Some(more)) => value.join(more),
            _ => return Err(Fault::NotAnEdge),
        }
        Ok(())
    }

    fn piece(&mut self, value: &Self::Value, start: usize, count: usize) -> Self::Value {
        value.as_ref().and_then(|strip| strip.piece(start, count))
    }

    fn fold(&mut self, left: &mut Self::Value, right: Self::Value) -> Result<(), Fault> {
        match (left, right) {
            (Some(left), Some(right)) => left.fold(right, self.reduces),
            _ => Err(Fault::NotAnEdge),
        }
    }

    fn post(&mut self, value: &mut Self::Value) -> Result<(), Fault> {
        value.as_mut().map_or(Ok(()), Strip::apply_post)
    }

    fn store(&mut self, who: &Who, offset: usize, value: &Self::Value) -> Result<(), Fault> {
        let strip = value.as_ref().ok_or(Fault::NotAnEdge)?;
        self.memory(who).store(who, offset, strip)
    }

    fn travel(&mut self, who: &Who, to: Rank, _: usize, value: &Self::Value) -> Self::Value {
        if let Some((turning, sent)) = &mut self.turned {
            let back = turning.n - who.rank.0;
            let strip = value.as_ref().map(|strip| strip.turned(*turning, back));
            sent.push(Sent { lane: who.lane, distance: (to.0 + back) % turning.n, strip });
        }
        value.clone()
    }

    fn turn(&mut self, value: Self::Value, by: u32) -> Self::Value {
        let turning = self.turned.as_ref().map(|(turning, _)| *turning);
        value.map(|strip| turning.map_or_else(|| strip.clone(), |turning| strip.turned(turning, by)))
    }

    fn barrier(&mut self, who: &Who) {
        self.memory(who).barrier();
    }
}

impl Orders {
    /// By the canonical tree: what of m ranks stands below the largest power of two below m with the rest.
    pub fn in_tree(n: u32) -> Orders {
        fn order(first: u32, m: u32) -> u64 {
            let half = m.next_power_of_two() / 2;
            match m {
                0 | 1 => mix(!u64::from(first)),
                _ => mix(order(first, half) ^ mix(order(first + half, m - half))),
            }
        }
        Orders::Same(order(0, n))
    }

    /// What results whose elements were folded so promise among `n` ranks.
    pub fn level(self, n: u32) -> Level {
        match self {
            Orders::Mixed => Level::Run,
            Orders::Same(_) if self != Orders::in_tree(n) => Level::Size,
            _ => Level::World,
        }
    }

    /// What two walks say together.
    pub fn and(self, other: Orders) -> Orders {
        match (self, other) {
            (Orders::None, orders) | (orders, Orders::None) => orders,
            (left, right) if left == right => left,
            _ => Orders::Mixed,
        }
    }
}

impl Origin {
    pub(super) fn new(block: u32, element: usize) -> Origin {
        Origin(u64::from(block) << ELEMENT_BITS | element as u64)
    }

    fn parts(self) -> (u32, u64) {
        ((self.0 >> ELEMENT_BITS) as u32, self.0 & ((1 << ELEMENT_BITS) - 1))
    }

    fn turned(self, turning: Turning, by: u32) -> Origin {
        let (block, element) = self.parts();
        let (n, element) = (u64::from(turning.n), element as usize);
        match turning.data {
            Turned::Nothing => self,
            Turned::Blocks => Origin::new((block + by) % turning.n, element),
            Turned::Chunks(count) => {
                let chunk = (element / count) as u64;
                let turned = chunk / n * n + (chunk + u64::from(by)) % n;
                Origin::new(block, turned as usize * count + element % count)
            }
        }
    }

    fn plus(self, elements: usize) -> Origin {
        Origin(self.0 + elements as u64)
    }
}

impl<T: Tally> Run<T> {
    /// A rank's own contribution, untouched.
    pub(super) fn raw(rank: Rank, n: u32, origin: Origin) -> Run<T> {
        Run { tally: T::one(rank, n), origin, order: T::leaf(rank), pre: false, post: false }
    }

    /// Whether this is a rank's own contribution, untouched.
    pub(super) fn is_raw(&self, rank: Rank, n: u32) -> bool {
        !self.pre && !self.post && self.tally == T::one(rank, n)
    }

    /// Whether this holds all contributions to the element that `other` is of.
    pub(super) fn completes(&self, all: &T, other: Option<&Run<T>>) -> bool {
        self.tally == *all && other.is_some_and(|other| other.origin == self.origin)
    }

    fn at(&self, elements: usize) -> Run<T> {
        Run { origin: self.origin.plus(elements), ..self.clone() }
    }

    /// Whether `next`, `elements` further on, continues this run.
    fn goes_on(&self, next: &Run<T>, elements: usize) -> bool {
        self.origin.plus(elements) == next.origin
            && self.order == next.order
            && (self.pre, self.post) == (next.pre, next.post)
            && self.tally == next.tally
    }

    fn fold(&mut self, right: &Run<T>, reduces: bool) -> Result<(), Fault> {
        if self.origin != right.origin {
            return Err(Fault::Origin { left: self.origin.parts(), right: right.origin.parts() });
        }
        if self.post || right.post {
            return Err(Fault::Post);
        }
        if !(self.pre && right.pre && reduces) {
            return Err(Fault::Pre);
        }
        self.order = mix(self.order ^ mix(right.order));
        self.tally.join(&right.tally).map_err(|both| Fault::Duplicate { both: both.into() })
    }

    fn describe(&self) -> String {
        let (block, element) = self.origin.parts();
        let applied = match (self.pre, self.post) {
            (false, false) => "",
            (true, false) => ", incomplete",
            (true, true) => ", complete",
            (false, true) => ", complete without its scalar",
        };
        format!("{} to element {element} of block {block}{applied}", self.tally.describe())
    }
}

impl<T: Tally> Strip<T> {
    pub(super) fn of(run: Run<T>, count: usize) -> Strip<T> {
        Strip { first: run, first_count: count, more: Vec::new() }
    }

    /// Adds one element at the end.
    pub(super) fn push(&mut self, run: &Run<T>) {
        let (last, count) = match self.more.last_mut() {
            Some((last, count)) => (&*last, count),
            None => (&self.first, &mut self.first_count),
        };
        if last.goes_on(run, *count) {
            *count += 1;
        } else {
            self.more.push((run.clone(), 1));
        }
    }

    /// Adds what another strip holds at the end.
    fn join(&mut self, more: Strip<T>) {
        for (run, count) in core::iter::once((more.first, more.first_count)).chain(more.more) {
            let (last, length) = match self.more.last_mut() {
                Some((last, length)) => (&*last, length),
                None => (&self.first, &mut self.first_count),
            };
            if last.goes_on(&run, *length) {
                *length += count;
            } else {
                self.more.push((run, count));
            }
        }
    }

    /// `count` elements from `start` on; `None` if there are none.
    fn piece(&self, start: usize, count: usize) -> Option<Strip<T>> {
        let (mut at, end) = (0, start + count);
        let mut piece: Option<Strip<T>> = None;
        let first = core::iter::once((&self.first, self.first_count));
        for (run, length) in first.chain(self.more.iter().map(|(run, length)| (run, *length))) {
            let (from, to) = (start.max(at), end.min(at + length));
            if from < to {
                let part = Strip::of(run.at(from - at), to - from);
                match &mut piece {
                    None => piece = Some(part),
                    Some(piece) => piece.join(part),
                }
            }
            at += length;
        }
        piece
    }

    /// What another rank holds that did the same, so many places further on.
    fn turned(&self, turning: Turning, by: u32) -> Strip<T> {
        let turn =
            |run: Run<T>| Run { tally: run.tally.turned(by), origin: run.origin.turned(turning, by), ..run };
        let mut elements = self.elements().map(turn);
        let first = elements.next().unwrap_or_else(|| turn(self.first.clone()));
        elements.fold(Strip::of(first, 1), |mut strip, run| {
            strip.push(&run);
            strip
        })
    }

    pub(super) fn count(&self) -> usize {
        self.first_count + self.more.iter().map(|(_, count)| count).sum::<usize>()
    }

    /// Element by element.
    pub(super) fn elements(&self) -> impl Iterator<Item = Run<T>> {
        let first = core::iter::once((&self.first, self.first_count));
        let runs = first.chain(self.more.iter().map(|(run, count)| (run, *count)));
        runs.flat_map(|(run, count)| (0..count).map(|element| run.at(element)))
    }

    pub(super) fn apply_pre(&mut self) -> Result<(), Fault> {
        self.runs().try_for_each(|run| match core::mem::replace(&mut run.pre, true) {
            false => Ok(()),
            true => Err(Fault::Pre),
        })
    }

    fn apply_post(&mut self) -> Result<(), Fault> {
        self.runs().try_for_each(|run| match core::mem::replace(&mut run.post, true) {
            false => Ok(()),
            true => Err(Fault::Post),
        })
    }

    fn runs(&mut self) -> impl Iterator<Item = &mut Run<T>> {
        core::iter::once(&mut self.first).chain(self.more.iter_mut().map(|(run, _)| run))
    }

    fn fold(&mut self, right: Strip<T>, reduces: bool) -> Result<(), Fault> {
        if self.more.is_empty() && right.more.is_empty() {
            return self.first.fold(&right.first, reduces);
        }
        let mut elements = self.elements().zip(right.elements());
        let mut folded: Option<Strip<T>> = None;
        elements.try_for_each(|(mut run, right)| {
            run.fold(&right, reduces)?;
            match &mut folded {
                None => folded = Some(Strip::of(run, 1)),
                Some(strip) => strip.push(&run),
            }
            Ok(())
        })?;
        drop(elements);
        folded.map_or(Ok(()), |folded| {
            *self = folded;
            Ok(())
        })
    }
}

/// Where several ranks hold the same element, all must have folded it like the first.
fn agree(
    orders: &mut Vec<u64>,
    stage: &Stage<'_>,
    rank: Rank,
    element: usize,
    order: u64,
) -> Result<(), Fault> {
    if stage.collective != crate::Collective::AllReduce {
        return Ok(());
    }
    match orders.get(element) {
        None => orders.push(order),
        Some(first) if *first == order => {}
        Some(_) => return Err(Fault::Disagree { rank, element }),
    }
    Ok(())
}

/// Bits of an origin that tell the element.
const ELEMENT_BITS: u32 = 40;
