//! Joining and control over a fake network with a fake clock: random schedules, by seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use proptest::prelude::*;

use super::*;
use crate::bootstrap::auth::Key;
use crate::bootstrap::infos::Infos;
use crate::bootstrap::joiner::{Joiner, Outcome, Purpose};
use crate::bootstrap::machine::{Conn, Ending, Event, Time};
use crate::bootstrap::process::{Life, Process};
use crate::bootstrap::root::RootMachine;
use crate::bootstrap::wire::{Cause, CauseKind, FaultCode, ToRoot};
use crate::bootstrap::{joiner, machine};
use crate::control::member::{self, Member};
use crate::error::Fault;
use crate::observe::board::Snapshot;

#[test]
fn all_arrive_over_a_lossy_network() {
    schedules(0..250, |seed, n| {
        let mut net = Net::new(seed, n);
        net.loss_percent = 30;
        net.arrive_all(&[]);
        net.strangers(5);
        net.run();
        for rank in 0..n {
            let infos = net.ranks[rank as usize].infos.as_ref();
            let infos = infos.unwrap_or_else(|| {
                panic!("seed {seed}, n {n}: rank {rank}: {:?}", net.ranks[rank as usize].error)
            });
            assert!(
                infos.to_vec().iter().enumerate().all(|(rank, info)| *info == info_of(rank as u32)),
                "seed {seed}"
            );
        }
        net.leave_all();
        assert!(net.finished, "seed {seed}, n {n}: the root must end");
    });
}

#[test]
fn missing_ranks_are_named_by_all_present() {
    schedules(250..500, |seed, n| {
        let mut net = Net::new(seed, n);
        let missing: BTreeSet<u32> = (0..net.dice.below(3) + 1).map(|_| net.dice.below(n)).collect();
        net.loss_percent = 10;
        net.arrive_all(&missing.iter().copied().collect::<Vec<_>>());
        net.run();
        let named = words::ranks(missing.iter().copied());
        for rank in (0..n).filter(|rank| !missing.contains(rank)) {
            let error = net.ranks[rank as usize]
                .error
                .as_ref()
                .unwrap_or_else(|| panic!("seed {seed}, n {n}: rank {rank} hangs"));
            assert!(
                error.cause().contains(&format!("missing: {named}; present: ")),
                "seed {seed}, n {n}: {error}"
            );
            let first = Rank(*missing.first().unwrap());
            assert_eq!(error.fault(), &Fault::Remote { rank: first }, "seed {seed}");
            let late = net.ranks[rank as usize].over_at;
            assert!(late <= ARRIVALS + PATIENCE + Duration::from_millis(600), "seed {seed}: {late:?}");
        }
        assert!(net.finished, "seed {seed}, n {n}: the root must end");
    });
}

#[test]
fn a_failure_or_death_while_joining_reaches_all() {
    schedules(500..700, |seed, n| {
        let mut net = Net::new(seed, n);
        let victim = net.dice.below(n);
        match seed % 3 {
            0 => {
                net.arrive_all(&[victim]);
                net.ranks[victim as usize].purpose = Some("no memory");
                net.arrive(victim);
            }
            1 => {
                // One never comes, so that another can die while joining.
                net.arrive_all(&[(victim + 1) % n]);
                net.at(ARRIVALS + Duration::from_millis(50), Happening::Die { rank: victim });
            }
            _ => {
                net.arrive_all(&[]);
                net.ranks[victim as usize].n = n + 1;
            }
        }
        net.run();
        let named = format!("rank {victim} at ");
        for rank in (0..n).filter(|rank| *rank != victim && (seed % 3 != 1 || *rank != (victim + 1) % n)) {
            let sim = &net.ranks[rank as usize];
            let error = sim.error.as_ref().unwrap_or_else(|| panic!("seed {seed}, n {n}: rank {rank} hangs"));
            assert!(error.cause().contains(&named), "seed {seed}, n {n}: {error}");
        }
        assert!(net.finished, "seed {seed}, n {n}: the root must end");
    });
}

