//! The sweep of rings: all ranks run one text in step, and talk to their neighbours only.
//!
//! In text step t chunk c is with rank c + 1 + t (modulo n). So clocks are kept **by chunk**, not by
//! rank: a step of chunk c waits for what its last holder sent (the clock of c itself), for its holder's
//! last step (the clock of c + 1), and, with F slots, for a credit from F steps before (chunk c + F).
//! All three lie side by side for neighbouring chunks, nothing wraps, and the update is done in place:
//! the inner loop is three additions and two maxima over contiguous floats.
//!
//! Where a pass has fewer chunks than ranks, the rest of the chunks are empty and their steps are
//! skipped, so that a rank works in *runs* with gaps between them. The first F steps of a run wait for
//! credits from before the gap; these are kept by rank.
//!
//! Everything else follows the walk: the same maxima over the same sums in the same order.

use std::collections::VecDeque;
use std::ops::Range;

use ccl_plan::cursor::{Action, Cursor, Site};
use ccl_plan::machine::clock::Link;
use ccl_plan::{Channel, Rank};

use super::{Clocks, Costs, Swept, later};
use crate::job::Job;

/// The clocks of one channel of a ring.
pub(super) struct Ring {
    texts: Vec<Text>,
    slots: usize,
    gamma: f64,
    /// Per edge, from place e to the next: α, α of the way back, β.
    alpha_ns: Vec<f64>,
    back_ns: Vec<f64>,
    beta: Vec<f64>,
    /// When each place was done with its last step.
    idle_ns: Vec<f64>,
    /// For each place the last credits of the edge that leaves it, the oldest first.
    last: Vec<VecDeque<f64>>,
    steps: u64,
}

/// One step of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Text {
    receives: bool,
    sends: bool,
    folds: u8,
}

/// One pass under way.
struct Turn {
    /// Clocks that are kept.
    width: usize,
    /// Chunks that are not empty.
    active: usize,
    chunk_bytes: u64,
    /// Of the last chunk that is not empty.
    last_bytes: u64,
    /// By chunk, when the step of the chunk was done.
    clocks: Vec<f64>,
    /// By step modulo F and by chunk, when the credit is back.
    credits: Vec<Vec<f64>>,
    /// Twice in a row: α and α back by edge, and what a chunk costs on it.
    alpha_ns: Vec<f64>,
    back_ns: Vec<f64>,
    send_ns: Vec<f64>,
}

impl Ring {
    /// The ring that a channel of the job is; `None` if it is none.
    pub(super) fn new<L>(job: &Job, costs: &Costs<L>, channel: Channel, clocks: Clocks) -> Option<Ring>
    where
        L: Fn(Rank, Rank, Channel) -> Link,
    {
        let n = job.n();
        let texts = if job.is_ring && job.case.slots > 1 { texts(job)? } else { return None };
        let link = |from: u32, to: u32| (costs.link)(job.rank(from % n), job.rank(to % n), channel);
        let there: Vec<Link> = (0..n).map(|edge| link(edge, edge + 1)).collect();
        let mut ring = Ring {
            texts,
            slots: job.case.slots,
            gamma: costs.gamma_ns_per_byte,
            alpha_ns: there.iter().map(|link| link.alpha_ns).collect(),
            back_ns: (0..n).map(|edge| link(edge + 1, edge).alpha_ns).collect(),
            beta: there.iter().map(|link| link.beta_ns_per_byte).collect(),
            idle_ns: Vec::new(),
            last: Vec::new(),
            steps: 0,
        };
        let width = if clocks == Clocks::Shared { ring.period() } else { n as usize };
        ring.idle_ns = vec![0.0; width];
        ring.last = vec![VecDeque::from(vec![0.0; job.case.slots]); width];
        Some(ring)
    }

    /// Sweeps all passes.
    pub(super) fn run(mut self, job: &Job, channel: Channel) -> Swept {
        for section in job.sections(channel) {
            let text = &job.roles[0];
            let count = job.count(text, 0, channel, section.pass);
            let layout = job.layout(0, count);
            let lengths = match layout.is_whole() {
                true => {
                    let chunks = layout.pass_chunks(layout.part(Channel(0), 0, 1), text.program.chunks, 0);
                    let chunk_count = chunks.chunk(0).len();
                    let active = count.div_ceil(chunk_count.max(1));
                    (active, chunk_count, count.saturating_sub(active.saturating_sub(1) * chunk_count))
                }
                false => (job.n() as usize, count, count),
            };
            (0..section.repeat).for_each(|_| self.pass(job.n() as usize, lengths, job.element_bytes));
        }
        Swept { finish_ns: self.idle_ns.iter().copied().fold(0.0, later), steps: self.steps }
    }

    /// The least number of places after which all links repeat.
    fn period(&self) -> usize {
        let n = self.alpha_ns.len();
        let repeats = |values: &[f64], p: usize| values[p..].iter().zip(values).all(|(a, b)| a == b);
        let all = |p: &usize| [&self.alpha_ns, &self.back_ns, &self.beta].iter().all(|v| repeats(v, *p));
        (1..=n).find(|p| n.is_multiple_of(*p) && all(p)).unwrap_or(n)
    }

