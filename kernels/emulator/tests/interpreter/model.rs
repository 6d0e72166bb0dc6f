//! The oracle: plans walked on the host, one step at a time, with the reference arithmetic on single elements.

use std::collections::{HashMap, VecDeque};

use ccl::reference::element;
use ccl_plan::cursor::{Action, Cursor, Site, Step};
use ccl_plan::layout::Layout;
use ccl_plan::machine::Stage;
use ccl_plan::program::Checked;
use ccl_plan::{Channel, Dtype, Rank, ReduceOp};

/// A rank's user memory: both buffers, which may overlap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) input: usize,
    pub(crate) output: usize,
}

/// How contributions are combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) scalar: f64,
    pub(crate) n: u32,
}

/// Carries out the call of `stage` on the memory of all ranks.
pub(crate) fn run(stage: &Stage<'_>, arithmetic: Arithmetic, memory: &mut [Memory]) {
    let mut lanes = Vec::new();
    for rank in (0..stage.case.n).map(Rank) {
        let Some(seat) = stage.seat(rank) else { continue };
        for channel in (0..stage.case.channels).map(Channel) {
            for lane in 0..seat.program.lanes.len() {
                let layout = stage.layout(rank);
                let cursor = Cursor::new(seat.program, lane, channel, &layout, seat.root);
                let cells = HashMap::new();
                let program = seat.program;
                lanes.push(Lane {
                    rank,
                    channel,
                    program,
                    layout,
                    cursor,
                    next: None,
                    cells,
                    met: 0,
                    done: false,
                });
            }
        }
    }
    let mut world = World { arithmetic, memory, edges: HashMap::new(), arrived: HashMap::new() };
    while lanes.iter().any(|lane| !lane.done) {
        let moved = lanes
            .iter_mut()
            .filter(|lane| !lane.done)
            .map(|lane| world.advance(lane))
            .fold(false, |a, b| a | b);
        assert!(moved, "the plan is stuck");
    }
    assert!(world.edges.values().all(VecDeque::is_empty), "a message is left");
}

struct Lane<'a> {
    rank: Rank,
    channel: Channel,
    program: &'a Checked,
    layout: Layout<'a>,
    cursor: Cursor,
    next: Option<Action>,
    cells: HashMap<usize, Vec<u8>>,
    /// Barriers so far.
    met: usize,
    done: bool,
}

/// From, to, channel, tag.
type EdgeName = (Rank, Rank, Channel, u8);

struct World<'a> {
    arithmetic: Arithmetic,
    memory: &'a mut [Memory],
    edges: HashMap<EdgeName, VecDeque<Vec<u8>>>,
    /// Lanes that have come to a barrier, by rank, channel and which one it is.
    arrived: HashMap<(Rank, Channel, usize), usize>,
}

