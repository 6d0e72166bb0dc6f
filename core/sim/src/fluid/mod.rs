//! Engine S2: the sweep's steps over links that are shared.
//!
//! A send is a flow over the links of its route. It gets at most its edge's own bandwidth, 1/β; where a
//! link has less than its flows could take together, they share it **max-min fairly**: nobody can get more
//! without somebody getting less who has no more. The sender's lane waits for the end of the flow; α, γ
//! and credits are those of [`sweep`](mod@crate::sweep), and on links that are wide enough so are all times.
//!
//! Events are carried out in the order of their times, in whole picoseconds, so that flows that end
//! together end together. Rates change only where a flow begins or ends on a link that is short.
//!
//! Source of the sharing: D. Bertsekas and R. Gallager, "Data Networks", section 6.5 (1992).

mod share;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ccl_plan::machine::clock::Link;
use ccl_plan::{Channel, Rank};

use self::share::Shares;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::pass::{Edges, Pass, Step, ToAll};
use crate::sweep::Swept;

/// The way of an edge.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    /// α, and β of the edge alone.
    pub link: Link,
    /// The shared links on the way, by index.
    pub shared: Vec<u32>,
}

/// Plays a job on shared links.
///
/// `route` gives the way of an edge from one rank to another in a channel, and `gb_per_s` what each
/// shared link carries; infinite is allowed. Needs memory for every step of a pass, and time for every
/// message: for up to some thousand ranks.
///
/// Fails if the plan's ranks wait for each other for ever, and if it has too many steps to keep.
pub fn fluid<R>(job: &Job, route: R, gamma_ns_per_byte: f64, gb_per_s: &[f64]) -> Result<Swept>
where
    R: Fn(Rank, Rank, Channel) -> Route,
{
    fluid_by_switch(job, (route, |_, _| None), gamma_ns_per_byte, gb_per_s)
}

/// The same where a switch copies what a rank sends to all others: `to_all` gives the way to them at once from a rank in a
/// channel, or none. Such a payload is one flow over the links of that way, and arrives at each receiver when it is told, as on
/// its edge alone.
pub fn fluid_by_switch<R, A>(
    job: &Job,
    (route, to_all): (R, A),
    gamma_ns_per_byte: f64,
    gb_per_s: &[f64],
) -> Result<Swept>
where
    R: Fn(Rank, Rank, Channel) -> Route,
    A: Fn(Rank, Channel) -> Option<Route>,
{
    let mut play = Play::new(gamma_ns_per_byte, gb_per_s, job.case.slots as u32);
    for channel in (0..job.channels()).map(Channel) {
        let mut edges = Edges::default();
        let mut passes = Vec::new();
        for section in job.sections(channel) {
            passes.push((Pass::new(job, channel, section, &mut edges)?, section.repeat));
        }
        let routes = edges.ends.iter().map(|(from, to)| {
            let (from, to) = (job.rank(*from), job.rank(*to));
            (route(from, to, channel), route(to, from, channel).link.alpha_ns)
        });
        let first_edge = play.add(passes, routes);
        for place in 0..job.n() {
            if let Some(route) = to_all(job.rank(place), channel) {
                play.add_to_all(place, route, (first_edge, &edges));
            }
        }
    }
    play.run(job)
}

/// A channel: its passes, and where its edges begin among those of all channels.
struct Script {
    passes: Vec<(Pass, usize)>,
    first_edge: u32,
}

/// One lane of one place.
struct Lane {
    script: u32,
    /// Its index in its channel.
    index: u32,
    /// Run of passes, pass in it, step in that.
    at: (usize, usize, usize),
    sent: u8,
    busy: bool,
}

struct Edge {
    alpha_ps: u64,
    back_ps: u64,
    arrived: u32,
    credits: u32,
    /// The lanes at its ends, once known.
    sender: u32,
    receiver: u32,
    /// The edge that stands for the way from its sender to all others, if there is one.
    to_all: u32,
}

/// What happens to an edge or lane at a moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { edge: u32 },
    Credit { edge: u32 },
    Folded { lane: u32 },
    Flowed { flow: u32, version: u32 },
}

