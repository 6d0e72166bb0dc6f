//! The cursor: walks one lane of a program and says what to do next.
//!
//! Every reader of programs (verifier, cost model, simulator, host executor) uses this one cursor,
//! so they cannot disagree about what a program means. It resolves loops, expressions, passes and
//! ranges; it neither waits nor moves anything, and it allocates nothing.

use crate::ids::{Channel, Rank};
use crate::layout::{Layout, Part, PassChunks};
use crate::program::{
    Edge, Expr, Extent, ExtentOf, Finish, Instruction, Loop, MOVE_OPERANDS, Move, Operand, OperandId,
    Program, Stride, Vars,
};

/// What a lane does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Move `count` elements.
    Move(Step),
    /// Post an empty slot to this edge.
    Signal(Site),
    /// Consume an empty slot from this edge.
    Wait(Site),
    /// Meet the other lanes of this rank's program.
    Barrier,
}

/// One Move for one setting of the loop variables: nothing left to evaluate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Elements moved; never 0.
    pub count: usize,
    /// Pieces that the elements lie in, in user memory and in scratch: the chunks or blocks of a
    /// span. In slots they follow each other without gaps.
    pub pieces: usize,
    /// Elements of each piece; the last may have fewer.
    pub piece_count: usize,
    /// Where the pieces lie.
    pub spread: Spread,
    /// What is applied beside the fold.
    pub finish: Finish,
    inputs: [Site; MOVE_OPERANDS],
    outputs: [Site; MOVE_OPERANDS],
    input_len: u8,
    output_len: u8,
}

impl Step {
    /// Where data comes from, in fold order.
    pub fn inputs(&self) -> &[Site] {
        &self.inputs[..usize::from(self.input_len)]
    }

    /// Where the result goes.
    pub fn outputs(&self) -> &[Site] {
        &self.outputs[..usize::from(self.output_len)]
    }

    /// Where piece `piece` of an operand is, and how many elements it has.
    pub fn piece(&self, layout: &Layout<'_>, site: Site, piece: usize) -> (Site, usize) {
        let skipped = piece * self.piece_count;
        let along = |offset| match layout.is_whole() {
            true => offset + skipped,
            false => layout.blocks_on(offset, self.spread.block(piece)),
        };
        let site = match site {
            Site::Input { offset } => Site::Input { offset: along(offset) },
            Site::Output { offset } => Site::Output { offset: along(offset) },
            Site::Scratch { cell } => Site::Scratch { cell: cell.saturating_add(self.spread.cell(piece)) },
            edge => edge,
        };
        (site, self.piece_count.min(self.count - skipped))
    }
}

/// Where the pieces of a Move lie: one after the other, or the first few of every so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    every: i32,
    run: u32,
    /// Whether blocks are counted around the end of the order.
    around: bool,
    /// Whether cells lie like this, rather than blocks of user memory.
    of_cells: bool,
}

impl Spread {
    /// One after the other, up to the last.
    pub const DENSE: Spread = Spread { every: 1, run: 1, around: false, of_cells: false };

    fn new(program: &Program, m: &Move, stride: Stride, vars: &Vars) -> Spread {
        let value = |expr| Expr::value(&program.exprs, expr, vars);
        let every = i32::try_from(value(stride.every)).unwrap_or(i32::MAX);
        let run = stride.run.map_or(1, value).clamp(1, i64::from(every.unsigned_abs().max(1)));
        Spread { every, run: run as u32, around: true, of_cells: !program.touches_user(m) }
    }

    /// The pieces among so many chunks, blocks or cells.
    fn pieces(self, span: usize) -> usize {
        let (every, run) = (self.every.unsigned_abs().max(1) as usize, self.run as usize);
        span / every * run + (span % every).min(run)
    }

    /// How many blocks from the first a piece lies in user memory, before counting around the end.
    pub fn block(self, piece: usize) -> i64 {
        let far = self.distance(piece) as i64;
        if self.every < 0 { -far } else { far }
    }

    /// How many cells from the first a piece lies in scratch.
    pub fn cell(self, piece: usize) -> usize {
        if self.of_cells { self.distance(piece) } else { piece }
    }

    fn distance(self, piece: usize) -> usize {
        let (every, run) = (self.every.unsigned_abs() as usize, self.run as usize);
        piece / run * every + piece % run
    }
}

/// The elements that a Move covers: where they start in the vector, or in the first block, and how
/// they lie.
struct Stretch {
    start: usize,
    count: usize,
    pieces: usize,
    piece_count: usize,
    spread: Spread,
}

