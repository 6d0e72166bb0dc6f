//! Tapes: what the cursors of a call say, written down once and replayed.
//!
//! Most jobs repeat a few calls. Evaluating a short program costs more than moving its bytes, so the
//! steps of a call that has few are kept beside its plan, with user offsets in bytes and edges looked
//! up. Replaying them is running the same program: a [`Tape`] is made by the same [`Cursor`] that a
//! longer call follows step by step, and both are executed by the same code.

use ccl_plan::cursor::{Action, Cursor, Site, Spread, Step};
use ccl_plan::layout::Layout;
use ccl_plan::program::Checked;
use ccl_plan::{Channel, Rank, ReduceOp, Shape};

use super::host::edge_tag;
use super::lending::{Lending, Sending};
use super::reduce::Finish;
use crate::error::{Error, Result};
use crate::request::Bound;
use crate::transport::{EdgeIndex, Fabric, Lends};

/// The steps of all lanes of one rank.
pub(crate) struct Tape {
    entries: Box<[Entry]>,
    /// First entry of each lane, and the end.
    lanes: Box<[u32]>,
    /// Whether short calls have a shorter way through all steps.
    plain: bool,
    /// All steps as one, if they are those of a message that may go so.
    whole: Option<Entry>,
}

/// One step with nothing left to evaluate.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) finish: Finish,
    /// How what is made gets to peers.
    pub(super) handing: Handing,
    /// Whether it is what the entry before it in its lane has sent.
    pub(super) repeats: bool,
    /// Whether short calls have a shorter way through it.
    pub(super) form: Form,
    /// The program's instruction, for reports.
    pub(super) instruction: u32,
    /// Elements moved.
    pub(super) count: usize,
    pub(super) bytes: usize,
    /// How the elements lie where they are not in one piece; the pieces' number is 1 if they are.
    pub(super) pieces: Pieces,
    inputs: [Spot; 4],
    outputs: [Spot; 4],
    input_len: u8,
    output_len: u8,
}

/// What a step sends as it is: where it lies, and its bytes.
pub(super) type Sent = (Spot, usize);

/// The pieces of a span in user memory and in scratch; in slots they follow each other.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    pub(super) number: usize,
    /// Elements of each; the last may have fewer.
    pub(super) count: usize,
    /// Bytes from the start of one to that of the next in user memory.
    pub(super) user_bytes: usize,
    /// The same in scratch.
    pub(super) cell_bytes: usize,
    /// Which of the chunks, blocks or cells they are.
    spread: Spread,
    /// The blocks of a user buffer, where user data is blocks.
    blocks: usize,
}

impl Pieces {
    const ONE: Pieces =
        Pieces { number: 1, count: 0, user_bytes: 0, cell_bytes: 0, spread: Spread::DENSE, blocks: 0 };

    /// Bytes from the first piece to another, where a Move's range of an operand begins at `spot`.
    pub(super) fn offset(&self, spot: &Spot, piece: usize, piece_bytes: usize) -> isize {
        let offset = match *spot {
            Spot::Send(at) | Spot::Recv(at) if self.spread != Spread::DENSE => {
                let first = (at / self.user_bytes) as i64;
                let block = (first + self.spread.block(piece)).rem_euclid(self.blocks as i64);
                return (block - first) as isize * self.user_bytes as isize;
            }
            Spot::Send(_) | Spot::Recv(_) => piece * self.user_bytes,
            Spot::Scratch(_) => self.spread.cell(piece) * self.cell_bytes,
            Spot::From(..) | Spot::To(..) => piece * piece_bytes,
        };
        offset as isize
    }
}

/// How what a step makes gets to peers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Handing {
    /// In a slot of each, or in a line.
    Copied,
    /// It is read where the rank keeps it.
    Lent,
    /// As [`Handing::Copied`], by networks that take it from where the rank has it.
    Sent,
    /// In a slot of one of them, which the others are told of.
    Shared,
}