struct Play {
    gamma: f64,
    slots: u32,
    scripts: Vec<Script>,
    lanes: Vec<Lane>,
    edges: Vec<Edge>,
    shares: Shares,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    now_ps: u64,
    /// When the last step so far was done; credits may be under way for longer.
    finish_ps: u64,
    steps: u64,
}

impl Play {
    fn new(gamma: f64, gb_per_s: &[f64], slots: u32) -> Play {
        Play {
            gamma,
            slots,
            scripts: Vec::new(),
            lanes: Vec::new(),
            edges: Vec::new(),
            shares: Shares::new(gb_per_s),
            events: BinaryHeap::new(),
            now_ps: 0,
            finish_ps: 0,
            steps: 0,
        }
    }

    /// Adds a channel; where its edges begin.
    fn add(&mut self, passes: Vec<(Pass, usize)>, routes: impl Iterator<Item = (Route, f64)>) -> u32 {
        let first_edge = self.edges.len() as u32;
        let lanes = passes.first().map_or(0, |(pass, _)| pass.first.len() as u32 - 1);
        let script = self.scripts.len() as u32;
        self.lanes.extend((0..lanes).map(|index| Lane {
            script,
            index,
            at: (0, 0, 0),
            sent: 0,
            busy: false,
        }));
        self.scripts.push(Script { passes, first_edge });
        for (Route { link, shared }, back_ns) in routes {
            self.shares.add_route(shared, 1.0 / link.beta_ns_per_byte);
            self.edges.push(Edge {
                alpha_ps: ps(link.alpha_ns),
                back_ps: ps(back_ns),
                arrived: 0,
                credits: self.slots,
                sender: NOBODY,
                receiver: NOBODY,
                to_all: NOBODY,
            });
        }
        first_edge
    }

    /// Adds the way from a place to all others, as an edge that nobody waits for.
    fn add_to_all(&mut self, place: u32, Route { link, shared }: Route, (first_edge, edges): (u32, &Edges)) {
        let way = self.edges.len() as u32;
        self.shares.add_route(shared, 1.0 / link.beta_ns_per_byte);
        let [sender, receiver, to_all] = [NOBODY; 3];
        self.edges.push(Edge { alpha_ps: 0, back_ps: 0, arrived: 0, credits: 0, sender, receiver, to_all });
        for (edge, _) in (first_edge..).zip(&edges.ends).filter(|(_, (from, _))| *from == place) {
            self.edges[edge as usize].to_all = way;
        }
    }

