//! A block of threads: its shared memory and where its threads meet.

use std::cell::RefCell;
use std::rc::Rc;

use crate::delay::Pending;
use crate::fiber::Request;
use crate::guarded::Lines;
use crate::line::{LINE_LANES, Line, PART_BYTES};
use crate::meeting::{Barrier, BarrierCall, Gathering, LANES, SYNC};
use crate::report::{Cause, Doing};

/// A block and those of its threads that wait for others.
pub(crate) struct Block {
    pub(crate) launch: usize,
    pub(crate) index: u32,
    pub(crate) first_fiber: usize,
    threads: usize,
    shared: Lines,
    barriers: Vec<Barrier>,
    /// What lanes of each warp are gathering for.
    warps: Vec<Vec<Gathering>>,
    left: Vec<bool>,
    doing: Vec<Option<Doing>>,
    pending: Option<Rc<RefCell<Pending>>>,
}

/// Those who met, and what they get.
pub(crate) enum Met {
    Nobody,
    AtBarrier { threads: Vec<usize>, vote: bool },
    InWarp { warp: usize, gathering: Box<Gathering>, lines: Vec<Option<Rc<Line>>> },
}

impl Met {
    /// Thread by thread.
    pub(crate) fn answers(self) -> Vec<(usize, u64, Option<Rc<Line>>)> {
        match self {
            Met::Nobody => Vec::new(),
            Met::AtBarrier { threads, vote } => {
                threads.into_iter().map(|thread| (thread, u64::from(vote), None)).collect()
            }
            Met::InWarp { warp, gathering, lines } => {
                let lanes = (0..LANES).filter(|lane| gathering.lanes & 1 << lane != 0);
                let line = |lane: usize| lines.get(lane / LINE_LANES).cloned().flatten();
                lanes.map(|lane| (warp * LANES + lane, gathering.answer(lane), line(lane))).collect()
            }
        }
    }
}

impl Block {
    pub(crate) fn new(
        launch: usize,
        index: u32,
        threads: u32,
        shared_bytes: usize,
        pending: Option<Rc<RefCell<Pending>>>,
    ) -> Block {
        let threads = threads as usize;
        Block {
            launch,
            index,
            first_fiber: 0,
            threads,
            shared: Lines::new(shared_bytes),
            barriers: vec![Barrier::default(); BARRIERS],
            warps: vec![Vec::new(); threads.div_ceil(LANES)],
            left: vec![false; threads],
            doing: vec![None; threads],
            pending,
        }
    }

    /// The shared memory.
    pub(crate) fn shared(&mut self) -> *mut u8 {
        self.shared.start_mut()
    }

    pub(crate) fn has_left(&self, thread: usize) -> bool {
        self.left[thread]
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.left.iter().all(|left| *left)
    }

    /// What a thread waits for.
    pub(crate) fn doing(&self, thread: usize) -> Option<Doing> {
        self.doing[thread]
    }

    /// A thread has come to the kernel's end. It may not be missed by others.
    pub(crate) fn leave(&mut self, thread: usize) -> Result<(), Cause> {
        self.left[thread] = true;
        let missed = |gathering: &Gathering| gathering.lanes & 1 << (thread % LANES) != 0;
        if !self.barriers[0].waiting.is_empty() || self.warps[thread / LANES].iter().any(missed) {
            return Err(self.diverged(format!("thread {thread} has ended, and others wait for it")));
        }
        if self.has_ended() { self.end() } else { Ok(()) }
    }

    /// All threads have left.
    fn end(&mut self) -> Result<(), Cause> {
        if let Some(pending) = &self.pending {
            pending.borrow_mut().release_all();
        }
        if self.shared.are_whole() {
            return Ok(());
        }
        Err(Cause::Stopped(format!(
            "block {} of launch {} wrote beside its shared memory",
            self.index, self.launch
        )))
    }

    /// A thread waits for others.
    pub(crate) fn meet(&mut self, thread: usize, request: Request) -> Result<Met, Cause> {
        match request {
            Request::Sync { id, threads, vote, line } => {
                let call = BarrierCall { id: id as usize, threads: threads as usize, vote, line };
                self.arrive(thread, call)
            }
            Request::Warp { code, lanes, value, argument, line } => {
                self.gather(thread, Gathering::new(code, line, lanes), |g, lane| {
                    g.arrive(lane, value, argument)
                })
            }
            Request::Line { code, at, part, line } => {
                self.gather(thread, Gathering::new(code, line, u32::MAX), |gathering, lane| {
                    gathering.parts[lane] = (at, part);
                    gathering.arrive(lane, 0, 0)
                })
            }
            _ => Ok(Met::Nobody),
        }
    }