/// What a step is like, for those that short calls mostly consist of: one piece, copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// From one place to another.
    Copy,
    /// From one place to two.
    Spread,
    /// From two places, folded, to another.
    Fold,
    /// From two places, folded, to two.
    FoldSpread,
    /// An empty slot to a peer.
    Signal,
    /// An empty slot from one.
    Wait,
    /// Anything else.
    General,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Move,
    /// Post an empty slot to the only output.
    Signal,
    /// Consume an empty slot from the only input.
    Wait,
    Barrier,
}

/// Where bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot {
    /// Bytes from the start of the send buffer.
    Send(usize),
    /// Bytes from the start of the receive buffer.
    Recv(usize),
    /// Bytes from the start of the lane's scratch.
    Scratch(usize),
    /// The oldest slot of an edge from a peer.
    From(EdgeIndex, Rank),
    /// The next slot of an edge to a peer.
    To(EdgeIndex, Rank),
}

impl Entry {
    pub(super) fn inputs(&self) -> &[Spot] {
        &self.inputs[..usize::from(self.input_len)]
    }

    /// The first inputs, of which there are at least so many.
    #[inline(always)]
    pub(super) fn first_inputs<const N: usize>(&self) -> &[Spot; N] {
        const { assert!(N <= 4) };
        self.inputs.first_chunk().expect("there is room for four inputs")
    }

    pub(super) fn outputs(&self) -> &[Spot] {
        &self.outputs[..usize::from(self.output_len)]
    }

    /// The first outputs, of which there are at least so many.
    #[inline(always)]
    pub(super) fn first_outputs<const N: usize>(&self) -> &[Spot; N] {
        const { assert!(N <= 4) };
        self.outputs.first_chunk().expect("there is room for four outputs")
    }

    /// Whether it only copies what this rank has.
    pub(super) fn is_copy(&self) -> bool {
        let own = matches!(self.inputs(), [Spot::Send(_) | Spot::Recv(_) | Spot::Scratch(_)]);
        own && self.finish == Finish::NONE
    }

    fn form(&self) -> Form {
        match (self.kind, self.inputs(), self.outputs()) {
            (Kind::Signal, ..) => Form::Signal,
            (Kind::Wait, ..) => Form::Wait,
            (Kind::Barrier, ..) => Form::General,
            _ if self.handing != Handing::Copied || self.pieces.number != 1 => Form::General,
            (_, [_], [_]) => Form::Copy,
            (_, [_], [_, _]) => Form::Spread,
            (_, [_, _], [_]) => Form::Fold,
            (_, [_, _], [_, _]) => Form::FoldSpread,
            _ => Form::General,
        }
    }

    /// What it sends, if others may be told of it later.
    fn sent(&self) -> Option<Sent> {
        (self.handing == Handing::Shared && self.is_copy()).then(|| (self.inputs[0], self.bytes))
    }

    fn bare(kind: Kind, instruction: u32) -> Entry {
        Entry {
            kind,
            finish: Finish::NONE,
            handing: Handing::Copied,
            repeats: false,
            form: Form::General,
            instruction,
            count: 0,
            bytes: 0,
            pieces: Pieces::ONE,
            inputs: [Spot::Send(0); 4],
            outputs: [Spot::Send(0); 4],
            input_len: 0,
            output_len: 0,
        }
    }
}

impl Tape {
    /// The entries of a lane.
    pub(super) fn lane(&self, lane: usize) -> &[Entry] {
        &self.entries[self.lanes[lane] as usize..self.lanes[lane + 1] as usize]
    }

    /// Whether all its entries are of forms that short calls have a shorter way through.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    /// All steps as one, if they are those of a message that may go so; its peer has the same.
    #[inline]
    pub(super) fn whole(&self) -> Option<&Entry> {
        self.whole.as_ref()
    }

