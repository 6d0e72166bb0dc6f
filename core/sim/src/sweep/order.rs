//! The sweep of any plan: one pass's steps in an order in which each can run, repeated.
//!
//! Every full pass has the same steps with the same dependences, and ends with all edges empty. So the
//! order found for one pass serves all, and nothing is waited for, looked up or evaluated while clocks
//! run. Where every lane has one step in a pass, as in trees and chains, the order serves as many passes
//! at a time as an edge has slots, with the clocks of an edge side by side in memory.

use ccl_plan::machine::clock::Link;
use ccl_plan::{Channel, Rank};

use super::{Costs, Swept, later};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::pass::{Edges, Pass};

/// Sweeps a channel.
pub(super) fn run<L>(job: &Job, costs: &Costs<L>, channel: Channel) -> Result<Swept>
where
    L: Fn(Rank, Rank, Channel) -> Link,
{
    let mut edges = Edges::default();
    let mut state = State::new(job.case.slots);
    for section in job.sections(channel) {
        let pass = Pass::new(job, channel, section, &mut edges)?;
        let mut schedule = Schedule::new(&pass, edges.len(), job.case.slots, costs.gamma_ns_per_byte)?;
        state.seat(&mut schedule, pass.first.len() - 1, |edge| {
            let (from, to) = edges.ends[edge as usize];
            let (from, to) = (job.rank(from), job.rank(to));
            let there = (costs.link)(from, to, channel);
            let back = (costs.link)(to, from, channel);
            Ends { alpha_ns: there.alpha_ns, beta: there.beta_ns_per_byte, back_ns: back.alpha_ns }
        });
        state.repeat(&schedule, section.repeat);
    }
    Ok(Swept { finish_ns: state.lanes.iter().copied().fold(0.0, later), steps: state.steps })
}

/// The steps of a pass, in an order in which each can run.
struct Schedule {
    turns: Vec<Turn>,
    edges: Vec<u32>,
    /// Passes that a turn may do at a time.
    abreast: usize,
}

/// One step of one lane.
struct Turn {
    lane: u32,
    /// The first of its edges, the receives before the sends.
    edges: u32,
    receives: u8,
    sends: u8,
    fold_ns: f64,
    bytes: f64,
}

/// The cost of an edge: of a message on it and of the credit back.
struct Ends {
    alpha_ns: f64,
    beta: f64,
    back_ns: f64,
}

struct State {
    slots: usize,
    /// For each lane and edge of a pass, its index here.
    lane_seats: Vec<u32>,
    edge_seats: Vec<u32>,
    lanes: Vec<f64>,
    links: Vec<Ends>,
    /// For each edge, slots filled and emptied so far.
    filled: Vec<u32>,
    emptied: Vec<u32>,
    /// For each slot of each edge, when its content arrives and when its credit is back.
    arrivals: Vec<f64>,
    credits: Vec<f64>,
    steps: u64,
}

impl Schedule {
    fn new(pass: &Pass, edge_count: usize, slots: usize, gamma: f64) -> Result<Schedule> {
        let lanes = pass.first.len() - 1;
        let mut flow = Flow::new(pass, edge_count, slots);
        let mut turns = Vec::with_capacity(pass.steps.len());
        let mut edges = Vec::with_capacity(pass.edges.len());
        let mut ready: Vec<u32> = (0..lanes as u32).rev().collect();
        while let Some(lane) = ready.pop() {
            while let Some(step) = pass.of_lane(lane as usize).get(flow.done[lane as usize] as usize) {
                if !flow.take(pass, step, lane, &mut ready) {
                    break;
                }
                let folded = step.bytes * u64::from(step.folds);
                turns.push(Turn {
                    lane,
                    edges: edges.len() as u32,
                    receives: step.receives,
                    sends: step.sends,
                    fold_ns: gamma * folded as f64,
                    bytes: step.bytes as f64,
                });
                edges.extend(pass.receives(step).iter().chain(pass.sends(step)));
            }
        }
        if turns.len() < pass.steps.len() {
            let waiting = (0..lanes).filter(|lane| (flow.done[*lane] as usize) < pass.of_lane(*lane).len());
            return Err(Error::Deadlock { waiting: waiting.count(), lanes, slots });
        }
        let one_each = (0..lanes).all(|lane| pass.of_lane(lane).len() <= 1);
        let abreast = if one_each { slots / flow.most.max(1) as usize } else { 1 };
        Ok(Schedule { turns, edges, abreast: abreast.max(1) })
    }
}