#[test]
fn survivors_agree_on_the_first_cause() {
    schedules(700..1000, |seed, n| {
        let mut net = Net::new(seed, n);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(200));
        let accidents = net.dice.below(3) + 1;
        for _ in 0..accidents {
            let (rank, other, what) = (net.dice.below(n), net.dice.below(n), net.dice.below(5));
            let at = net.now + net.dice.time(Duration::from_millis(300));
            net.at(
                at,
                match what {
                    0 | 1 => Happening::Die { rank },
                    2 => Happening::Say { rank, message: ToRoot::Abort { reason: "enough".into() } },
                    3 => Happening::Say { rank, message: ToRoot::Report { cause: report(rank, other) } },
                    _ => Happening::Say {
                        rank,
                        message: ToRoot::Diagnose { sequence: 3, waiting_for: Some(other) },
                    },
                },
            );
        }
        net.run_until(net.now + Duration::from_secs(3));
        let survivors = net.ranks.iter().filter(|rank| !rank.dead);
        let causes: Vec<Option<&Cause>> = survivors.map(|rank| rank.cause.as_ref()).collect();
        if let Some(first) = causes.first() {
            assert!(first.is_some(), "seed {seed}, n {n}: nobody was told");
            assert!(causes.iter().all(|cause| cause == first), "seed {seed}, n {n}: {causes:?}");
        }
        net.leave_all();
        assert!(net.finished, "seed {seed}, n {n}: the root must end");
    });
}

/// Who waits for a rank that waits itself may complain before it.
#[test]
fn who_is_blamed_and_blames_another_is_not_the_cause() {
    for seed in 0..50 {
        let mut net = Net::new(seed, 4);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(200));
        for (rank, culprit, after_ms) in [(2, 1, 0), (0, 1, 5), (1, 3, 60)] {
            let message = ToRoot::Report { cause: report(rank, culprit) };
            net.at(net.now + Duration::from_millis(after_ms), Happening::Say { rank, message });
        }
        net.run_until(net.now + Duration::from_secs(1));
        for sim in &net.ranks {
            assert_eq!(sim.cause.as_ref().unwrap().culprit, Some(3), "seed {seed}: {:?}", sim.cause);
        }
        net.leave_all();
    }
}

#[test]
fn another_version_is_named_by_both_sides() {
    let mut net = Net::new(1, 2);
    net.arrive_all(&[1]);
    net.run_until(ARRIVALS + Duration::from_millis(100));
    let conn = net.connect(None);
    let challenge = auth::Challenge { version: auth::VERSION, nonce: [conn.0 as u8; 32] };
    let hello = auth::Hello::answering(&challenge, &net.key, auth::VERSION + 1, (1, 2), [0; 32]);
    net.root_event(Event::Received { conn, body: hello.encode() });
    net.run();
    let error = net.ranks[0].error.as_ref().unwrap();
    let words =
        format!("speaks control version {}, the root speaks version {}", auth::VERSION + 1, auth::VERSION);
    assert!(error.cause().contains("rank 1 at") && error.cause().contains(&words), "{error}");
}