    /// What all lanes of all channels do, if that is at most [`LONGEST`] steps. Makes the edges.
    ///
    /// # Errors
    ///
    /// Of making an edge.
    pub(super) fn record(
        program: &Checked,
        layout: &Layout<'_>,
        bound: &Bound,
        sending: Sending,
        fabric: &mut Fabric,
    ) -> Result<Option<Tape>> {
        let (mut entries, mut lanes) = (Vec::new(), vec![0]);
        for channel in (0..layout.channels).map(Channel) {
            for lane in 0..program.lanes.len() {
                let resolve = Resolve::new(bound, layout.n, sending, layout.chunk_count, channel);
                let mut cursor = Cursor::new(program, lane, channel, layout, bound.root);
                let mut last = None;
                while let Some(action) = cursor.next(program, layout) {
                    if entries.len() == LONGEST {
                        return Ok(None);
                    }
                    entries.push(resolve.entry(&action, cursor.instruction() as u32, &mut last, fabric)?);
                }
                lanes.push(entries.len() as u32);
            }
        }
        let few = |entry: &Entry| entry.form != Form::General && entry.bytes <= fabric.short_bytes();
        let plain = entries.iter().all(few);
        let whole = if lanes.len() == 2 { whole(&entries, sending.whole_bytes) } else { None };
        Ok(Some(Tape { entries: entries.into(), lanes: lanes.into(), plain, whole }))
    }
}

/// What turns a cursor's action into an entry.
pub(super) struct Resolve {
    size_bytes: usize,
    chunk_count: usize,
    channel: Channel,
    /// Added to every edge's tag.
    edge_tag: u8,
    reduce_op: ReduceOp,
    sending: Sending,
    /// Whether receivers may fold what they get from the send buffer.
    folds_inputs: bool,
    /// Bytes of a block, where user data is blocks.
    block_bytes: Option<usize>,
    /// The number of ranks.
    n: u32,
}

impl Resolve {
    pub(super) fn new(
        bound: &Bound,
        n: u32,
        sending: Sending,
        chunk_count: usize,
        channel: Channel,
    ) -> Resolve {
        Resolve {
            size_bytes: bound.dtype.size_bytes(),
            chunk_count,
            channel,
            edge_tag: edge_tag(bound.collective),
            reduce_op: bound.reduce.op(),
            sending,
            folds_inputs: bound.collective.reduces(),
            block_bytes: (bound.collective.input() != Shape::Whole)
                .then(|| bound.count * bound.dtype.size_bytes()),
            n,
        }
    }

    /// The entry of a lane's next action, `last` being what the one before it has sent.
    pub(super) fn entry(
        &self,
        action: &Action,
        instruction: u32,
        last: &mut Option<Sent>,
        fabric: &mut Fabric,
    ) -> Result<Entry> {
        let before = last.take();
        Ok(match action {
            Action::Move(step) => {
                let mut entry = self.step(step, instruction, fabric)?;
                *last = entry.sent();
                entry.repeats = last.is_some() && *last == before;
                entry
            }
            Action::Signal(site) => {
                let mut entry = Entry::bare(Kind::Signal, instruction);
                (entry.outputs[0], entry.output_len) = (self.output(*site, fabric)?, 1);
                entry.form = entry.form();
                entry
            }
            Action::Wait(site) => {
                let mut entry = Entry::bare(Kind::Wait, instruction);
                (entry.inputs[0], entry.input_len) = (self.input(*site, fabric)?, 1);
                entry.form = entry.form();
                entry
            }
            Action::Barrier => Entry::bare(Kind::Barrier, instruction),
        })
    }

    fn step(&self, step: &Step, instruction: u32, fabric: &mut Fabric) -> Result<Entry> {
        let mut entry = Entry::bare(Kind::Move, instruction);
        entry.count = step.count;
        entry.bytes = step.count * self.size_bytes;
        entry.input_len = step.inputs().len() as u8;
        entry.output_len = step.outputs().len() as u8;
        let mut scaled = 0u8;
        for (index, site) in step.inputs().iter().enumerate() {
            entry.inputs[index] = self.input(*site, fabric)?;
            let scales = step.finish.pre && self.reduce_op == ReduceOp::PreMulSum;
            if scales && matches!(site, Site::Input { .. }) {
                scaled |= 1 << index;
            }
        }
        for (spot, site) in entry.outputs.iter_mut().zip(step.outputs()) {
            *spot = self.output(*site, fabric)?;
        }
        entry.finish = Finish::NONE.scaling(scaled);
        if step.finish.post && self.reduce_op == ReduceOp::Average {
            entry.finish = entry.finish.completing();
        }
        if step.pieces > 1 {
            entry.pieces = self.pieces(step);
        }
        if self.lends(&entry, fabric) {
            entry.handing = Handing::Lent;
        } else if sends(&entry, fabric) {
            entry.handing = Handing::Sent;
        } else if self.shares(&entry, fabric) {
            entry.handing = Handing::Shared;
        }
        entry.form = entry.form();
        Ok(entry)
    }