    fn run(mut self, job: &Job) -> Result<Swept> {
        (0..self.lanes.len() as u32).for_each(|lane| self.go_on(lane));
        self.settle();
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now_ps = at;
            self.on(event);
            if self.events.peek().is_none_or(|Reverse((next, _))| *next > at) {
                self.settle();
            }
        }
        let waiting = (0..self.lanes.len()).filter(|lane| self.step(*lane as u32).is_some()).count();
        match waiting {
            0 => Ok(Swept { finish_ns: self.finish_ps as f64 / PS_PER_NS, steps: self.steps }),
            _ => Err(Error::Deadlock { waiting, lanes: self.lanes.len(), slots: job.case.slots }),
        }
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Arrival { edge } => {
                self.edges[edge as usize].arrived += 1;
                self.go_on(self.edges[edge as usize].receiver);
            }
            Event::Credit { edge } => {
                self.edges[edge as usize].credits += 1;
                self.go_on(self.edges[edge as usize].sender);
            }
            Event::Folded { lane } => self.folded(lane),
            Event::Flowed { flow, version } => {
                if let Some(lane) = self.shares.end(flow, version) {
                    self.flowed(lane);
                }
            }
        }
    }

    /// The step that a lane is at, with the edges that it empties and fills a slot of.
    fn step(&self, lane: u32) -> Option<(Step, Vec<u32>, Vec<u32>)> {
        let Lane { script, index, at, .. } = self.lanes[lane as usize];
        let Script { passes, first_edge } = &self.scripts[script as usize];
        let (pass, _) = passes.get(at.0)?;
        let step = pass.of_lane(index as usize).get(at.2)?;
        let global = |edges: &[u32]| edges.iter().map(|edge| first_edge + edge).collect();
        Some((*step, global(pass.receives(step)), global(pass.sends(step))))
    }

    /// Begins a lane's next step if it can.
    fn go_on(&mut self, lane: u32) {
        if lane == NOBODY || self.lanes[lane as usize].busy {
            return;
        }
        self.skip_ends(lane);
        let Some((step, receives, sends)) = self.step(lane) else { return };
        receives.iter().for_each(|edge| self.edges[*edge as usize].receiver = lane);
        sends.iter().for_each(|edge| self.edges[*edge as usize].sender = lane);
        let ready = receives.iter().all(|edge| self.edges[*edge as usize].arrived > 0)
            && sends.iter().all(|edge| self.edges[*edge as usize].credits > 0);
        if !ready {
            return;
        }
        receives.iter().for_each(|edge| self.edges[*edge as usize].arrived -= 1);
        sends.iter().for_each(|edge| self.edges[*edge as usize].credits -= 1);
        self.lanes[lane as usize].busy = true;
        let fold_ns = self.gamma * (step.bytes * u64::from(step.folds)) as f64;
        self.after(ps(fold_ns), Event::Folded { lane });
    }

    /// Moves a lane that is behind its last step of a pass to the next pass in which it has one.
    fn skip_ends(&mut self, lane: u32) {
        let Lane { script, index, at, .. } = &mut self.lanes[lane as usize];
        while let Some((pass, repeat)) = self.scripts[*script as usize].passes.get(at.0) {
            if at.2 < pass.of_lane(*index as usize).len() {
                return;
            }
            let again = at.1 + 1 < *repeat && !pass.of_lane(*index as usize).is_empty();
            *at = if again { (at.0, at.1 + 1, 0) } else { (at.0 + 1, 0, 0) };
        }
    }

    /// The fold is done: credits go back, and the first send begins.
    fn folded(&mut self, lane: u32) {
        let Some((_, receives, _)) = self.step(lane) else { return };
        for edge in receives {
            self.after(self.edges[edge as usize].back_ps, Event::Credit { edge });
        }
        self.send(lane);
    }

    /// Begins the next send of a lane's step, or ends the step.
    fn send(&mut self, lane: u32) {
        let Some((step, _, sends)) = self.step(lane) else { return };
        let sent = self.lanes[lane as usize].sent;
        match sends.get(usize::from(sent)) {
            Some(edge) => match (step.to_all, self.edges[*edge as usize].to_all) {
                (ToAll::No, _) | (_, NOBODY) => {
                    self.shares.begin(*edge, lane, step.bytes as f64, self.now_ps);
                }
                (ToAll::Stores, way) if sent == 0 => {
                    self.shares.begin(way, lane, step.bytes as f64, self.now_ps);
                }
                // The payload is there already.
                _ => self.flowed(lane),
            },
            None => {
                let lane_at = &mut self.lanes[lane as usize];
                (lane_at.sent, lane_at.busy) = (0, false);
                lane_at.at.2 += 1;
                self.steps += 1;
                self.finish_ps = self.now_ps;
                self.go_on(lane);
            }
        }
    }

    /// A flow of a lane has ended.
    fn flowed(&mut self, lane: u32) {
        let Some((_, _, sends)) = self.step(lane) else { return };
        let edge = sends[usize::from(self.lanes[lane as usize].sent)];
        self.lanes[lane as usize].sent += 1;
        self.after(self.edges[edge as usize].alpha_ps, Event::Arrival { edge });
        self.send(lane);
    }

    /// Shares links anew, when nothing more happens now.
    fn settle(&mut self) {
        let events = &mut self.events;
        self.shares.settle(self.now_ps, |at_ps, flow, version| {
            events.push(Reverse((at_ps, Event::Flowed { flow, version })));
        });
    }

    fn after(&mut self, ps: u64, event: Event) {
        self.events.push(Reverse((self.now_ps + ps, event)));
    }
}

/// Nanoseconds in picoseconds.
fn ps(ns: f64) -> u64 {
    (ns * PS_PER_NS).round() as u64
}

const PS_PER_NS: f64 = 1000.0;
const NOBODY: u32 = u32::MAX;
