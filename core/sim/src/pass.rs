//! One pass of all lanes of a channel as flat lists: what is left to do once the cursor has spoken.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use ccl_plan::cost::sends_the_same;
use ccl_plan::cursor::{Action, Cursor, Site};
use ccl_plan::{Channel, Rank};

use crate::error::{Error, Result};
use crate::job::{Job, Section, Text};

/// The edges of a channel, in places, numbered as they are met.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    ids: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    /// From and to.
    pub(crate) ends: Vec<(u32, u32)>,
}

/// The steps of one pass, lane by lane.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// For each lane of each place, the first of its steps, and at the end the number of all.
    pub(crate) first: Vec<u32>,
    pub(crate) steps: Vec<Step>,
    /// The edges of the steps: of each the receives, then the sends.
    pub(crate) edges: Vec<u32>,
}

/// A Move, a signal or a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Bytes of one operand.
    pub(crate) bytes: u64,
    /// Inputs folded into the first.
    pub(crate) folds: u8,
    pub(crate) receives: u8,
    pub(crate) sends: u8,
    /// Slots that it fills for them where one serves all receivers of the same: at most one, and none if the step before it in
    /// its lane has sent the same.
    pub(crate) fills: u8,
    /// What of that goes to all others, and so is copied where a switch does that.
    pub(crate) to_all: ToAll,
    /// Where its data is beside edges.
    pub(crate) memory: Touched,
    /// Index of the first of its edges.
    pub(crate) edges: u32,
}

/// Whether a step is one of those by which a rank sends the same to all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ToAll {
    /// It is not.
    #[default]
    No,
    /// The first of them, which stores.
    Stores,
    /// Another, which tells its receivers.
    Tells,
}

/// What a step touches of its rank's own buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Touched(u8);

impl Touched {
    fn new(step: &ccl_plan::cursor::Step) -> Touched {
        let user = |site: &&Site| matches!(site, Site::Input { .. } | Site::Output { .. });
        let read = step.inputs().iter().filter(user).count() as u8;
        let written = step.outputs().iter().filter(user).count() as u8;
        Touched(read | written << 3)
    }

    /// Inputs in user buffers.
    pub(crate) fn read(self) -> u8 {
        self.0 & 7
    }

    /// Outputs in user buffers.
    pub(crate) fn written(self) -> u8 {
        self.0 >> 3 & 7
    }
}

impl Pass {
    /// The steps of the passes of `section`.
    ///
    /// Fails where there are too many to keep, and for programs whose lanes meet at barriers.
    pub(crate) fn new(job: &Job, channel: Channel, section: Section, edges: &mut Edges) -> Result<Pass> {
        let mut pass = Pass::default();
        let counts = |text: &Text| {
            (0..text.lanes()).map(|lane| job.count(text, lane, channel, section.pass)).collect()
        };
        let counts: Vec<Vec<usize>> = job.roles.iter().map(counts).collect();
        for place in 0..job.n() {
            let role = job.role(place);
            for (lane, count) in counts[role].iter().enumerate() {
                pass.first.push(pass.steps.len() as u32);
                pass.lane(job, &job.roles[role], place, lane, *count, edges)?;
            }
        }
        pass.first.push(pass.steps.len() as u32);
        Ok(pass)
    }

    /// The steps of a lane.
    pub(crate) fn of_lane(&self, lane: usize) -> &[Step] {
        &self.steps[self.first[lane] as usize..self.first[lane + 1] as usize]
    }

    /// The edges that a step empties a slot of.
    pub(crate) fn receives(&self, step: &Step) -> &[u32] {
        &self.edges[step.edges as usize..][..usize::from(step.receives)]
    }

    /// The edges that a step fills a slot of.
    pub(crate) fn sends(&self, step: &Step) -> &[u32] {
        &self.edges[step.edges as usize + usize::from(step.receives)..][..usize::from(step.sends)]
    }