/// Where a pass stands while its order is found.
struct Flow {
    /// Steps done by each lane.
    done: Vec<u32>,
    /// For each edge: filled slots, who waits for one, free slots, who waits for one.
    edges: Vec<(u32, u32, u32, u32)>,
    /// The most slots that an edge carries in this pass.
    most: u32,
    carried: Vec<u32>,
}

impl Flow {
    fn new(pass: &Pass, edge_count: usize, slots: usize) -> Flow {
        Flow {
            done: vec![0; pass.first.len() - 1],
            edges: vec![(0, NOBODY, slots as u32, NOBODY); edge_count],
            most: 0,
            carried: vec![0; edge_count],
        }
    }

    /// Carries out a lane's next step if it can run, and adds whom that frees; else notes what is waited for.
    fn take(&mut self, pass: &Pass, step: &crate::pass::Step, lane: u32, ready: &mut Vec<u32>) -> bool {
        let (receives, sends) = (pass.receives(step), pass.sends(step));
        if let Some(edge) = receives.iter().find(|edge| self.edges[**edge as usize].0 == 0) {
            self.edges[*edge as usize].1 = lane;
            return false;
        }
        if let Some(edge) = sends.iter().find(|edge| self.edges[**edge as usize].2 == 0) {
            self.edges[*edge as usize].3 = lane;
            return false;
        }
        self.done[lane as usize] += 1;
        for edge in receives {
            let (filled, _, free, sender) = &mut self.edges[*edge as usize];
            (*filled, *free) = (*filled - 1, *free + 1);
            ready.extend(freed(sender));
        }
        for edge in sends {
            let (filled, receiver, free, _) = &mut self.edges[*edge as usize];
            (*filled, *free) = (*filled + 1, *free - 1);
            ready.extend(freed(receiver));
            self.carried[*edge as usize] += 1;
            self.most = self.most.max(self.carried[*edge as usize]);
        }
        true
    }
}

fn freed(waiting: &mut u32) -> Option<u32> {
    let lane = std::mem::replace(waiting, NOBODY);
    (lane != NOBODY).then_some(lane)
}

impl State {
    fn new(slots: usize) -> State {
        State {
            slots,
            lane_seats: Vec::new(),
            edge_seats: Vec::new(),
            lanes: Vec::new(),
            links: Vec::new(),
            filled: Vec::new(),
            emptied: Vec::new(),
            arrivals: Vec::new(),
            credits: Vec::new(),
            steps: 0,
        }
    }

    /// Numbers lanes and edges in the order in which the first schedule comes to them, so that memory is gone
    /// through from one end to the other; later schedules keep the numbers.
    fn seat(&mut self, schedule: &mut Schedule, lanes: usize, link: impl Fn(u32) -> Ends) {
        self.lane_seats.resize(lanes, NOBODY);
        for turn in &mut schedule.turns {
            let seat = &mut self.lane_seats[turn.lane as usize];
            if *seat == NOBODY {
                *seat = self.lanes.len() as u32;
                self.lanes.push(0.0);
            }
            turn.lane = *seat;
        }
        for edge in &mut schedule.edges {
            if self.edge_seats.len() <= *edge as usize {
                self.edge_seats.resize(*edge as usize + 1, NOBODY);
            }
            let seat = &mut self.edge_seats[*edge as usize];
            if *seat == NOBODY {
                *seat = self.links.len() as u32;
                self.links.push(link(*edge));
            }
            *edge = *seat;
        }
        let edges = self.links.len();
        self.filled.resize(edges, 0);
        self.emptied.resize(edges, 0);
        self.arrivals.resize(edges * self.slots, 0.0);
        self.credits.resize(edges * self.slots, 0.0);
    }