/// An operand with everything evaluated. Offsets are elements from the start of the user's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// The send buffer.
    Input {
        /// First element.
        offset: usize,
    },
    /// The receive buffer.
    Output {
        /// First element.
        offset: usize,
    },
    /// A scratch cell of this lane, from its start.
    Scratch {
        /// Which chunk-sized cell.
        cell: usize,
    },
    /// The next slot from a peer.
    Receive {
        /// The peer.
        peer: Rank,
        /// Which of the parallel edges.
        tag: u8,
    },
    /// The next slot to a peer.
    Send {
        /// The peer.
        peer: Rank,
        /// Which of the parallel edges.
        tag: u8,
    },
}

/// A position in one lane of a program.
#[derive(Clone, Debug)]
pub struct Cursor {
    vars: Vars,
    limits: [i64; 3],
    /// Index of each open loop's first body instruction.
    bodies: [u16; 3],
    depth: u8,
    start: u16,
    end: u16,
    at: u16,
    part: Part,
    pass: usize,
    passes: usize,
    pass_chunks: PassChunks,
}

impl Cursor {
    /// At the start of lane `lane`. `root` is the root's rank, or the peer of a send or receive.
    pub fn new(program: &Program, lane: usize, channel: Channel, layout: &Layout<'_>, root: Rank) -> Cursor {
        let lane = program.lanes[lane];
        let part = layout.part(channel, lane.share, lane.shares);
        let data_passes = layout.passes(part, program.chunks);
        let moves_data = layout.collective != crate::Collective::Barrier;
        let mut cursor = Cursor {
            vars: Vars {
                place: i64::from(layout.place_of(layout.rank)),
                root: i64::from(layout.place_of(root)),
                n: i64::from(layout.n),
                v: [0; 3],
            },
            limits: [0; 3],
            bodies: [0; 3],
            depth: 0,
            start: lane.start,
            end: lane.end,
            at: lane.start,
            part,
            pass: 0,
            passes: if moves_data { data_passes } else { 1 },
            pass_chunks: PassChunks::default(),
        };
        cursor.enter_pass(program, layout);
        cursor
    }

    /// The next thing to do, or `None` when the lane is done. Skips Moves of empty ranges.
    #[inline]
    pub fn next(&mut self, program: &Program, layout: &Layout<'_>) -> Option<Action> {
        while self.pass < self.passes {
            let at = self.at;
            if at >= self.end {
                self.end_pass(program, layout);
                continue;
            }
            self.at += 1;
            match &program.instructions[usize::from(at)] {
                Instruction::Move(m) => {
                    if let Some(step) = self.step(program, layout, m) {
                        return Some(Action::Move(step));
                    }
                }
                Instruction::Loop(l) => self.open(l, at),
                Instruction::EndLoop => self.turn(),
                Instruction::Signal(id) => {
                    return Some(Action::Signal(self.site(program, layout, *id, 0, 0)));
                }
                Instruction::Wait(id) => return Some(Action::Wait(self.site(program, layout, *id, 0, 0))),
                Instruction::Barrier => return Some(Action::Barrier),
                Instruction::End => self.end_pass(program, layout),
            }
        }
        None
    }

    /// Index of the instruction last returned, for reports.
    pub fn instruction(&self) -> usize {
        usize::from(self.at.saturating_sub(1))
    }

    /// The pass the cursor is in, from 0.
    pub fn pass(&self) -> usize {
        self.pass
    }

    /// The loop variables' values, for reports.
    pub fn loop_vars(&self) -> [i64; 3] {
        self.vars.v
    }

    fn enter_pass(&mut self, program: &Program, layout: &Layout<'_>) {
        self.at = self.start;
        self.depth = 0;
        if layout.is_whole() {
            self.pass_chunks = layout.pass_chunks(self.part, program.chunks, self.pass);
        }
    }

    fn end_pass(&mut self, program: &Program, layout: &Layout<'_>) {
        self.pass += 1;
        if self.pass < self.passes {
            self.enter_pass(program, layout);
        }
    }

    fn open(&mut self, l: &Loop, at: u16) {
        let (from, to) = (l.from.value(&self.vars), l.to.value(&self.vars));
        if from >= to {
            self.at = l.end + 1;
            return;
        }
        let depth = usize::from(self.depth);
        self.vars.v[depth] = from;
        self.limits[depth] = to;
        self.bodies[depth] = at + 1;
        self.depth += 1;
    }