/// A body of any bytes, or of a message with arbitrary content.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let blob = || proptest::collection::vec(any::<u8>(), 0..40);
    let message = prop_oneof![
        (any::<u64>(), any::<u64>(), blob()).prop_map(|(round, remaining_ms, info)| ToRoot::Gather {
            round,
            remaining_ms,
            info: info.into()
        }),
        (any::<u32>(), any::<u32>(), blob()).prop_map(|(to, topic, bytes)| ToRoot::Relay {
            to,
            topic,
            bytes: bytes.into()
        }),
        Just(ToRoot::Ping),
        any::<Option<u64>>().prop_map(|last| ToRoot::Leave { last_entered: last, last_completed: last }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(rank, culprit)| ToRoot::Report { cause: report(rank, culprit) }),
        ".{0,20}".prop_map(|reason| ToRoot::Abort { reason }),
        any::<(u64, Option<u32>)>()
            .prop_map(|(sequence, waiting_for)| ToRoot::Diagnose { sequence, waiting_for }),
        (0u64..3, any::<Option<u64>>(), any::<Option<u64>>()).prop_map(
            |(question, last_entered, last_completed)| {
                let state = Snapshot { last_entered, last_completed, ..Snapshot::default() };
                ToRoot::State { question, state }
            }
        ),
        (any::<u64>(), blob()).prop_map(|(remaining_ms, info)| {
            ToRoot::Join { process: process(1), remaining_ms, info: info.into() }
        }),
    ];
    prop_oneof![1 => blob(), 4 => message.prop_map(|message| wire::encode(&message)[4..].to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Members that know the secret may still say anything: the root survives it.
    #[test]
    fn the_root_survives_what_members_say(said in proptest::collection::vec((0u32..3, any_body(), 0u64..400), 0..30)) {
        let mut net = Net::new(1, 3);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(100));
        for (rank, body, pause_ms) in said {
            net.send_to_root(rank, &body);
            net.run_until(net.now + Duration::from_millis(pause_ms));
        }
        net.leave_all();
    }

    /// Neither does a member fall over what a root says, while joining and after.
    #[test]
    fn members_survive_what_the_root_says(early: bool, said in proptest::collection::vec((0u32..3, any_body()), 0..10)) {
        let mut net = Net::new(2, 3);
        net.arrive_all(&[]);
        net.run_until(if early { ARRIVALS / 2 } else { ARRIVALS * 2 });
        for (rank, body) in said {
            net.rank_received(rank, body);
        }
        net.run_until(net.now + Duration::from_secs(1));
    }
}

/// Runs `check` for each seed with n from {2, 3, 8, 64}; the large one seldom.
fn schedules(seeds: std::ops::Range<u64>, check: impl Fn(u64, u32)) {
    for seed in seeds {
        let n = match seed % 16 {
            0 => 64,
            1..=5 => 8,
            6..=10 => 3,
            _ => 2,
        };
        check(seed, n);
    }
}

/// What a rank tells the others: of a length of its own.
pub(super) fn info_of(rank: u32) -> Vec<u8> {
    vec![rank as u8; rank as usize % 7]
}

/// What a rank says of another.
pub(super) fn report(rank: u32, culprit: u32) -> Cause {
    Cause {
        kind: CauseKind::Reported,
        origin: Some(rank),
        culprit: Some(culprit),
        fault: FaultCode::Remote(culprit),
        text: "reset".into(),
        verdict: None,
    }
}

/// The network, its ranks and its root.
struct Net {
    dice: Dice,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    count: u64,
    key: Key,
    root: RootMachine,
    ranks: Vec<RankSim>,
    links: BTreeMap<Conn, Link>,
    loss_percent: u32,
    finished: bool,
}

struct RankSim {
    n: u32,
    purpose: Option<&'static str>,
    machine: Machine,
    conn: Option<Conn>,
    infos: Option<Infos>,
    error: Option<Error>,
    cause: Option<Cause>,
    over_at: Time,
    dead: bool,
}

enum Machine {
    Absent,
    Joining(Box<Joiner>),
    In(Box<Member>),
    Over,
}

/// A connection; messages keep their order in each direction.
struct Link {
    rank: Option<u32>,
    up: bool,
    /// Frames sent by the rank so far; the handshake has one.
    sent: u32,
    latest_to_root: Time,
    latest_to_rank: Time,
}

#[derive(Clone, Debug)]
enum Happening {
    Arrive { rank: u32 },
    Connected { rank: u32, conn: Conn },
    Unconnected { rank: u32 },
    ToRoot { event: Event },
    ToRank { rank: u32, conn: Conn, body: Vec<u8> },
    RankClosed { rank: u32, conn: Conn },
    RootTick,
    RankTick { rank: u32 },
    Die { rank: u32 },
    Say { rank: u32, message: ToRoot },
    Leave { rank: u32 },
    Stranger,
}