    /// A pass of `active` chunks of so many elements, of which the last may have fewer.
    fn pass(&mut self, n: usize, (active, chunk, last): (usize, usize, usize), element_bytes: u64) {
        let even = active == n && chunk == last;
        if !even && self.idle_ns.len() < n {
            self.unshare(n);
        }
        let width = self.idle_ns.len();
        let active = if even { width } else { active };
        if active == 0 {
            return;
        }
        let chunk_bytes = chunk as u64 * element_bytes;
        let mut turn = self.turn(width, active, chunk_bytes, last as u64 * element_bytes);
        let mut t = 0;
        while t < self.texts.len() {
            // Steps that are fused must not need each other's credits.
            let fused = if t < self.slots { 1 } else { (self.slots - 1).min(self.texts.len() - t) };
            self.steps(&mut turn, t, fused);
            t += fused;
        }
        let end = self.texts.len();
        (0..active).for_each(|c| self.idle_ns[(c + end) % width] = turn.clocks[c]);
        if turn.is_cyclic() {
            self.keep_credits(&turn);
        }
        self.steps += (end * active) as u64;
    }

    fn turn(&self, width: usize, active: usize, chunk_bytes: u64, last_bytes: u64) -> Turn {
        let twice = |values: &[f64], each: &dyn Fn(f64) -> f64| -> Vec<f64> {
            values[..width].iter().chain(&values[..width]).map(|value| each(*value)).collect()
        };
        Turn {
            width,
            active,
            chunk_bytes,
            last_bytes,
            clocks: vec![0.0; active],
            credits: vec![vec![0.0; active + self.slots]; self.slots],
            alpha_ns: twice(&self.alpha_ns, &|ns| ns),
            back_ns: twice(&self.back_ns, &|ns| ns),
            send_ns: twice(&self.beta, &|beta| beta * chunk_bytes as f64),
        }
    }

    /// Gives every place a clock of its own.
    fn unshare(&mut self, n: usize) {
        let shared = self.idle_ns.len();
        self.idle_ns = (0..n).map(|place| self.idle_ns[place % shared]).collect();
        self.last = (0..n).map(|place| self.last[place % shared].clone()).collect();
    }

    /// Steps `t .. t + count` of all chunks, block by block, so that what a step leaves is still in the
    /// cache for the next. A block is one chunk further back with every step: chunk c needs c + 1.
    fn steps(&mut self, turn: &mut Turn, t: usize, count: usize) {
        // The last chunk, and what waits for credits from before the run or pass, go one by one.
        let alone = if turn.is_cyclic() { 1 } else { self.slots };
        let abreast = if t < self.slots { 0 } else { turn.active.saturating_sub(alone) };
        let mut from = 0;
        loop {
            let to = if from + BLOCK + count < abreast { from + BLOCK } else { abreast };
            for k in 0..count {
                let chunks = from.saturating_sub(k)..if to == abreast { to } else { to - k };
                turn.abreast(&self.texts[t + k], t + k, chunks, self.gamma);
                if to == abreast {
                    (abreast..turn.active).for_each(|c| self.alone(turn, t + k, c));
                    turn.close(t + k);
                }
                if from == 0 {
                    self.begun(turn, t + k);
                }
            }
            if to == abreast {
                return;
            }
            from = to;
        }
    }

    /// Step `t` of the first chunks is done.
    fn begun(&mut self, turn: &Turn, t: usize) {
        self.idle_ns[(1 + t) % turn.width] = turn.clocks[0];
        if !turn.is_cyclic() && t > 0 {
            self.end_run(turn, t - 1);
        }
    }

    /// Step `t` of chunk `c`.
    fn alone(&self, turn: &mut Turn, t: usize, c: usize) {
        let Text { receives, sends, folds } = self.texts[t];
        let place = (c + 1 + t) % turn.width;
        let edge = (c + t) % turn.width;
        let last = c + 1 == turn.active;
        let bytes = if last { turn.last_bytes } else { turn.chunk_bytes };
        let mut clock = if t == 0 || last { self.idle_ns[place] } else { turn.clocks[c + 1] };
        if receives {
            clock = later(clock, turn.clocks[c] + turn.alpha_ns[edge]);
        }
        if sends {
            let depth = if turn.is_cyclic() { t } else { t.min(turn.active - 1 - c) };
            let credit = match depth < self.slots {
                true => self.last[place][depth],
                false => turn.credits[(t + 1) % self.slots][c + self.slots],
            };
            clock = later(clock, credit);
        }
        clock += self.gamma * (bytes * u64::from(folds)) as f64;
        if receives {
            turn.credits[t % self.slots][c] = clock + turn.back_ns[edge];
        }
        if sends {
            clock += self.beta[place] * bytes as f64;
        }
        turn.clocks[c] = clock;
    }