    fn turn(&mut self) {
        let depth = usize::from(self.depth) - 1;
        self.vars.v[depth] += 1;
        if self.vars.v[depth] < self.limits[depth] {
            self.at = self.bodies[depth];
        } else {
            self.vars.v[depth] = 0;
            self.depth -= 1;
        }
    }

    #[inline]
    fn step(&self, program: &Program, layout: &Layout<'_>, m: &Move) -> Option<Step> {
        let index = Expr::value(&program.exprs, m.extent.index, &self.vars);
        let span = m.extent.span.map_or(1, |span| Expr::value(&program.exprs, span, &self.vars));
        let stretch = match m.extent.stride {
            None => self.stretch(layout, m.extent, index, span)?,
            Some(stride) => {
                let spread = Spread::new(program, m, stride, &self.vars);
                self.spread_out(layout, m.extent, index, span, spread)?
            }
        };
        let nowhere = Site::Input { offset: 0 };
        let mut step = Step {
            count: stretch.count,
            pieces: stretch.pieces,
            piece_count: stretch.piece_count,
            spread: stretch.spread,
            finish: m.finish,
            inputs: [nowhere; MOVE_OPERANDS],
            outputs: [nowhere; MOVE_OPERANDS],
            input_len: m.inputs.as_slice().len() as u8,
            output_len: m.outputs.as_slice().len() as u8,
        };
        for (site, id) in step.inputs.iter_mut().zip(m.inputs.as_slice()) {
            *site = self.site(program, layout, *id, index, stretch.start);
        }
        for (site, id) in step.outputs.iter_mut().zip(m.outputs.as_slice()) {
            *site = self.site(program, layout, *id, index, stretch.start);
        }
        Some(step)
    }

    /// What a Move covers; `None` if there is nothing in it.
    #[inline]
    fn stretch(&self, layout: &Layout<'_>, extent: Extent, index: i64, span: i64) -> Option<Stretch> {
        let first = usize::try_from(index).ok()?;
        let span = usize::try_from(span).ok().filter(|span| *span > 0)?;
        let (range, end) = match extent.of {
            ExtentOf::Chunk => {
                let last = first.saturating_add(span - 1);
                (self.pass_chunks.chunk(first), self.pass_chunks.chunk(last).end)
            }
            _ if first >= layout.n as usize => return None,
            of => {
                let range = layout.block_pass(of, layout.rank_at(index), self.part, self.pass);
                let end = range.start + span.min(layout.n as usize - first) * range.len();
                (range, end)
            }
        };
        // Only the last piece may be short: a first that is has nothing behind it.
        let piece_count = range.len();
        let count = end - range.start;
        (count > 0).then(|| Stretch {
            start: range.start,
            count,
            pieces: if span == 1 { 1 } else { count.div_ceil(piece_count) },
            piece_count,
            spread: Spread::DENSE,
        })
    }

    /// As [`stretch`](Cursor::stretch) where only some blocks of the span are covered.
    fn spread_out(
        &self,
        layout: &Layout<'_>,
        extent: Extent,
        index: i64,
        span: i64,
        spread: Spread,
    ) -> Option<Stretch> {
        let n = layout.n as usize;
        let span = usize::try_from(span).ok().filter(|span| *span > 0)?.min(n);
        usize::try_from(index).ok().filter(|first| *first < n)?;
        let range = layout.block_pass(extent.of, layout.rank_at(index), self.part, self.pass);
        let (pieces, piece_count) = (spread.pieces(span), range.len());
        let count = pieces * piece_count;
        (count > 0).then_some(Stretch { start: range.start, count, pieces, piece_count, spread })
    }

    fn site(&self, program: &Program, layout: &Layout<'_>, id: OperandId, index: i64, start: usize) -> Site {
        let value = |expr| Expr::value(&program.exprs, expr, &self.vars);
        let peer = |edge: Edge| layout.rank_at(value(edge.peer));
        match program.operands[usize::from(id)] {
            Operand::Input(block) => {
                let block = layout.rank_at(block.map_or(index, value));
                Site::Input { offset: layout.input_offset(block) + start }
            }
            Operand::Output(block) => {
                let block = layout.rank_at(block.map_or(index, value));
                Site::Output { offset: layout.output_offset(block) + start }
            }
            Operand::Scratch(cell) => {
                Site::Scratch { cell: usize::try_from(value(cell)).unwrap_or(usize::MAX) }
            }
            Operand::Receive(edge) => Site::Receive { peer: peer(edge), tag: edge.tag },
            Operand::Send(edge) => Site::Send { peer: peer(edge), tag: edge.tag },
        }
    }
}