    fn arrive(&mut self, thread: usize, call: BarrierCall) -> Result<Met, Cause> {
        if call.id >= BARRIERS {
            return Err(self.diverged(format!("barrier {}: there are {BARRIERS}", call.id)));
        }
        if call.id == 0 && self.left.contains(&true) {
            return Err(self.diverged(format!("thread {thread} comes to a barrier, and another has ended")));
        }
        let barrier = &mut self.barriers[call.id];
        self.doing[thread] =
            Some(Doing::Barrier { id: call.id, generation: barrier.generation, line: call.line });
        match barrier.arrive(thread, call) {
            Err(what) => Err(self.diverged(what)),
            Ok(None) => Ok(Met::Nobody),
            Ok(Some(vote)) => {
                let threads = std::mem::take(&mut barrier.waiting);
                threads.iter().for_each(|thread| self.doing[*thread] = None);
                if let Some(pending) = &self.pending {
                    pending.borrow_mut().meet(threads.iter().copied());
                }
                Ok(Met::AtBarrier { threads, vote })
            }
        }
    }

    /// A lane joins those of its warp that gather for the same lanes, or begins.
    fn gather(
        &mut self,
        thread: usize,
        mut wanted: Gathering,
        arrive: impl FnOnce(&mut Gathering, usize) -> bool,
    ) -> Result<Met, Cause> {
        let (warp, lane) = (thread / LANES, thread % LANES);
        wanted.lanes &= self.lanes(warp);
        self.doing[thread] = Some(Doing::Warp { line: wanted.line });
        let gatherings = &mut self.warps[warp];
        let same = gatherings.iter().position(|gathering| gathering.lanes == wanted.lanes);
        let place = same.unwrap_or(gatherings.len());
        let (code, line) = (wanted.code, wanted.line);
        if same.is_none() {
            gatherings.push(wanted);
        }
        let gathering = &mut gatherings[place];
        if (gathering.code, gathering.line) != (code, line) {
            let others = gathering.line;
            return Err(self.diverged(format!(
                "thread {thread} is in line {line}, lanes of its warp wait in line {others} or for another function"
            )));
        }
        if !arrive(gathering, lane) {
            return Ok(Met::Nobody);
        }
        let gathering = gatherings.swap_remove(place);
        self.met_in_warp(warp, gathering)
    }

    fn met_in_warp(&mut self, warp: usize, gathering: Gathering) -> Result<Met, Cause> {
        let lanes = (0..LANES).filter(|lane| gathering.lanes & 1 << lane != 0);
        let threads = lanes.map(|lane| warp * LANES + lane);
        threads.clone().for_each(|thread| self.doing[thread] = None);
        if gathering.code == SYNC
            && let Some(pending) = &self.pending
        {
            pending.borrow_mut().meet_in_warp(threads);
        }
        let lines = match gathering.code {
            Line::LOAD | Line::STORE => lines(gathering.code, &gathering.parts),
            _ => Ok(Vec::new()),
        };
        match lines {
            Ok(lines) => Ok(Met::InWarp { warp, gathering: Box::new(gathering), lines }),
            Err(what) => Err(self.diverged(format!("warp {warp}, line {}: {what}", gathering.line))),
        }
    }

    /// The lanes that a warp has.
    fn lanes(&self, warp: usize) -> u32 {
        match self.threads - warp * LANES {
            LANES.. => u32::MAX,
            few => (1 << few) - 1,
        }
    }

    fn diverged(&self, what: String) -> Cause {
        Cause::Divergence(format!("block {} of launch {}: {what}", self.index, self.launch))
    }
}

/// The four lines of a warp.
fn lines(code: u32, parts: &[(usize, [u8; PART_BYTES])]) -> Result<Vec<Option<Rc<Line>>>, &'static str> {
    parts.chunks(LINE_LANES).map(|lanes| Ok(Line::new(code, lanes)?.map(Rc::new))).collect()
}

/// Barriers of a block.
const BARRIERS: usize = 16;