impl Net {
    fn new(seed: u64, n: u32) -> Net {
        let settings = BootstrapSettings {
            strangers: 64,
            stranger_deadline: Duration::from_millis(500),
            deadline: PATIENCE,
            heartbeat: Duration::from_millis(400),
            expiry: PATIENCE,
            ..BootstrapSettings::default()
        };
        let key = Key::new(&UniqueId::new(Vec::new()).unwrap());
        let life: crate::control::hub::LifeOf = |_, _| Life::Running;
        let rank = |_| RankSim {
            n,
            purpose: None,
            machine: Machine::Absent,
            conn: None,
            infos: None,
            error: None,
            cause: None,
            over_at: Duration::ZERO,
            dead: false,
        };
        Net {
            dice: Dice(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            count: 0,
            key: key.clone(),
            root: RootMachine::new(key, &settings, (process(0), life), Duration::ZERO),
            ranks: (0..n).map(rank).collect(),
            links: BTreeMap::new(),
            loss_percent: 0,
            finished: false,
        }
    }

    fn arrive_all(&mut self, but: &[u32]) {
        self.tick_later(self.root.deadline(), Happening::RootTick);
        for rank in (0..self.ranks.len() as u32).filter(|rank| !but.contains(rank)) {
            self.arrive(rank);
        }
    }

    fn arrive(&mut self, rank: u32) {
        let at = self.dice.time(ARRIVALS);
        self.at(at, Happening::Arrive { rank });
    }

    fn strangers(&mut self, count: u32) {
        for _ in 0..count {
            let at = self.dice.time(ARRIVALS * 2);
            self.at(at, Happening::Stranger);
        }
    }

    fn leave_all(&mut self) {
        for rank in 0..self.ranks.len() as u32 {
            let at = self.now + self.dice.time(Duration::from_millis(20));
            self.at(at, Happening::Leave { rank });
        }
        self.run_until(self.now + Duration::from_secs(2));
    }

    fn run(&mut self) {
        self.run_until(self.now + LONG);
    }

    fn run_until(&mut self, until: Time) {
        while let Some(Reverse((at, number))) = self.queue.peek().copied().filter(|next| next.0.0 <= until) {
            self.queue.pop();
            self.now = at;
            let happening = self.happenings.remove(&number).unwrap();
            self.happen(happening);
        }
        self.now = until;
    }

    fn at(&mut self, at: Time, happening: Happening) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count)));
        self.happenings.insert(self.count, happening);
    }

    fn latency(&mut self) -> Time {
        Duration::from_micros(50) + self.dice.time(Duration::from_millis(3))
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive { rank } => self.join(rank),
            Happening::Connected { rank, conn } if self.ranks[rank as usize].conn == Some(conn) => {
                self.joiner_event(rank, joiner::Event::Connected { nonce: [rank as u8; 32] });
            }
            Happening::Unconnected { rank } => {
                self.joiner_event(rank, joiner::Event::Unconnected("refused".into()))
            }
            Happening::ToRoot { event } => self.root_event(event),
            Happening::ToRank { rank, conn, body } if self.ranks[rank as usize].conn == Some(conn) => {
                self.rank_received(rank, body);
            }
            Happening::RankClosed { rank, conn } if self.ranks[rank as usize].conn == Some(conn) => {
                self.rank_closed(rank)
            }
            Happening::Connected { .. } | Happening::ToRank { .. } | Happening::RankClosed { .. } => {}
            Happening::RootTick => self.root_event(Event::Tick),
            Happening::RankTick { rank } => self.tick(rank),
            Happening::Die { rank } => self.die(rank),
            Happening::Say { rank, message } => self.say(rank, &message),
            Happening::Leave { rank } => self.leave(rank),
            Happening::Stranger => self.stranger(),
        }
    }

    fn join(&mut self, rank: u32) {
        let sim = &mut self.ranks[rank as usize];
        let purpose = match sim.purpose {
            Some(reason) => Purpose::Fail { reason: reason.into() },
            None => Purpose::Join { process: process(rank), info: info_of(rank) },
        };
        let address = "10.0.0.1:4000".parse().unwrap();
        let joiner =
            Joiner::new(self.key.clone(), &[address], (Rank(rank), sim.n), purpose, (self.now, PATIENCE));
        sim.machine = Machine::Joining(Box::new(joiner));
        self.joiner_event(rank, joiner::Event::Tick);
    }

    fn joiner_event(&mut self, rank: u32, event: joiner::Event) {
        let Machine::Joining(joiner) = &mut self.ranks[rank as usize].machine else {
            return;
        };
        let actions = joiner.on(event, self.now);
        let tick = joiner.deadline();
        for action in actions {
            match action {
                joiner::Action::Connect(_) if self.finished || self.dice.percent(self.loss_percent) => {
                    self.hang_up(rank);
                    let at = self.now + self.latency();
                    self.at(at, Happening::Unconnected { rank });
                }
                joiner::Action::Connect(_) => {
                    self.hang_up(rank);
                    self.ranks[rank as usize].conn = Some(self.connect(Some(rank)));
                }
                joiner::Action::Disconnect => self.hang_up(rank),
                joiner::Action::Send(frame) => self.send_to_root(rank, &frame[4..]),
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
                let heartbeat = Duration::from_millis(400);
                sim.machine =
                    Machine::In(Box::new(Member::new(Rank(rank), &entry.keepers, heartbeat, self.now)));
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
        let Machine::In(machine) = &mut self.ranks[rank as usize].machine else {
            return;
        };
        let actions = machine.on(event, self.now);
        let tick = machine.deadline();
        for action in actions {
            match action {
                member::Action::Send(message) => self.send_to_root(rank, &wire::body(&message)),
                member::Action::Show { question } => {
                    self.say(rank, &ToRoot::State { question, state: Snapshot::default() });
                }
                member::Action::Fail(cause) => {
                    self.ranks[rank as usize].cause.get_or_insert(*cause);
                }
                member::Action::End => {
                    self.ranks[rank as usize].machine = Machine::Over;
                    self.hang_up(rank);
                }
                _ => {}
            }
        }
        self.tick_later(tick, Happening::RankTick { rank });
    }

    fn tick_later(&mut self, tick: Option<Time>, happening: Happening) {
        if let Some(tick) = tick.filter(|_| !self.finished) {
            self.at(tick.max(self.now + Duration::from_nanos(1)), happening);
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

    fn rank_received(&mut self, rank: u32, body: Vec<u8>) {
        match &self.ranks[rank as usize].machine {
            Machine::Joining(_) => self.joiner_event(rank, joiner::Event::Received(body)),
            Machine::In(_) => self.member_event(rank, member::Event::Received(body)),
            Machine::Absent | Machine::Over => {}
        }
    }

    fn rank_closed(&mut self, rank: u32) {
        self.ranks[rank as usize].conn = None;
        match &self.ranks[rank as usize].machine {
            Machine::Joining(_) => self.joiner_event(rank, joiner::Event::Closed(Ending::Closed)),
            Machine::In(_) => self.member_event(rank, member::Event::Closed(Ending::Closed)),
            Machine::Absent | Machine::Over => {}
        }
    }

    fn die(&mut self, rank: u32) {
        self.ranks[rank as usize].dead = true;
        self.ranks[rank as usize].machine = Machine::Over;
        self.hang_up(rank);
    }

    fn say(&mut self, rank: u32, message: &ToRoot) {
        if matches!(self.ranks[rank as usize].machine, Machine::In(_)) {
            self.send_to_root(rank, &wire::encode(message)[4..]);
        }
    }

    fn leave(&mut self, rank: u32) {
        self.say(rank, &ToRoot::Leave { last_entered: None, last_completed: None });
        self.member_event(rank, member::Event::Leaving);
    }

    fn stranger(&mut self) {
        let conn = self.connect(None);
        let body = (0..self.dice.below(120)).map(|_| self.dice.below(256) as u8).collect();
        let at = self.now + self.dice.time(Duration::from_millis(20)) + Duration::from_millis(5);
        self.at(at, Happening::ToRoot { event: Event::Received { conn, body } });
    }

    /// A new connection to the root, which hears of it before anything said on it.
    fn connect(&mut self, rank: Option<u32>) -> Conn {
        let conn = Conn(self.count);
        let (there, back) = (self.now + self.latency(), self.latency());
        let link = Link { rank, up: true, sent: 0, latest_to_root: there, latest_to_rank: there + back };
        self.links.insert(conn, link);
        let address = "10.0.0.9:5000".parse().unwrap();
        let event = Event::Accepted { conn, address, nonce: [conn.0 as u8; 32] };
        match rank {
            None => self.root_event(event),
            Some(rank) => {
                self.at(there, Happening::ToRoot { event });
                self.at(there + back, Happening::Connected { rank, conn });
            }
        }
        conn
    }

    fn send_to_root(&mut self, rank: u32, body: &[u8]) {
        let Some(conn) = self.ranks[rank as usize].conn else {
            return;
        };
        let lost = self.links[&conn].sent == 0 && self.dice.percent(self.loss_percent);
        if lost {
            // The path breaks during the handshake: both sides see it.
            self.close_towards_rank(conn);
            return self.close_towards_root(conn);
        }
        let latency = self.latency();
        let link = self.links.get_mut(&conn).unwrap();
        link.sent += 1;
        link.latest_to_root = (self.now + latency).max(link.latest_to_root + Duration::from_nanos(1));
        let (at, body) = (link.latest_to_root, body.to_vec());
        self.at(at, Happening::ToRoot { event: Event::Received { conn, body } });
    }

    fn hang_up(&mut self, rank: u32) {
        if let Some(conn) = self.ranks[rank as usize].conn.take() {
            self.close_towards_root(conn);
        }
    }

    fn close_towards_root(&mut self, conn: Conn) {
        let latency = self.latency();
        let link = self.links.get_mut(&conn).unwrap();
        let at = (self.now + latency).max(link.latest_to_root + Duration::from_nanos(1));
        self.at(at, Happening::ToRoot { event: Event::Closed { conn, why: Ending::Closed } });
    }

    fn close_towards_rank(&mut self, conn: Conn) {
        let latency = self.latency();
        let link = self.links.get_mut(&conn).unwrap();
        let at = (self.now + latency).max(link.latest_to_rank + Duration::from_nanos(1));
        if let Some(rank) = link.rank {
            self.at(at, Happening::RankClosed { rank, conn });
        }
    }

    fn root_event(&mut self, event: Event) {
        if self.finished {
            return;
        }
        match &event {
            Event::Received { conn, .. } if !self.links[conn].up => return,
            Event::Closed { conn, .. }
                if !std::mem::replace(&mut self.links.get_mut(conn).unwrap().up, false) =>
            {
                return;
            }
            Event::Tick if self.root.deadline().is_none_or(|at| at > self.now) => return,
            _ => {}
        }
        for action in self.root.on(event, self.now) {
            match action {
                machine::Action::Send { conn, frame } => self.send_to_rank(conn, &frame[4..]),
                machine::Action::Close { conn } | machine::Action::Drop { conn } => {
                    self.links.get_mut(&conn).unwrap().up = false;
                    self.close_towards_rank(conn);
                }
                machine::Action::Finish => self.finished = true,
                machine::Action::Connect { .. }
                | machine::Action::Trust { .. }
                | machine::Action::StopListening
                | machine::Action::Warn(_) => {}
            }
        }
        self.tick_later(self.root.deadline(), Happening::RootTick);
    }

    fn send_to_rank(&mut self, conn: Conn, body: &[u8]) {
        let latency = self.latency();
        let link = self.links.get_mut(&conn).unwrap();
        if let (Some(rank), true) = (link.rank, link.up) {
            link.latest_to_rank = (self.now + latency).max(link.latest_to_rank + Duration::from_nanos(1));
            let (at, body) = (link.latest_to_rank, body.to_vec());
            self.at(at, Happening::ToRank { rank, conn, body });
        }
    }
}

pub(super) fn process(rank: u32) -> Process {
    Process { pid: 100 + rank, host_id: 7, host: "node".into() }
}

/// Random numbers from a seed (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, limit: u32) -> u32 {
        (self.roll() % u64::from(limit)) as u32
    }

    pub(super) fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance
    }

    pub(super) fn time(&mut self, limit: Duration) -> Duration {
        limit.mul_f64(self.below(1 << 20) as f64 / f64::from(1 << 20))
    }
}

const ARRIVALS: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(30);