    /// One piece, if all operands are.
    fn pieces(&self, step: &Step) -> Pieces {
        let piece_bytes = step.piece_count * self.size_bytes;
        let pieces = Pieces {
            number: step.pieces,
            count: step.piece_count,
            user_bytes: self.block_bytes.unwrap_or(piece_bytes),
            cell_bytes: self.chunk_count * self.size_bytes,
            spread: step.spread,
            blocks: self.n as usize,
        };
        if step.spread != Spread::DENSE {
            return pieces;
        }
        let gaps = |site: &Site| match site {
            Site::Input { .. } | Site::Output { .. } => pieces.user_bytes != piece_bytes,
            Site::Scratch { .. } => pieces.cell_bytes != piece_bytes,
            Site::Receive { .. } | Site::Send { .. } => false,
        };
        if step.inputs().iter().chain(step.outputs()).any(gaps) { pieces } else { Pieces::ONE }
    }

    /// Whether what the step sends is lent: every edge it goes to must be able to. A network brings it
    /// in one piece, which no receiver folds: results are only copied.
    fn lends(&self, entry: &Entry, fabric: &mut Fabric) -> bool {
        let plain = entry.finish == Finish::NONE;
        let input = plain && matches!(entry.inputs(), [Spot::Send(_)]);
        let kept = entry.outputs().iter().any(|spot| matches!(spot, Spot::Recv(_)))
            || plain && matches!(entry.inputs(), [Spot::Recv(_)]);
        let in_place = match self.sending.lending {
            Lending::Never | Lending::Nothing => false,
            Lending::Everything { from } => entry.bytes >= from,
        };
        let on_the_way = entry.bytes >= ON_THE_WAY_BYTES && (kept || input && !self.folds_inputs);
        let mut edges = entry.outputs().iter().filter_map(|spot| match spot {
            Spot::To(edge, _) => Some(fabric.sender(*edge).lends()),
            _ => None,
        });
        let able = |lends| match lends {
            _ if self.sending.lending == Lending::Never => false,
            Lends::Nothing => false,
            Lends::InPlace => in_place,
            Lends::OnTheWay => on_the_way,
        };
        edges.next().is_some_and(able) && edges.all(able)
    }

    /// Whether peers may read what the step sends in a slot of one of them: a result in one piece, too long for a line.
    fn shares(&self, entry: &Entry, fabric: &Fabric) -> bool {
        let edges = entry.outputs().iter().filter(|spot| matches!(spot, Spot::To(..))).count();
        let long = entry.bytes > fabric.short_bytes() && entry.pieces.number == 1;
        self.sending.shares && long && (edges > 1 || edges == 1 && entry.is_copy())
    }

    fn input(&self, site: Site, fabric: &mut Fabric) -> Result<Spot> {
        Ok(match site {
            Site::Input { offset } => Spot::Send(offset * self.size_bytes),
            Site::Output { offset } => Spot::Recv(offset * self.size_bytes),
            Site::Scratch { cell } => Spot::Scratch(cell * self.chunk_count * self.size_bytes),
            Site::Receive { peer, tag } => {
                Spot::From(fabric.receive_edge(peer, self.channel, tag + self.edge_tag)?, peer)
            }
            Site::Send { .. } => return Err(Error::bug("a send edge as an input")),
        })
    }

    fn output(&self, site: Site, fabric: &mut Fabric) -> Result<Spot> {
        Ok(match site {
            Site::Output { offset } => Spot::Recv(offset * self.size_bytes),
            Site::Scratch { cell } => Spot::Scratch(cell * self.chunk_count * self.size_bytes),
            Site::Send { peer, tag } => {
                Spot::To(fabric.send_edge(peer, self.channel, tag + self.edge_tag)?, peer)
            }
            Site::Input { .. } | Site::Receive { .. } => return Err(Error::bug("an input as an output")),
        })
    }
}

