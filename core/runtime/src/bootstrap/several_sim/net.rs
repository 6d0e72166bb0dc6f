//! A fake network of ranks and roots with a fake clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::bootstrap::auth::Key;
use crate::bootstrap::infos::Infos;
use crate::bootstrap::joiner::{self, Joiner, Outcome, Purpose};
use crate::bootstrap::machine::{self, Conn, Ending, Event, Time};
use crate::bootstrap::process::Life;
use crate::bootstrap::roots::{Ids, share};
use crate::bootstrap::sim::{Dice, info_of, process};
use crate::bootstrap::station::Station;
use crate::bootstrap::wire::{Cause, ToRoot};
use crate::bootstrap::*;
use crate::control::member::{self, Member};
use crate::observe::board::Snapshot;

/// The network, its ranks and its roots.
pub(super) struct Net {
    pub(super) name: String,
    pub(super) dice: Dice,
    pub(super) now: Time,
    pub(super) queue: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) happenings: BTreeMap<u64, Happening>,
    pub(super) count: u64,
    pub(super) ids: Vec<UniqueId>,
    pub(super) roots: Vec<RootSim>,
    pub(super) ranks: Vec<RankSim>,
    /// Every connection that was ever made, by a number of its own.
    pub(super) pipes: Vec<Pipe>,
    pub(super) loss_percent: u32,
}

pub(super) struct RootSim {
    pub(super) station: Station,
    pub(super) listens_from: Time,
    pub(super) finished: bool,
    pub(super) dead: bool,
    /// Its connections, as it numbers them.
    pub(super) conns: BTreeMap<Conn, usize>,
    pub(super) next_conn: u64,
    pub(super) counts: Counts,
}

/// What one root has had to do.
#[derive(Clone, Default, Debug)]
pub(super) struct Counts {
    pub(super) connections: usize,
    pub(super) from_ranks: usize,
    pub(super) to_ranks: usize,
    pub(super) from_roots: usize,
    pub(super) to_roots: usize,
}

pub(super) struct RankSim {
    pub(super) ids: Vec<UniqueId>,
    pub(super) n: u32,
    pub(super) purpose: Option<&'static str>,
    pub(super) machine: Machine,
    pub(super) pipe: Option<usize>,
    pub(super) infos: Option<Infos>,
    pub(super) error: Option<Error>,
    pub(super) cause: Option<Cause>,
    pub(super) orphaned: Option<Error>,
    /// How many infos each round had.
    pub(super) rounds: Vec<usize>,
    pub(super) mail: Vec<(u32, u8)>,
    pub(super) over_at: Time,
    pub(super) dead: bool,
}

pub(super) enum Machine {
    Absent,
    Joining(Box<Joiner>),
    In(Box<Member>),
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Rank(u32),
    Root(usize),
}

