//! A fiber: one lane of one channel of one rank, and where it stands.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::Who;
use super::case::Stage;
use super::fault::{At, Fault};
use crate::cursor::{Action, Cursor};
use crate::ids::{Channel, Rank};
use crate::layout::Layout;
use crate::program::{Checked, Program};

pub(super) struct Fiber<'a, V> {
    pub(super) who: Who,
    pub(super) channel: Channel,
    pub(super) program: &'a Program,
    pub(super) layout: Layout<'a>,
    pub(super) cursor: Cursor,
    /// The action that the fiber is about to carry out.
    pub(super) pending: Option<Action>,
    /// The edges that the action takes a slot from, and fills one of.
    pub(super) receives: Vec<u32>,
    pub(super) sends: Vec<u32>,
    pub(super) want: Option<Want>,
    pub(super) queued: bool,
    pub(super) finished: bool,
    pub(super) at_barrier: bool,
    /// The fibers of the same rank and channel.
    pub(super) mates: Range<usize>,
    lane: usize,
    cells: Vec<Option<(usize, V)>>,
}

/// What a fiber waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// A filled slot on an edge.
    Slot(u32),
    /// An empty slot on an edge.
    Credit(u32),
    /// The other lanes.
    Barrier,
}

/// The fibers of those ranks that have a seat.
pub(super) fn of<'a, V: Clone>(stage: &'a Stage<'a>, ranks: Range<u32>) -> Vec<Fiber<'a, V>> {
    let mut fibers = Vec::new();
    for rank in ranks.map(Rank) {
        let Some(seat) = stage.seat(rank) else { continue };
        let layout = stage.layout(rank);
        for channel in 0..stage.case.channels {
            let lanes = seat.program.lanes.len();
            let mates = fibers.len()..fibers.len() + lanes;
            for lane in 0..lanes {
                let who =
                    Who { rank, lane: channel * lanes as u16 + lane as u16, fiber: fibers.len() as u32 };
                fibers.push(Fiber::new(
                    who,
                    lane,
                    Channel(channel),
                    seat.program,
                    layout,
                    seat.root,
                    mates.clone(),
                ));
            }
        }
    }
    fibers
}

impl<'a, V: Clone> Fiber<'a, V> {
    fn new(
        who: Who,
        lane: usize,
        channel: Channel,
        program: &'a Checked,
        layout: Layout<'a>,
        root: Rank,
        mates: Range<usize>,
    ) -> Self {
        Fiber {
            who,
            channel,
            program,
            layout,
            cursor: Cursor::new(program, lane, channel, &layout, root),
            pending: None,
            receives: Vec::new(),
            sends: Vec::new(),
            want: None,
            queued: true,
            finished: false,
            at_barrier: false,
            mates,
            lane,
            cells: vec![None; usize::from(program.scratch_chunks)],
        }
    }

    /// What a cell of scratch holds, which must be `count` elements.
    pub(super) fn cell(&self, cell: usize, count: usize) -> Result<V, Fault> {
        match self.cells.get(cell) {
            None => Err(Fault::Cell { cell }),
            Some(None) => Err(Fault::UndefinedCell { cell }),
            Some(Some((found, value))) if *found == count => Ok(value.clone()),
            Some(Some((found, _))) => Err(Fault::CellLength { cell, expected: count, found: *found }),
        }
    }

    pub(super) fn put(&mut self, cell: usize, count: usize, value: V) -> Result<(), Fault> {
        *self.cells.get_mut(cell).ok_or(Fault::Cell { cell })? = Some((count, value));
        Ok(())
    }
}

impl<V> Fiber<'_, V> {
    pub(super) fn at(&self) -> At {
        At {
            rank: self.who.rank,
            channel: self.channel,
            lane: self.lane,
            instruction: self.cursor.instruction(),
            pass: self.cursor.pass(),
            loop_vars: self.cursor.loop_vars(),
        }
    }
}