    /// Keeps the credits of the run that ended at step `t` with chunk 0; they are back one step later.
    fn end_run(&mut self, turn: &Turn, t: usize) {
        let place = (1 + t) % turn.width;
        let run = (t + 1).min(turn.active).min(self.slots);
        let last = &mut self.last[place];
        for chunk in (0..run).rev() {
            last.pop_front();
            last.push_back(turn.credits[(t + 1 - chunk) % self.slots][chunk]);
        }
    }

    /// Keeps the credits of a pass without gaps.
    fn keep_credits(&mut self, turn: &Turn) {
        let sent = self.texts.iter().filter(|text| text.sends).count();
        for t in sent.saturating_sub(self.slots)..sent {
            for c in 0..turn.width {
                let last = &mut self.last[(c + 1 + t) % turn.width];
                last.pop_front();
                last.push_back(turn.credits[(t + 1) % self.slots][c]);
            }
        }
    }
}

impl Turn {
    /// Whether no chunk is empty, so that the first follows the last.
    fn is_cyclic(&self) -> bool {
        self.active == self.width
    }

    /// Step `t` of some chunks, which all wait for credits of this run.
    fn abreast(&mut self, text: &Text, t: usize, chunks: Range<usize>, gamma: f64) {
        let fold_ns = gamma * (self.chunk_bytes * u64::from(text.folds)) as f64;
        let (edge, slots) = (t % self.width + chunks.start, self.credits.len());
        let count = chunks.len();
        let clocks = &mut self.clocks[chunks.start..=chunks.end];
        let arrive = &self.alpha_ns[edge..][..count];
        let (back, send) = (&self.back_ns[edge..][..count], &self.send_ns[edge + 1..][..count]);
        let mut row = std::mem::take(&mut self.credits[t % slots]);
        let credits = &mut row[chunks.clone()];
        if text.sends {
            let spent = &self.credits[(t + 1) % slots][chunks.start + slots..][..count];
            for c in 0..count {
                let start = later(later(clocks[c + 1], clocks[c] + arrive[c]), spent[c]);
                let done = start + fold_ns;
                credits[c] = done + back[c];
                clocks[c] = done + send[c];
            }
        } else {
            for c in 0..count {
                let done = later(clocks[c + 1], clocks[c] + arrive[c]) + fold_ns;
                credits[c] = done + back[c];
                clocks[c] = done;
            }
        }
        self.credits[t % slots] = row;
    }

    /// Step `t` of all chunks is done: what lies behind the last chunk is the first again.
    fn close(&mut self, t: usize) {
        let slots = self.credits.len();
        if self.is_cyclic() {
            let row = &mut self.credits[t % slots];
            (0..slots).for_each(|c| row[self.active + c] = row[c]);
        }
    }
}

/// The steps of the text, if they are those of a ring: step t of place r is about chunk r − 1 − t, comes
/// from the place before if t > 0, and goes to the one after.
fn texts(job: &Job) -> Option<Vec<Text>> {
    let n = job.n() as usize;
    let [text] = job.roles.as_slice() else { return None };
    if text.lanes() != 1 || n < 2 {
        return None;
    }
    let blocks = !job.layout(0, 1).is_whole();
    let read = |place: usize| -> Option<Vec<Text>> {
        let mut layout = job.layout(place as u32, if blocks { 1 } else { n });
        (layout.chunk_count, layout.grain_count) = (1, 1);
        let mut cursor = Cursor::new(&text.program, 0, Channel(0), &layout, Rank(0));
        let mut texts = Vec::new();
        while let Some(action) = cursor.next(&text.program, &layout) {
            let Action::Move(step) = action else { return None };
            let chunk = (place + 2 * n - 1 - texts.len()) % n;
            let fits = step.inputs().iter().chain(step.outputs()).all(|site| match *site {
                Site::Receive { peer, .. } => peer.index() == (place + n - 1) % n,
                Site::Send { peer, .. } => peer.index() == (place + 1) % n,
                Site::Input { offset } | Site::Output { offset } => blocks || offset == chunk,
                Site::Scratch { .. } => false,
            });
            let count =
                |is: fn(&Site) -> bool| step.inputs().iter().chain(step.outputs()).filter(|s| is(s)).count();
            let receives = count(|site| matches!(site, Site::Receive { .. }));
            let sends = count(|site| matches!(site, Site::Send { .. }));
            if !fits || receives > 1 || sends > 1 || (receives == 1) == texts.is_empty() {
                return None;
            }
            let folds = (step.inputs().len() - 1) as u8;
            texts.push(Text { receives: receives == 1, sends: sends == 1, folds });
        }
        Some(texts)
    };
    let texts = read(0)?;
    let alike = read(1)? == texts && read(n - 1)? == texts;
    let ends = texts.iter().position(|text| !text.sends) == Some(texts.len().checked_sub(1)?);
    (alike && ends).then_some(texts)
}

/// Chunks of a block: few enough for what they need to stay in the first-level cache.
const BLOCK: usize = 384;