/// A connection from a rank or a root to a root; messages keep their order in each direction.
pub(super) struct Pipe {
    from: End,
    to: usize,
    /// What the root that connects calls it.
    as_caller: Conn,
    as_listener: Conn,
    /// Whether either end has let go of it.
    closed: [bool; 2],
    latest: [Time; 2],
    sent_up: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Happening {
    Arrive {
        rank: u32,
    },
    Accepted {
        pipe: usize,
    },
    Connected {
        pipe: usize,
    },
    Unconnected {
        from: End,
        conn: Conn,
    },
    /// A frame arrives, at the root that listens or at whoever connected.
    Arrived {
        pipe: usize,
        down: bool,
        body: Vec<u8>,
    },
    Closed {
        pipe: usize,
        down: bool,
    },
    RootTick {
        root: usize,
    },
    RankTick {
        rank: u32,
    },
    Die {
        rank: u32,
    },
    KillRoot {
        root: usize,
    },
    Say {
        rank: u32,
        message: ToRoot,
    },
    Leave {
        rank: u32,
    },
}

impl Net {
    pub(super) fn new(seed: u64, n: u32, k: u32) -> Net {
        let settings = settings();
        let life: crate::control::hub::LifeOf = |_, _| Life::Running;
        let address = |index: u32| vec![format!("10.0.0.{}:4000", index + 1).parse().unwrap()];
        // Ids by seed, so that a schedule can be run again.
        let ids: Vec<UniqueId> =
            (0..k).map(|index| UniqueId::agreed(address(index), &format!("{seed} {index}"))).collect();
        let root = |(index, id): (u32, &UniqueId)| RootSim {
            // Beside the first rank of its share.
            station: Station::new(
                Key::new(id),
                &settings,
                (process(share(index, n, k).start), life),
                Duration::ZERO,
            ),
            listens_from: Duration::ZERO,
            finished: false,
            dead: false,
            conns: BTreeMap::new(),
            next_conn: 0,
            counts: Counts::default(),
        };
        let rank = |_| RankSim {
            ids: ids.clone(),
            n,
            purpose: None,
            machine: Machine::Absent,
            pipe: None,
            infos: None,
            error: None,
            cause: None,
            orphaned: None,
            rounds: Vec::new(),
            mail: Vec::new(),
            over_at: Duration::ZERO,
            dead: false,
        };
        Net {
            name: format!("seed {seed}, n {n}, k {k}"),
            dice: Dice(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            count: 0,
            roots: (0..).zip(&ids).map(root).collect(),
            ranks: (0..n).map(rank).collect(),
            ids,
            pipes: Vec::new(),
            loss_percent: 0,
        }
    }

    pub(super) fn head(&self) -> usize {
        Ids::new(&self.ids, self.ranks.len() as u32).unwrap().head()
    }

    pub(super) fn error(&self, rank: u32) -> &Error {
        let error = self.ranks[rank as usize].error.as_ref();
        error.unwrap_or_else(|| panic!("{}: rank {rank} hangs", self.name))
    }

    pub(super) fn expect_all_in(&self) {
        for (rank, sim) in self.ranks.iter().enumerate() {
            let infos = sim.infos.as_ref();
            let infos = infos.unwrap_or_else(|| panic!("{}: rank {rank}: {:?}", self.name, sim.error));
            assert_eq!(infos.len(), self.ranks.len());
            assert!((0..).zip(infos.to_vec()).all(|(rank, info)| info == info_of(rank)), "{}", self.name);
        }
    }

    pub(super) fn expect_one_cause(&self) {
        let survivors = self.ranks.iter().filter(|rank| !rank.dead);
        let causes: Vec<Option<&Cause>> = survivors.map(|rank| rank.cause.as_ref()).collect();
        if let Some(first) = causes.first() {
            assert!(first.is_some(), "{}: nobody was told", self.name);
            assert!(causes.iter().all(|cause| cause == first), "{}: {causes:?}", self.name);
        }
    }

    pub(super) fn expect_one_culprit(&self, culprit: u32) {
        let survivors = self.ranks.iter().enumerate().filter(|(_, rank)| !rank.dead);
        for (rank, sim) in survivors {
            let cause =
                sim.cause.as_ref().unwrap_or_else(|| panic!("{}: rank {rank} was not told", self.name));
            assert_eq!(cause.culprit, Some(culprit), "{}: rank {rank}: {cause:?}", self.name);
            assert!(cause.text.contains(&format!("rank {culprit} (pid ")), "{}: {}", self.name, cause.text);
        }
    }

    /// Roots end, other than those that nobody came to.
    pub(super) fn expect_roots_end(&self, missing: &BTreeSet<u32>) {
        let (n, k) = (self.ranks.len() as u32, self.ids.len() as u32);
        for (index, root) in self.roots.iter().enumerate() {
            let visited =
                share(index as u32, n, k).any(|rank| !missing.contains(&rank)) || index == self.head();
            assert!(root.finished || !visited, "{}: root {index} must end", self.name);
        }
    }

    pub(super) fn counts(&self) -> Vec<Counts> {
        self.roots.iter().map(|root| root.counts.clone()).collect()
    }

    pub(super) fn reset_counts(&mut self) {
        self.roots.iter_mut().for_each(|root| root.counts = Counts::default());
    }

    pub(super) fn arrive_all(&mut self, but: &[u32]) {
        for root in 0..self.roots.len() {
            self.tick_root_later(root);
        }
        for rank in (0..self.ranks.len() as u32).filter(|rank| !but.contains(rank)) {
            self.arrive(rank);
        }
    }

    pub(super) fn arrive(&mut self, rank: u32) {
        let at = self.dice.time(ARRIVALS);
        self.at(at, Happening::Arrive { rank });
    }

    pub(super) fn leave_all(&mut self) {
        for rank in 0..self.ranks.len() as u32 {
            let at = self.now + self.dice.time(Duration::from_millis(20));
            self.at(at, Happening::Leave { rank });
        }
        self.run_until(self.now + Duration::from_secs(2));
    }

    pub(super) fn run(&mut self) {
        self.run_until(self.now + LONG);
    }

    pub(super) fn run_until(&mut self, until: Time) {
        while let Some(Reverse((at, number))) = self.queue.peek().copied().filter(|next| next.0.0 <= until) {
            self.queue.pop();
            self.now = at;
            let happening = self.happenings.remove(&number).unwrap();
            self.happen(happening);
        }
        self.now = until;
    }

    pub(super) fn at(&mut self, at: Time, happening: Happening) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count)));
        self.happenings.insert(self.count, happening);
    }

    fn latency(&mut self) -> Time {
        Duration::from_micros(50) + self.dice.time(Duration::from_micros(400))
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive { rank } => self.join(rank),
            Happening::Accepted { pipe } => {
                let (to, conn) = (self.pipes[pipe].to, self.pipes[pipe].as_listener);
                let address = "10.0.1.1:5000".parse().unwrap();
                self.root_event(to, Event::Accepted { conn, address, nonce: [pipe as u8; 32] });
            }
            Happening::Connected { pipe } if !self.pipes[pipe].closed[0] => {
                let conn = self.pipes[pipe].as_caller;
                match self.pipes[pipe].from {
                    End::Rank(rank) => {
                        self.joiner_event(rank, joiner::Event::Connected { nonce: [rank as u8; 32] })
                    }
                    End::Root(root) => {
                        self.root_event(root, Event::Connected { conn, nonce: [root as u8; 32] })
                    }
                }
            }
            Happening::Connected { .. } => {}
            Happening::Unconnected { from: End::Rank(rank), .. } => {
                self.joiner_event(rank, joiner::Event::Unconnected("refused".into()));
            }
            Happening::Unconnected { from: End::Root(root), conn } => {
                let why = Ending::Unreachable("refused".into());
                self.root_event(root, Event::Closed { conn, why });
            }
            Happening::Arrived { pipe, down, body } => self.arrived(pipe, down, body),
            Happening::Closed { pipe, down } => self.ended(pipe, down),
            Happening::RootTick { root } => self.root_event(root, Event::Tick),
            Happening::RankTick { rank } => self.tick(rank),
            Happening::Die { rank } => self.die(rank),
            Happening::KillRoot { root } => self.kill_root(root),
            Happening::Say { rank, message } => self.say(rank, &message),
            Happening::Leave { rank } => self.leave(rank),
        }
    }

    fn join(&mut self, rank: u32) {
        let sim = &mut self.ranks[rank as usize];
        let purpose = match sim.purpose {
            Some(reason) => Purpose::Fail { reason: reason.into() },
            None => Purpose::Join { process: process(rank), info: info_of(rank) },
        };
        let (id, claim) = Ids::new(&sim.ids, sim.n).unwrap().of(Rank(rank)).unwrap();
        let who = (Rank(rank), sim.n);
        let joiner =
            Joiner::new(Key::new(id), id.addresses(), who, purpose, (self.now, PATIENCE)).claiming(claim);
        sim.machine = Machine::Joining(Box::new(joiner));
        self.joiner_event(rank, joiner::Event::Tick);
    }

    fn joiner_event(&mut self, rank: u32, event: joiner::Event) {
        let Machine::Joining(joiner) = &mut self.ranks[rank as usize].machine else { return };
        let actions = joiner.on(event, self.now);
        let tick = joiner.deadline();
        for action in actions {
            match action {
                joiner::Action::Connect(address) => {
                    self.hang_up(rank);
                    let pipe = self.connect(End::Rank(rank), address, Conn(0));
                    self.ranks[rank as usize].pipe = pipe;
                }
                joiner::Action::Disconnect => self.hang_up(rank),
                joiner::Action::Send(frame) => self.send_up(rank, &frame[4..]),
                joiner::Action::Trust => {}
                joiner::Action::Done(result) => self.joined(rank, *result),
            }
        }
        self.tick_later(tick, Happening::RankTick { rank });
    }

    fn joined(&mut self, rank: u32, result: Result<Outcome>) {
        let sim = &mut self.ranks[rank as usize];
        sim.over_at = self.now;
        match result {
            Ok(Outcome::Entered(entry)) => {
                sim.infos = Some(entry.infos);
                sim.machine = Machine::In(Box::new(Member::new(
                    Rank(rank),
                    &entry.keepers,
                    settings().heartbeat,
                    self.now,
                )));
                self.member_event(rank, member::Event::Tick);
            }
            other => {
                sim.machine = Machine::Over;
                sim.error = other.err();
                self.hang_up(rank);
            }
        }
    }

    fn member_event(&mut self, rank: u32, event: member::Event) {
        let Machine::In(machine) = &mut self.ranks[rank as usize].machine else { return };
        let actions = machine.on(event, self.now);
        let tick = machine.deadline();
        for action in actions {
            let sim = &mut self.ranks[rank as usize];
            match action {
                member::Action::Send(message) => self.send_up(rank, &wire::body(&message)),
                member::Action::Show { question } => {
                    self.say(rank, &ToRoot::State { question, state: Snapshot::default() });
                }
                member::Action::Fail(cause) => drop(sim.cause.get_or_insert(*cause)),
                member::Action::Orphan(error) => sim.orphaned = Some(error),
                member::Action::Deliver { from, bytes, .. } => sim.mail.push((from, bytes[0])),
                member::Action::Round { result, .. } => {
                    sim.rounds.push(result.map_or(0, |infos| infos.len()))
                }
                member::Action::End => {
                    sim.machine = Machine::Over;
                    self.hang_up(rank);
                }
                member::Action::Left { .. } | member::Action::HeadSilent(_) | member::Action::LookAtRoot => {}
            }
        }
        self.tick_later(tick, Happening::RankTick { rank });
    }

    fn tick_later(&mut self, tick: Option<Time>, happening: Happening) {
        if let Some(tick) = tick {
            self.at(tick.max(self.now + Duration::from_nanos(1)), happening);
        }
    }

    fn tick_root_later(&mut self, root: usize) {
        let sim = &self.roots[root];
        if !sim.finished && !sim.dead {
            self.tick_later(sim.station.deadline(), Happening::RootTick { root });
        }
    }

    fn tick(&mut self, rank: u32) {
        match &self.ranks[rank as usize].machine {
            Machine::Joining(joiner) if joiner.deadline().is_some_and(|at| at <= self.now) => {
                self.joiner_event(rank, joiner::Event::Tick);
            }
            Machine::In(member) if member.deadline().is_some_and(|at| at <= self.now) => {
                self.member_event(rank, member::Event::Tick);
            }
            _ => {}
        }
    }

    fn die(&mut self, rank: u32) {
        self.ranks[rank as usize].dead = true;
        self.ranks[rank as usize].machine = Machine::Over;
        self.hang_up(rank);
    }

    fn kill_root(&mut self, root: usize) {
        self.roots[root].dead = true;
        for (_, pipe) in std::mem::take(&mut self.roots[root].conns) {
            let down = self.pipes[pipe].to == root;
            self.close(pipe, down);
        }
    }

    pub(super) fn say(&mut self, rank: u32, message: &ToRoot) {
        if matches!(self.ranks[rank as usize].machine, Machine::In(_)) {
            self.send_up(rank, &wire::body(message));
        }
    }

    pub(super) fn leave(&mut self, rank: u32) {
        self.say(rank, &ToRoot::Leave { last_entered: None, last_completed: None });
        self.member_event(rank, member::Event::Leaving);
    }

    /// A new connection to the root at `address`, if that listens.
    fn connect(&mut self, from: End, address: std::net::SocketAddr, as_caller: Conn) -> Option<usize> {
        let to = self.ids.iter().position(|id| id.addresses().contains(&address)).unwrap();
        let (there, back) = (self.now + self.latency(), self.latency());
        let root = &self.roots[to];
        let refused = root.finished || root.dead || self.now < root.listens_from;
        if refused || self.dice.percent(self.loss_percent) {
            self.at(there, Happening::Unconnected { from, conn: as_caller });
            return None;
        }
        let pipe = self.pipes.len();
        let root = &mut self.roots[to];
        let as_listener = Conn(root.next_conn);
        root.next_conn += 1;
        root.conns.insert(as_listener, pipe);
        if let End::Rank(_) = from {
            root.counts.connections += 1;
        }
        let (closed, latest) = ([false; 2], [there, there + back]);
        self.pipes.push(Pipe { from, to, as_caller, as_listener, closed, latest, sent_up: 0 });
        self.at(there, Happening::Accepted { pipe });
        self.at(there + back, Happening::Connected { pipe });
        Some(pipe)
    }

    fn send_up(&mut self, rank: u32, body: &[u8]) {
        if let Some(pipe) = self.ranks[rank as usize].pipe {
            self.send(pipe, false, body);
        }
    }

    fn send(&mut self, pipe: usize, down: bool, body: &[u8]) {
        let side = usize::from(down);
        if self.pipes[pipe].closed[side] {
            return;
        }
        self.pipes[pipe].sent_up += u32::from(!down);
        if !down && self.pipes[pipe].sent_up == 1 && self.dice.percent(self.loss_percent) {
            // The path breaks during the handshake: both sides see it.
            let at = self.next_at(pipe, true);
            self.at(at, Happening::Closed { pipe, down: true });
            let at = self.next_at(pipe, false);
            return self.at(at, Happening::Closed { pipe, down: false });
        }
        self.count_frame(pipe, down);
        let at = self.next_at(pipe, down);
        self.at(at, Happening::Arrived { pipe, down, body: body.to_vec() });
    }

    fn count_frame(&mut self, pipe: usize, down: bool) {
        let Pipe { from, to, .. } = self.pipes[pipe];
        let counts = &mut self.roots[to].counts;
        match (from, down) {
            (End::Rank(_), true) => counts.to_ranks += 1,
            (End::Rank(_), false) => counts.from_ranks += 1,
            (End::Root(_), true) => counts.to_roots += 1,
            (End::Root(_), false) => counts.from_roots += 1,
        }
        if let End::Root(other) = from {
            let counts = &mut self.roots[other].counts;
            match down {
                true => counts.from_roots += 1,
                false => counts.to_roots += 1,
            }
        }
    }

    fn next_at(&mut self, pipe: usize, down: bool) -> Time {
        let latency = self.latency();
        let latest = &mut self.pipes[pipe].latest[usize::from(down)];
        *latest = (self.now + latency).max(*latest + Duration::from_nanos(1));
        *latest
    }

    fn arrived(&mut self, pipe: usize, down: bool, body: Vec<u8>) {
        // The receiving side may have let go of it.
        if self.pipes[pipe].closed[usize::from(!down)] {
            return;
        }
        let Pipe { from, to, as_caller, as_listener, .. } = self.pipes[pipe];
        match (down, from) {
            (false, _) => self.root_event(to, Event::Received { conn: as_listener, body }),
            (true, End::Root(root)) => self.root_event(root, Event::Received { conn: as_caller, body }),
            (true, End::Rank(rank)) => match &self.ranks[rank as usize].machine {
                Machine::Joining(_) => self.joiner_event(rank, joiner::Event::Received(body)),
                Machine::In(_) => self.member_event(rank, member::Event::Received(body)),
                Machine::Absent | Machine::Over => {}
            },
        }
    }

    /// One end lets go; the other hears of it after what was sent before.
    fn close(&mut self, pipe: usize, down: bool) {
        let side = usize::from(down);
        if !std::mem::replace(&mut self.pipes[pipe].closed[side], true) {
            let at = self.next_at(pipe, down);
            self.at(at, Happening::Closed { pipe, down });
        }
    }

    fn hang_up(&mut self, rank: u32) {
        if let Some(pipe) = self.ranks[rank as usize].pipe.take() {
            self.close(pipe, false);
        }
    }

    fn ended(&mut self, pipe: usize, down: bool) {
        if std::mem::replace(&mut self.pipes[pipe].closed[usize::from(!down)], true) {
            return;
        }
        let why = Ending::Closed;
        let Pipe { from, to, as_caller, as_listener, .. } = self.pipes[pipe];
        match (down, from) {
            (false, _) => {
                self.roots[to].conns.remove(&as_listener);
                self.root_event(to, Event::Closed { conn: as_listener, why });
            }
            (true, End::Root(root)) => {
                self.roots[root].conns.remove(&as_caller);
                self.root_event(root, Event::Closed { conn: as_caller, why });
            }
            (true, End::Rank(rank)) => {
                self.ranks[rank as usize].pipe = None;
                match &self.ranks[rank as usize].machine {
                    Machine::Joining(_) => self.joiner_event(rank, joiner::Event::Closed(why)),
                    Machine::In(_) => self.member_event(rank, member::Event::Closed(why)),
                    Machine::Absent | Machine::Over => {}
                }
            }
        }
    }

    fn root_event(&mut self, root: usize, event: Event) {
        let sim = &mut self.roots[root];
        if sim.finished || sim.dead {
            return;
        }
        if matches!(event, Event::Tick) && sim.station.deadline().is_none_or(|at| at > self.now) {
            return;
        }
        for action in sim.station.on(event, self.now) {
            self.act(root, action);
        }
        self.tick_root_later(root);
    }

    fn act(&mut self, root: usize, action: machine::Action) {
        let pipe = |net: &Net, conn| net.roots[root].conns.get(&conn).copied();
        match action {
            machine::Action::Connect { conn, address } => {
                if let Some(pipe) = self.connect(End::Root(root), address, conn) {
                    self.roots[root].conns.insert(conn, pipe);
                }
            }
            machine::Action::Send { conn, frame } => {
                if let Some(pipe) = pipe(self, conn) {
                    self.send(
                        pipe,
                        self.pipes[pipe].to == root && self.pipes[pipe].as_listener == conn,
                        &frame[4..],
                    );
                }
            }
            machine::Action::Close { conn } | machine::Action::Drop { conn } => {
                if let Some(pipe) = self.roots[root].conns.remove(&conn) {
                    let down = self.pipes[pipe].to == root && self.pipes[pipe].as_listener == conn;
                    self.close(pipe, down);
                }
            }
            machine::Action::Finish => {
                self.roots[root].finished = true;
                for (conn, pipe) in std::mem::take(&mut self.roots[root].conns) {
                    let down = self.pipes[pipe].to == root && self.pipes[pipe].as_listener == conn;
                    self.close(pipe, down);
                }
            }
            machine::Action::Trust { .. } | machine::Action::StopListening | machine::Action::Warn(_) => {}
        }
    }
}

pub(super) fn settings() -> BootstrapSettings {
    BootstrapSettings {
        deadline: PATIENCE,
        heartbeat: Duration::from_secs(2),
        expiry: PATIENCE * 2,
        ..BootstrapSettings::default()
    }
}

pub(super) const ARRIVALS: Duration = Duration::from_millis(500);
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const LONG: Duration = Duration::from_secs(30);
