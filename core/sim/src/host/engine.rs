//! The ranks of a host, taking turns on its cores.

use std::collections::VecDeque;

use ccl_plan::Channel;

use super::{Host, How, LINES, SHORT_BYTES};
use crate::error::{Error, Result};
use crate::job::{Job, Section};
use crate::pass::{Edges, Pass, Step};

/// All there is to a run.
pub(super) struct Engine<'a> {
    host: &'a Host,
    /// How many times as long bytes take in calls of this length.
    far: f64,
    slots: usize,
    calls: usize,
    /// Of each channel, its passes and how often each is repeated.
    passes: Vec<Vec<(Pass, usize)>>,
    lanes: Vec<Lane>,
    ranks: Vec<Place>,
    cores: Vec<Core>,
    edges: Vec<Edge>,
    /// When the last rank was done with each call.
    done_ns: Vec<f64>,
    steps: u64,
}

/// A lane of a rank and where it stands.
struct Lane {
    channel: usize,
    /// Which of the lanes of its channel it is.
    index: usize,
    section: usize,
    repeat: usize,
    step: usize,
    at_end: bool,
}

/// A rank, by its place.
struct Place {
    core: usize,
    lanes: std::ops::Range<usize>,
    /// The lane to look at first.
    lane: usize,
    /// Calls that it is done with.
    calls: usize,
    /// Edges on which it has lent something in this call.
    lent: Vec<u32>,
}

/// A core.
struct Core {
    now_ns: f64,
    /// When anything can happen there.
    next_ns: f64,
    /// The places that share it and have something left to do, and whose turn it is.
    places: Vec<usize>,
    turn: usize,
}

/// An edge. Messages are counted from 0.
struct Edge {
    from: usize,
    to: usize,
    /// Whether it leads from one core to another.
    apart: bool,
    alpha_ns: f64,
    /// Messages sent, and received.
    sent: usize,
    taken: usize,
    /// Of the messages under way, when they arrive, and whether they were lent.
    under_way: VecDeque<(f64, bool)>,
    /// Of the last messages that were taken, when that is seen: as many as may be under way.
    freed: VecDeque<f64>,
    most: usize,
}