    fn lane(
        &mut self,
        job: &Job,
        text: &Text,
        place: u32,
        lane: usize,
        count: usize,
        edges: &mut Edges,
    ) -> Result<()> {
        let layout = job.layout(place, count);
        let mut cursor = Cursor::new(&text.program, lane, Channel(0), &layout, Rank(job.root().0));
        let shares = sends_the_same(text.program.collective);
        let (mut last, first_step) = (None, self.steps.len());
        while let Some(action) = cursor.next(&text.program, &layout) {
            let before = last.take();
            let first = self.edges.len() as u32;
            let mut memory = Touched::default();
            let (count, folds, receives) = match action {
                Action::Move(step) => {
                    let receives = self.add(place, step.inputs(), edges);
                    self.add(place, step.outputs(), edges);
                    memory = Touched::new(&step);
                    last = copied(&step);
                    (step.count, step.inputs().len().saturating_sub(1), receives)
                }
                Action::Signal(site) | Action::Wait(site) => {
                    let receives = usize::from(matches!(site, Site::Receive { .. }));
                    self.add(place, &[site], edges);
                    (0, 0, receives)
                }
                Action::Barrier => {
                    return Err(Error::usage(
                        format!(
                            "expected lanes that meet over edges, found a barrier in {}",
                            text.program.name
                        ),
                        "a barrier inside of a rank has no time yet; choose another algorithm",
                    ));
                }
            };
            let sends = self.edges.len() - first as usize - receives;
            let fills = match sends {
                sends if !shares => sends,
                sends => sends.min(usize::from(last.is_none() || last != before)),
            };
            last = last.filter(|_| sends > 0);
            self.steps.push(Step {
                fills: fills as u8,
                to_all: ToAll::No,
                bytes: count as u64 * job.element_bytes,
                folds: folds as u8,
                receives: receives as u8,
                sends: sends as u8,
                memory,
                edges: first,
            });
        }
        self.find_to_all(first_step, job.n(), edges);
        if self.steps.len() > MOST_STEPS {
            return Err(Error::usage(
                format!("expected at most {MOST_STEPS} steps in a pass, found more among {} ranks", job.n()),
                "take fewer ranks or an algorithm with fewer messages; rings alone are swept without a limit",
            ));
        }
        Ok(())
    }

    /// Marks the steps from `first` on by which their rank sends the same to all of `n` − 1 others, who are more than one.
    fn find_to_all(&mut self, first: usize, n: u32, edges: &Edges) {
        let mut start = first;
        while start < self.steps.len() {
            let others = self.steps[start + 1..].iter().take_while(|step| step.sends > 0 && step.fills == 0);
            let end = start + 1 + others.count();
            let run = &self.steps[start..end];
            if n > 2 && run[0].fills == 1 && self.reaches(run, edges) + 1 == n as usize {
                self.steps[start..end].iter_mut().for_each(|step| step.to_all = ToAll::Tells);
                self.steps[start].to_all = ToAll::Stores;
            }
            start = end;
        }
    }

    /// How many ranks these steps send to.
    fn reaches(&self, run: &[Step], edges: &Edges) -> usize {
        let sends = run.iter().flat_map(|step| self.sends(step));
        sends.map(|edge| edges.ends[*edge as usize].1).collect::<BTreeSet<u32>>().len()
    }

    /// Adds the edges among `sites`; how many they are.
    fn add(&mut self, place: u32, sites: &[Site], edges: &mut Edges) -> usize {
        let before = self.edges.len();
        self.edges.extend(sites.iter().filter_map(|site| match *site {
            Site::Receive { peer, tag } => Some(edges.find(peer.0, place, tag)),
            Site::Send { peer, tag } => Some(edges.find(place, peer.0, tag)),
            _ => None,
        }));
        self.edges.len() - before
    }
}

/// What a step copies that its rank has, and how much of it.
fn copied(step: &ccl_plan::cursor::Step) -> Option<(Site, usize)> {
    match step.inputs() {
        [site @ (Site::Input { .. } | Site::Output { .. } | Site::Scratch { .. })] => {
            Some((*site, step.count))
        }
        _ => None,
    }
}

impl Edges {
    fn find(&mut self, from: u32, to: u32, tag: u8) -> u32 {
        // A plan has at most 2^20 places.
        let name = u64::from(from) << 32 | u64::from(to) << 8 | u64::from(tag);
        *self.ids.entry(name).or_insert_with(|| {
            self.ends.push((from, to));
            self.ends.len() as u32 - 1
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// Spreads the bits of an edge's name.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = (self.0 ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Beyond this, memory for steps and edges would pass a gigabyte.
const MOST_STEPS: usize = 8 << 20;