/// The pieces of a message as one, if they are several and of at most `most_bytes` bytes together.
fn whole(pieces: &[Entry], most_bytes: usize) -> Option<Entry> {
    let mut whole = *pieces.first()?;
    let copies = pieces.iter().all(|piece| piece.form == Form::Copy && piece.finish == Finish::NONE);
    whole.bytes = pieces.iter().map(|piece| piece.bytes).sum();
    whole.count = pieces.iter().map(|piece| piece.count).sum();
    (copies && pieces.len() > 1 && whole.bytes <= most_bytes).then_some(whole)
}

/// Whether what the step makes is somewhere else than in slots, long enough, and all edges it goes to are networks that send from there.
fn sends(entry: &Entry, fabric: &mut Fabric) -> bool {
    let kept = entry.outputs().iter().any(|spot| !matches!(spot, Spot::To(..)));
    let there = kept || entry.inputs().len() == 1 && entry.finish == Finish::NONE;
    let mut edges = entry.outputs().iter().filter_map(|spot| match spot {
        Spot::To(edge, _) => Some(fabric.sender(*edge).sends_from()),
        _ => None,
    });
    let long = entry.bytes >= SENT_BYTES && entry.pieces.number == 1;
    there && long && edges.next().is_some_and(|able| able) && edges.all(|able| able)
}

/// Shorter payloads are copied to slots, and go by shorter ways.
const SENT_BYTES: usize = 1 << 10;

/// From so many bytes on a network sends from user memory: two messages cost less than a copy then.
const ON_THE_WAY_BYTES: usize = 16 << 10;
/// Entries of the longest tape: 64 take 12 KiB, and evaluating as many again would cost 2 to 4 µs.
const LONGEST: usize = 64;

#[cfg(test)]
mod tests {
    use ccl_plan::ReduceOp;

    use crate::exec::step::SENT;
    use crate::{Config, local};

    /// What is folded, what is passed on and what is gathered, in place and out of place, by networks that share a message out
    /// among sockets, too.
    #[test]
    fn networks_take_what_is_sent_from_where_ranks_have_it() {
        for (sockets, algorithm) in
            [("1", "ring"), ("1", "one_shot"), ("3", "double_tree"), ("1", "two_shot")]
        {
            let algorithm = format!("allreduce:{algorithm}");
            let vars = [("CCL_SHM_DISABLE", "1"), ("CCL_SOCKET_NSOCKS", sockets), ("CCL_ALGO", &*algorithm)];
            // Nobody but the callers drives calls, and counts what they send.
            let always = [("CCL_PROGRESS_THREAD", "0")];
            let config = Config::from_vars(always.into_iter().chain(vars)).unwrap();
            for count in [100, 3_001, 70_003] {
                let outcomes = local::try_run_with(&config, 3, |comm| {
                    let mine: Vec<i32> = (0..count).map(|i| i * (comm.rank().0 as i32 + 1)).collect();
                    let (mut reduced, before) = (vec![0; mine.len()], SENT.get());
                    comm.all_reduce(&mine, &mut reduced, ReduceOp::Sum)?;
                    let mut in_place = mine;
                    comm.all_reduce_in_place(&mut in_place, ReduceOp::Sum)?;
                    let expected: Vec<i32> = (0..count).map(|i| 6 * i).collect();
                    assert!(reduced == expected && in_place == expected, "{algorithm} of {count}");
                    comm.barrier()?;
                    Ok(SENT.get() > before)
                });
                let sent: Vec<bool> = outcomes.unwrap().into_iter().map(|sent| sent.unwrap()).collect();
                // Of long ones a rank may only have results to send, which are lent.
                let all = if count < 70_003 { sent.iter().all(|sent| *sent) } else { sent.contains(&true) };
                assert_eq!(all, count > 1_000, "{algorithm} of {count}: {sent:?}");
            }
        }
    }
}