impl<'a> Engine<'a> {
    pub(super) fn new(job: &Job, host: &'a Host) -> Result<Engine<'a>> {
        let n = job.n();
        let cores = host.cores(n);
        let core_of = |place: u32| (u64::from(job.rank(place).0) * u64::from(cores) / u64::from(n)) as usize;
        let mut engine = Engine {
            host,
            far: host.far(job.bytes()),
            slots: job.case.slots,
            calls: 0,
            passes: Vec::new(),
            lanes: Vec::new(),
            ranks: Vec::new(),
            cores: Vec::new(),
            edges: Vec::new(),
            done_ns: Vec::new(),
            steps: 0,
        };
        let mut lanes: Vec<Vec<Lane>> = (0..n).map(|_| Vec::new()).collect();
        for channel in (0..job.channels()).map(Channel) {
            let mut edges = Edges::default();
            let mut passes = Vec::new();
            for section in job.sections(channel) {
                let Section { repeat, .. } = section;
                let mut pass = Pass::new(job, channel, section, &mut edges)?;
                pass.edges.iter_mut().for_each(|edge| *edge += engine.edges.len() as u32);
                passes.push((pass, repeat));
            }
            engine.edges.extend(edges.ends.iter().map(|(from, to)| {
                let apart = core_of(*from) != core_of(*to);
                Edge {
                    from: *from as usize,
                    to: *to as usize,
                    apart,
                    alpha_ns: if apart { host.rates.alpha_ns } else { 0.0 },
                    sent: 0,
                    taken: 0,
                    under_way: VecDeque::new(),
                    freed: VecDeque::new(),
                    most: job.case.slots.max(LINES),
                }
            }));
            let mut index = 0;
            for place in 0..n {
                for _ in 0..job.roles[job.role(place)].lanes() {
                    let channel = usize::from(channel.0);
                    lanes[place as usize].push(Lane {
                        channel,
                        index,
                        section: 0,
                        repeat: 0,
                        step: 0,
                        at_end: passes.is_empty(),
                    });
                    index += 1;
                }
            }
            engine.passes.push(passes);
        }
        engine.seat(lanes, core_of);
        Ok(engine)
    }

    fn seat(&mut self, lanes: Vec<Vec<Lane>>, core_of: impl Fn(u32) -> usize) {
        for (place, own) in lanes.into_iter().enumerate() {
            let (core, first) = (core_of(place as u32), self.lanes.len());
            self.lanes.extend(own);
            let lanes = first..self.lanes.len();
            self.ranks.push(Place { core, lane: first, lanes, calls: 0, lent: Vec::new() });
            while self.cores.len() <= core {
                self.cores.push(Core { now_ns: 0.0, next_ns: 0.0, places: Vec::new(), turn: 0 });
            }
            self.cores[core].places.push(place);
        }
    }

    /// Steps of a call, of all ranks.
    pub(super) fn steps_of_call(&self) -> usize {
        self.passes.iter().flatten().map(|(pass, repeat)| pass.steps.len() * repeat).sum()
    }

    /// Runs so many calls; when the last rank was done with each, and how many steps there were.
    pub(super) fn run(mut self, calls: usize) -> Result<(Vec<f64>, u64)> {
        (self.calls, self.done_ns) = (calls, vec![0.0; calls]);
        for lane in 0..self.lanes.len() {
            self.settle(lane);
        }
        loop {
            let next = |core: &usize| self.cores[*core].next_ns;
            let first = (0..self.cores.len()).min_by(|a, b| next(a).total_cmp(&next(b)));
            let Some(core) = first.filter(|core| next(core) < f64::INFINITY) else { break };
            self.advance(core);
        }
        let waiting: usize = self.cores.iter().map(|core| core.places.len()).sum();
        if waiting > 0 {
            return Err(Error::Deadlock { waiting, lanes: self.lanes.len(), slots: self.slots });
        }
        Ok((self.done_ns, self.steps))
    }

    /// What a core does next.
    fn advance(&mut self, index: usize) {
        let core = &mut self.cores[index];
        let many = core.places.len();
        if core.next_ns > core.now_ns {
            // Meanwhile its ranks look in turn whether there is something for them.
            let switch_ns = self.host.rates.switch_ns;
            if many > 1 && switch_ns > 0.0 {
                let turns = ((core.next_ns - core.now_ns) / switch_ns).ceil();
                core.now_ns += turns * switch_ns;
                core.turn = (core.turn + turns as usize) % many;
            } else {
                core.now_ns = core.next_ns;
            }
            core.next_ns = core.now_ns;
            return;
        }
        let place = core.places[core.turn];
        if self.step(place) {
            let core = &mut self.cores[index];
            core.next_ns = if core.places.is_empty() { f64::INFINITY } else { core.now_ns };
            return;
        }
        let now_ns = self.cores[index].now_ns;
        let ready_ns = self.cores[index].places.iter().map(|place| self.ready_ns(*place));
        let ready_ns = ready_ns.fold(f64::INFINITY, f64::min);
        let core = &mut self.cores[index];
        if many > 1 && ready_ns <= now_ns {
            core.now_ns += self.host.rates.switch_ns;
            core.turn = (core.turn + 1) % many;
        }
        core.next_ns = ready_ns.max(core.now_ns);
    }

    /// The next step of a rank, if it can take one now.
    fn step(&mut self, place: usize) -> bool {
        let now_ns = self.cores[self.ranks[place].core].now_ns;
        let Place { lanes, lane, .. } = &self.ranks[place];
        let (first, many, at) = (lanes.start, lanes.len(), *lane - lanes.start);
        for lane in (0..many).map(|k| first + (at + k) % many) {
            if self.lane_ready_ns(lane) <= now_ns {
                self.ranks[place].lane = lane;
                self.take(place, lane);
                return true;
            }
        }
        if self.end_ns(place) <= now_ns {
            self.end_call(place);
            return true;
        }
        false
    }

    /// When a rank can go on; never, as far as is known, if that depends on what others have not done yet.
    fn ready_ns(&self, place: usize) -> f64 {
        let lanes = self.ranks[place].lanes.clone().map(|lane| self.lane_ready_ns(lane));
        lanes.fold(self.end_ns(place), f64::min)
    }

    fn lane_ready_ns(&self, lane: usize) -> f64 {
        let Some((pass, step)) = self.next(lane) else { return f64::INFINITY };
        let arrivals = pass.receives(step).iter().map(|edge| self.edges[*edge as usize].arrival_ns());
        let limit = if step.bytes <= SHORT_BYTES { self.slots.max(LINES) } else { self.slots };
        let credits = pass.sends(step).iter().map(|edge| self.edges[*edge as usize].credit_ns(limit));
        arrivals.chain(credits).fold(0.0, f64::max)
    }

    /// The step that a lane is at.
    fn next(&self, lane: usize) -> Option<(&Pass, &Step)> {
        let Lane { channel, index, section, step, at_end, .. } = self.lanes[lane];
        let pass = if at_end { None } else { self.passes[channel].get(section) };
        pass.map(|(pass, _)| (pass, &pass.of_lane(index)[step]))
    }

    /// When a rank that has no more steps has back what it lent.
    fn end_ns(&self, place: usize) -> f64 {
        let Place { lanes, lent, .. } = &self.ranks[place];
        if lanes.clone().any(|lane| !self.lanes[lane].at_end) {
            return f64::INFINITY;
        }
        lent.iter().map(|edge| self.edges[*edge as usize].empty_ns()).fold(0.0, f64::max)
    }

    fn take(&mut self, place: usize, lane: usize) {
        let Some((pass, step)) = self.next(lane) else { return };
        let (step, receives, sends) = (*step, pass.receives(step).to_vec(), pass.sends(step).to_vec());
        let lends = self.host.lends(&step);
        let count = |is: fn(&Edge) -> bool| {
            receives.iter().filter(|edge| is(&self.edges[**edge as usize])).count() as f64
        };
        let how = How { lends, read: count(Edge::is_lent), apart: count(|edge| edge.apart) };
        let core = self.ranks[place].core;
        self.cores[core].now_ns += self.host.step_ns(&step, how, self.far);
        let now_ns = self.cores[core].now_ns;
        for edge in receives {
            let seen_ns = self.edges[edge as usize].take(now_ns);
            self.wake(self.edges[edge as usize].from, seen_ns);
        }
        for edge in sends {
            let seen_ns = self.edges[edge as usize].send(now_ns, lends);
            self.wake(self.edges[edge as usize].to, seen_ns);
            if lends && !self.ranks[place].lent.contains(&edge) {
                self.ranks[place].lent.push(edge);
            }
        }
        self.lanes[lane].step += 1;
        self.settle(lane);
        self.steps += 1;
    }

    /// Something is there for a rank at this time.
    fn wake(&mut self, place: usize, at_ns: f64) {
        let core = &mut self.cores[self.ranks[place].core];
        if core.places.is_empty() {
            return;
        }
        core.next_ns = core.next_ns.min(at_ns.max(core.now_ns));
    }

    /// Finds the lane's next step in this pass or one of the next.
    fn settle(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        let passes = &self.passes[lane.channel];
        while let Some((pass, repeats)) = passes.get(lane.section) {
            let steps = pass.of_lane(lane.index).len();
            if lane.step < steps {
                return;
            }
            lane.step = 0;
            lane.repeat += 1;
            if lane.repeat >= *repeats || steps == 0 {
                (lane.repeat, lane.section) = (0, lane.section + 1);
            }
        }
        lane.at_end = true;
    }

    fn end_call(&mut self, place: usize) {
        let Place { core, lanes, calls, .. } = &self.ranks[place];
        let (core, lanes, call) = (*core, lanes.clone(), *calls);
        self.cores[core].now_ns += self.host.call_ns;
        let done = &mut self.done_ns[call];
        *done = done.max(self.cores[core].now_ns);
        self.ranks[place].lent.clear();
        self.ranks[place].lane = lanes.start;
        self.ranks[place].calls += 1;
        if call + 1 == self.calls {
            let core = &mut self.cores[core];
            core.places.retain(|other| *other != place);
            match core.places.len() {
                0 => core.next_ns = f64::INFINITY,
                left => {
                    core.turn %= left;
                    core.now_ns += self.host.rates.switch_ns;
                }
            }
            return;
        }
        for lane in lanes {
            let start = &mut self.lanes[lane];
            (start.section, start.repeat, start.step, start.at_end) = (0, 0, 0, false);
            self.settle(lane);
        }
    }
}

impl Edge {
    fn arrival_ns(&self) -> f64 {
        self.under_way.front().map_or(f64::INFINITY, |(arrival_ns, _)| *arrival_ns)
    }

    fn is_lent(&self) -> bool {
        self.under_way.front().is_some_and(|(_, lent)| *lent)
    }

    /// When there is leave for the next message, with at most `limit` under way.
    fn credit_ns(&self, limit: usize) -> f64 {
        if self.sent < limit {
            return 0.0;
        }
        // The message that must have been taken, and how many have been taken after it.
        let since = (self.taken + limit).checked_sub(self.sent + 1);
        let freed = since.map(|since| self.freed.len().checked_sub(since + 1).map(|at| self.freed[at]));
        freed.map_or(f64::INFINITY, |freed| freed.unwrap_or(0.0))
    }

    /// When all is back.
    fn empty_ns(&self) -> f64 {
        self.credit_ns(1)
    }

    fn send(&mut self, now_ns: f64, lent: bool) -> f64 {
        self.sent += 1;
        self.under_way.push_back((now_ns + self.alpha_ns, lent));
        now_ns + self.alpha_ns
    }

    fn take(&mut self, now_ns: f64) -> f64 {
        self.under_way.pop_front();
        self.taken += 1;
        if self.freed.len() == self.most {
            self.freed.pop_front();
        }
        self.freed.push_back(now_ns + self.alpha_ns);
        now_ns + self.alpha_ns
    }
}