    fn repeat(&mut self, schedule: &Schedule, passes: usize) {
        let mut left = passes;
        while left > 0 {
            let abreast = left.min(schedule.abreast);
            match (abreast, self.slots) {
                (2, 2) => schedule.turns.iter().for_each(|turn| self.turn_abreast::<2>(turn, schedule)),
                (4, 4) => schedule.turns.iter().for_each(|turn| self.turn_abreast::<4>(turn, schedule)),
                (8, 8) => schedule.turns.iter().for_each(|turn| self.turn_abreast::<8>(turn, schedule)),
                _ => schedule.turns.iter().for_each(|turn| self.turn(turn, schedule, abreast)),
            }
            left -= abreast;
        }
        self.steps += (schedule.turns.len() * passes) as u64;
    }

    /// Carries out a step for so many passes.
    #[inline]
    fn turn(&mut self, turn: &Turn, schedule: &Schedule, passes: usize) {
        let edges = &schedule.edges[turn.edges as usize..];
        let (receives, edges) = edges.split_at(usize::from(turn.receives));
        let sends = &edges[..usize::from(turn.sends)];
        let mut clock = self.lanes[turn.lane as usize];
        for _ in 0..passes {
            for edge in receives {
                clock = later(clock, self.arrivals[self.slot(*edge, self.emptied[*edge as usize])]);
            }
            for edge in sends {
                clock = later(clock, self.credits[self.slot(*edge, self.filled[*edge as usize])]);
            }
            clock += turn.fold_ns;
            for edge in receives {
                let slot = self.slot(*edge, self.emptied[*edge as usize]);
                self.credits[slot] = clock + self.links[*edge as usize].back_ns;
                self.emptied[*edge as usize] = self.next(self.emptied[*edge as usize]);
            }
            for edge in sends {
                let slot = self.slot(*edge, self.filled[*edge as usize]);
                clock += self.links[*edge as usize].beta * turn.bytes;
                self.arrivals[slot] = clock + self.links[*edge as usize].alpha_ns;
                self.filled[*edge as usize] = self.next(self.filled[*edge as usize]);
            }
        }
        self.lanes[turn.lane as usize] = clock;
    }

    /// Carries out a step for as many passes as an edge has slots: slot p is that of pass p. Between such
    /// turns all edges begin at slot 0.
    #[inline]
    fn turn_abreast<const S: usize>(&mut self, turn: &Turn, schedule: &Schedule) {
        let (arrivals, _) = self.arrivals.as_chunks_mut::<S>();
        let (credits, _) = self.credits.as_chunks_mut::<S>();
        let edges = &schedule.edges[turn.edges as usize..];
        let (receives, edges) = edges.split_at(usize::from(turn.receives));
        let sends = &edges[..usize::from(turn.sends)];
        let mut clocks = [0.0; S];
        for edge in receives {
            let row = &arrivals[*edge as usize];
            (0..S).for_each(|p| clocks[p] = later(clocks[p], row[p]));
        }
        let mut send_ns = [0.0; 4];
        for (k, edge) in sends.iter().enumerate() {
            let row = &credits[*edge as usize];
            (0..S).for_each(|p| clocks[p] = later(clocks[p], row[p]));
            send_ns[k] = self.links[*edge as usize].beta * turn.bytes;
        }
        let mut clock = self.lanes[turn.lane as usize];
        for done in &mut clocks {
            *done = later(clock, *done) + turn.fold_ns;
            clock = send_ns[..sends.len()].iter().fold(*done, |clock, send_ns| clock + send_ns);
        }
        self.lanes[turn.lane as usize] = clock;
        for edge in receives {
            let back_ns = self.links[*edge as usize].back_ns;
            let row = &mut credits[*edge as usize];
            (0..S).for_each(|p| row[p] = clocks[p] + back_ns);
        }
        for (k, edge) in sends.iter().enumerate() {
            let alpha_ns = self.links[*edge as usize].alpha_ns;
            let row = &mut arrivals[*edge as usize];
            for p in 0..S {
                clocks[p] += send_ns[k];
                row[p] = clocks[p] + alpha_ns;
            }
        }
    }

    #[inline]
    fn slot(&self, edge: u32, position: u32) -> usize {
        edge as usize * self.slots + position as usize
    }

    /// The slot after one, around the edge.
    #[inline]
    fn next(&self, position: u32) -> u32 {
        if position as usize + 1 == self.slots { 0 } else { position + 1 }
    }
}

const NOBODY: u32 = u32::MAX;