impl World<'_> {
    /// Takes one step of a lane, if it can.
    fn advance(&mut self, lane: &mut Lane<'_>) -> bool {
        let Some(action) = lane.next.or_else(|| self.fetch(lane)) else {
            lane.done = true;
            return true;
        };
        lane.next = Some(action);
        let taken = match action {
            Action::Move(step) => self.take(lane, &step),
            Action::Signal(site) => {
                self.edge(lane, site).push_back(Vec::new());
                true
            }
            Action::Wait(site) => self.edge(lane, site).pop_front().is_some(),
            Action::Barrier => {
                self.arrived[&(lane.rank, lane.channel, lane.met)] == lane.program.lanes.len() && {
                    lane.met += 1;
                    true
                }
            }
        };
        if taken {
            lane.next = None;
        }
        taken
    }

    fn fetch(&mut self, lane: &mut Lane<'_>) -> Option<Action> {
        let action = lane.cursor.next(lane.program, &lane.layout)?;
        if action == Action::Barrier {
            *self.arrived.entry((lane.rank, lane.channel, lane.met)).or_default() += 1;
        }
        Some(action)
    }

    fn edge(&mut self, lane: &Lane<'_>, site: Site) -> &mut VecDeque<Vec<u8>> {
        let name = match site {
            Site::Receive { peer, tag } => (peer, lane.rank, lane.channel, tag),
            Site::Send { peer, tag } => (lane.rank, peer, lane.channel, tag),
            _ => panic!("{site:?} is no edge"),
        };
        self.edges.entry(name).or_default()
    }

    fn take(&mut self, lane: &mut Lane<'_>, step: &Step) -> bool {
        let ready = |world: &mut Self, site: &Site| match site {
            Site::Receive { .. } => !world.edge(lane, *site).is_empty(),
            _ => true,
        };
        if !step.inputs().iter().all(|site| ready(self, site)) {
            return false;
        }
        let inputs: Vec<Vec<u8>> = step.inputs().iter().map(|site| self.read(lane, step, *site)).collect();
        let result = self.fold(step, inputs);
        for site in step.outputs() {
            self.write(lane, step, *site, &result);
        }
        true
    }

    fn read(&mut self, lane: &Lane<'_>, step: &Step, site: Site) -> Vec<u8> {
        if let Site::Receive { .. } = site {
            return self.edge(lane, site).pop_front().expect("the edge was ready");
        }
        let size = self.arithmetic.dtype.size_bytes();
        let mut bytes = Vec::new();
        for piece in 0..step.pieces {
            let (site, count) = step.piece(&lane.layout, site, piece);
            let memory = &self.memory[lane.rank.index()];
            match site {
                Site::Input { offset } => {
                    bytes.extend(&memory.bytes[memory.input + offset * size..][..count * size])
                }
                Site::Output { offset } => {
                    bytes.extend(&memory.bytes[memory.output + offset * size..][..count * size])
                }
                Site::Scratch { cell } => bytes.extend(&lane.cells[&cell][..count * size]),
                _ => panic!("{site:?} is read"),
            }
        }
        bytes
    }

    fn write(&mut self, lane: &mut Lane<'_>, step: &Step, site: Site, result: &[u8]) {
        if let Site::Send { .. } = site {
            self.edge(lane, site).push_back(result.to_vec());
            return;
        }
        let size = self.arithmetic.dtype.size_bytes();
        let mut rest = result;
        for piece in 0..step.pieces {
            let (site, count) = step.piece(&lane.layout, site, piece);
            let (bytes, behind) = rest.split_at(count * size);
            rest = behind;
            let memory = &mut self.memory[lane.rank.index()];
            match site {
                Site::Input { offset } => {
                    memory.bytes[memory.input + offset * size..][..bytes.len()].copy_from_slice(bytes)
                }
                Site::Output { offset } => {
                    memory.bytes[memory.output + offset * size..][..bytes.len()].copy_from_slice(bytes);
                }
                Site::Scratch { cell } => {
                    lane.cells.insert(cell, bytes.to_vec());
                }
                _ => panic!("{site:?} is written"),
            }
        }
    }

    fn fold(&self, step: &Step, mut inputs: Vec<Vec<u8>>) -> Vec<u8> {
        let Arithmetic { dtype, op, scalar, n } = self.arithmetic;
        let own = step.inputs().iter().map(|site| matches!(site, Site::Input { .. }));
        for (input, own) in inputs.iter_mut().zip(own) {
            if own && step.finish.pre && op == ReduceOp::PreMulSum {
                each(dtype, input, |bits| element::scale(dtype, bits, scalar));
            }
        }
        let mut inputs = inputs.into_iter();
        let mut folded = inputs.next().expect("a Move has an input");
        for input in inputs {
            let mut others = input.chunks(dtype.size_bytes()).map(element::load);
            each(dtype, &mut folded, |bits| {
                element::combine(dtype, op, bits, others.next().expect("inputs are equally long"))
            });
        }
        if step.finish.post && op == ReduceOp::Average {
            each(dtype, &mut folded, |bits| element::divide(dtype, bits, n));
        }
        folded
    }
}

fn each(dtype: Dtype, bytes: &mut [u8], mut f: impl FnMut(u64) -> u64) {
    for element in bytes.chunks_mut(dtype.size_bytes()) {
        let bits = f(element::load(element));
        element.copy_from_slice(&bits.to_le_bytes()[..element.len()]);
    }
}
