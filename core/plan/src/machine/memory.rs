//! A rank's user buffers during a walk: what each element holds, and which lanes touched it.

use alloc::vec::Vec;
use core::ops::Range;

use super::Who;
use super::case::Stage;
use super::fault::Fault;
use super::provenance::{Origin, Run, Strip};
use super::tally::Tally;
use crate::ids::Rank;

/// The buffers of one rank. They may be one.
pub(super) struct Memory<T> {
    rank: Rank,
    cells: Vec<Cell<T>>,
    /// Blocks of the send buffer.
    brings: Vec<(usize, usize)>,
    /// Index of the first cell of each buffer; `None` for a send buffer apart, which is never
    /// written and needs no cells.
    input: Option<usize>,
    output: usize,
    n: u32,
    /// What a complete reduction holds.
    all: T,
}

#[derive(Clone)]
struct Cell<T> {
    run: Option<Run<T>>,
    /// Whether the element belongs to a block of the receive buffer.
    gets: bool,
    /// The lane that wrote it, plus one.
    writer: u16,
    /// The lane that read it, plus one, or [`MANY`].
    reader: u16,
    /// Whether it was read more than once.
    again: bool,
}

impl<T: Tally> Memory<T> {
    /// The buffers before the collective.
    pub(super) fn new(stage: &Stage<'_>, rank: Rank, all: T) -> Memory<T> {
        let (brings, gets) = (stage.input_blocks(rank), stage.output_blocks(rank));
        let overlap = stage.overlap(rank);
        let output = overlap.map_or(0, |overlap| overlap.max(0) as usize);
        let input = overlap.map(|overlap| (-overlap).max(0) as usize);
        let end_of = |blocks: &[(usize, usize)]| blocks.iter().map(|(at, len)| at + len).max().unwrap_or(0);
        let len = (output + end_of(&gets)).max(input.map_or(0, |input| input + end_of(&brings)));
        let blank = Cell { run: None, gets: false, writer: 0, reader: 0, again: false };
        let (cells, n) = (alloc::vec![blank; len], stage.case.n);
        let mut memory = Memory { rank, cells, brings, input, output, n, all };
        for (offset, count) in gets {
            memory.cells[output + offset..][..count].iter_mut().for_each(|cell| cell.gets = true);
        }
        memory.fill();
        memory
    }

    /// Puts the rank's own contribution where the send buffer has cells.
    fn fill(&mut self) {
        let Some(input) = self.input else { return };
        for (block, (offset, count)) in self.brings.iter().enumerate() {
            for element in 0..*count {
                let run = Run::raw(self.rank, self.n, Origin::new(block as u32, element));
                self.cells[input + offset + element].run = Some(run);
            }
        }
    }

    pub(super) fn input(
        &mut self,
        who: &Who,
        offset: usize,
        count: usize,
        pre: bool,
    ) -> Result<Strip<T>, Fault> {
        let outside = Fault::Range { buffer: "send", offset, count };
        let (block, element) = self.locate(offset, count).ok_or(outside)?;
        let mut strip = match self.input {
            None => Strip::of(Run::raw(self.rank, self.n, Origin::new(block, element)), count),
            Some(input) => self.read(who, input + offset, count)?,
        };
        if pre {
            strip.apply_pre()?;
        }
        Ok(strip)
    }

    pub(super) fn output(&mut self, who: &Who, offset: usize, count: usize) -> Result<Strip<T>, Fault> {
        self.read(who, self.output + offset, count)
    }

    pub(super) fn store(&mut self, who: &Who, offset: usize, strip: &Strip<T>) -> Result<(), Fault> {
        let range = self.output + offset..self.output + offset + strip.count();
        let outside = Fault::Range { buffer: "receive", offset, count: strip.count() };
        let cells = self.cells.get_mut(range.clone()).ok_or(outside.clone())?;
        let me = who.lane + 1;
        for ((at, cell), run) in range.zip(cells).zip(strip.elements()) {
            if !cell.gets {
                return Err(outside);
            }
            if cell.run.as_ref() == Some(&run) {
                continue;
            }
            let apart = |lane: u16| lane == 0 || lane == me;
            // The own contribution may have been read once by another lane if it is part of what
            // overwrites it: it must have been read before.
            let contributed = || {
                let own = cell.run.as_ref().is_some_and(|own| own.is_raw(self.rank, self.n));
                !cell.again && own && run.completes(&self.all, cell.run.as_ref())
            };
            if !(apart(cell.writer) && (apart(cell.reader) || contributed())) {
                return Err(Fault::Race { offset: at });
            }
            cell.run = Some(run);
            cell.writer = me;
        }
        Ok(())
    }

    /// What an element of the receive buffer holds.
    pub(super) fn element(&self, offset: usize) -> Option<&Run<T>> {
        self.cells.get(self.output + offset)?.run.as_ref()
    }

    /// The lanes of the rank have met: what they touched before is in order.
    pub(super) fn barrier(&mut self) {
        for cell in &mut self.cells {
            (cell.writer, cell.reader, cell.again) = (0, 0, false);
        }
    }

    fn read(&mut self, who: &Who, at: usize, count: usize) -> Result<Strip<T>, Fault> {
        let range: Range<usize> = at..at + count;
        let cells = self.cells.get_mut(range.clone());
        let cells =
            cells.ok_or(Fault::Range { buffer: "receive", offset: at - self.output.min(at), count })?;
        let mut strip: Option<Strip<T>> = None;
        for (at, cell) in range.zip(cells) {
            let run = cell.run.as_ref().ok_or(Fault::Undefined { offset: at })?;
            let me = who.lane + 1;
            if cell.writer != 0 && cell.writer != me {
                return Err(Fault::Race { offset: at });
            }
            cell.again |= cell.reader != 0;
            cell.reader = if cell.reader == 0 || cell.reader == me { me } else { MANY };
            match &mut strip {
                None => strip = Some(Strip::of(run.clone(), 1)),
                Some(strip) => strip.push(run),
            }
        }
        strip.ok_or(Fault::Undefined { offset: at })
    }

    /// The block and element of a range of the send buffer, which must lie in one block.
    fn locate(&self, offset: usize, count: usize) -> Option<(u32, usize)> {
        let index = self.brings.partition_point(|(at, _)| *at <= offset).checked_sub(1)?;
        let (at, len) = self.brings[index];
        (offset + count <= at + len).then_some((index as u32, offset - at))
    }
}

/// Read by more than one lane.
const MANY: u16 = u16::MAX;
