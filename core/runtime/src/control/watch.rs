//! A rank's side of its control connection: one socket, served by the control thread, for the communicator
//! that it was made for and those that were made from it.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use tracing::{debug, warn};

use crate::bootstrap::machine::Ending;
use crate::bootstrap::process::Life;
use crate::bootstrap::tcp;
use crate::bootstrap::wire::{self, Decoder, ToMember, ToRoot};
use crate::control::member::{Action, Event, Member};
use crate::control::shared::Shared;
use crate::control::thread::{self, Attended, Charge};
use crate::error::Result;

/// Has the control thread watch a control connection; that ends when the rank has left all communicators on
/// it or the connection does, and then closes it.
pub(super) fn start(
    shared: Arc<Shared>,
    (stream, decoder, early): (Arc<TcpStream>, Decoder, Vec<Vec<u8>>),
    heartbeat: Duration,
) -> Result<()> {
    let rank = shared.rank;
    let trunk = Arc::clone(&shared);
    let first = Seat::new(shared, heartbeat, Duration::ZERO);
    let watch = Watch { trunk, stream, decoder, early, seats: vec![first], started: Instant::now() };
    thread::serve(Box::new(watch)).map_err(|error| error.on(rank))
}

struct Watch {
    /// The communicator that the connection was made for.
    trunk: Arc<Shared>,
    stream: Arc<TcpStream>,
    decoder: Decoder,
    /// Frames that arrived while joining.
    early: Vec<Vec<u8>>,
    /// The communicators on the connection that this rank has not left.
    seats: Vec<Seat>,
    started: Instant,
}

/// This rank in one communicator.
struct Seat {
    shared: Arc<Shared>,
    machine: Member,
    over: bool,
}

impl Charge for Watch {
    fn interests<'a>(&'a self, polled: &mut Vec<PollFd<'a>>) {
        polled.push(PollFd::new(&*self.stream, tcp::interest(&self.trunk.line().outbox)));
    }

    fn due(&self) -> Option<Instant> {
        let due = self.seats.iter().filter_map(|seat| seat.machine.deadline()).min();
        due.map(|at| self.started + at)
    }

    fn attend(&mut self, ready: &[bool]) -> Attended {
        for body in std::mem::take(&mut self.early) {
            self.received(body);
        }
        let now = self.started.elapsed();
        for seat in &mut self.seats {
            // Relaxed: the flag alone counts, and whoever sets it wakes this thread afterwards.
            if seat.shared.leaving.load(Ordering::Relaxed) {
                seat.feed(Event::Leaving, now);
            }
        }
        match ready.contains(&true) {
            true => self.transfer(),
            false => self.seats.iter_mut().for_each(|seat| seat.feed(Event::Tick, now)),
        }
        self.seats.retain(|seat| !seat.over);
        if self.seats.is_empty() { Attended::IsOver } else { Attended::GoesOn }
    }

    fn end(self: Box<Self>) {
        // The last hold on the socket but the line's: nobody sends any more.
        let mut line = self.trunk.line();
        (line.stream, line.outbox) = (None, tcp::Outbox::default());
        drop(line);
        let Watch { trunk, stream, seats, .. } = *self;
        drop(stream);
        debug!(target: "ccl::control", rank = trunk.rank.0, "control connection closed");
        trunk.trunk.sprouts().iter().for_each(|sprout| sprout.lost());
        seats.iter().for_each(Seat::end);
    }
}

impl Watch {
    fn transfer(&mut self) {
        let flushed = self.trunk.line().outbox.flush(&self.stream);
        let mut bodies = Vec::new();
        let received = tcp::receive(&self.stream, &mut self.decoder, |body| bodies.push(body));
        for body in bodies {
            self.received(body);
        }
        if let Err(why) = received.and(flushed.map_err(|error| tcp::ending(&error))) {
            let now = self.started.elapsed();
            self.seats.iter_mut().for_each(|seat| seat.feed(Event::Closed(why.clone()), now));
        }
    }

    /// A frame goes to the communicator that it is of.
    fn received(&mut self, body: Vec<u8>) {
        let (branch, body) = match wire::of_branch_of_root(&body) {
            Some(ToMember::Branch { branch, body }) => (branch, body.into_vec()),
            _ => (0, body),
        };
        let now = self.started.elapsed();
        if branch == 0 && wire::is_about_head(&body) {
            // It concerns whatever is on the connection.
            self.seats.iter_mut().for_each(|seat| seat.feed(Event::Received(body.clone()), now));
            return self.trunk.trunk.sprouts().iter().for_each(|sprout| sprout.head_news(&body));
        }
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.shared.branch == branch) {
            return seat.feed(Event::Received(body), now);
        }
        // A communicator that has been left hears no more.
        let sprouts = self.trunk.trunk.sprouts();
        let Some(sprout) = sprouts.iter().find(|sprout| sprout.branch == branch).cloned() else { return };
        drop(sprouts);
        if let Some(shared) = sprout.answered(&body, &self.trunk) {
            self.seats.push(Seat::of_branch(shared, now));
        }
    }
}

impl Seat {
    fn new(shared: Arc<Shared>, heartbeat: Duration, now: Duration) -> Seat {
        let machine = Member::new(shared.rank, &shared.keepers, heartbeat, now);
        Seat { shared, machine, over: false }
    }

    fn of_branch(shared: Arc<Shared>, now: Duration) -> Seat {
        let machine = Member::of_branch(shared.rank, &shared.keepers, now);
        Seat { shared, machine, over: false }
    }

    fn feed(&mut self, event: Event, now: Duration) {
        for action in self.machine.on(event, now) {
            self.act(action, now);
        }
    }

    fn act(&mut self, action: Action, now: Duration) {
        let shared = &self.shared;
        match action {
            Action::Send(message) => self.send(&message),
            Action::Show { question } => {
                self.send(&ToRoot::State { question, state: shared.board.snapshot() });
            }
            Action::Deliver { from, topic, bytes } => shared.deliver(from, topic, bytes),
            Action::Round { round, result } => {
                shared.desk().rounds.insert(round, result);
                shared.changed.notify_all();
            }
            Action::Left { ranks } => {
                shared.desk().left.extend(ranks);
                shared.changed.notify_all();
            }
            Action::Fail(cause) => {
                warn!(target: "ccl::control", rank = shared.rank.0, "the communicator failed: {}", cause.text);
                shared.fail(&cause);
            }
            Action::Orphan(error) => {
                debug!(target: "ccl::control", rank = shared.rank.0, "{error}");
                shared.desk().orphaned = Some(error);
                shared.changed.notify_all();
            }
            Action::HeadSilent(silent) => shared.desk().head_silent = silent,
            Action::LookAtRoot if shared.keepers.root.process.life(&shared.this) == Life::Gone => {
                self.feed(Event::Closed(Ending::Closed), now);
            }
            Action::LookAtRoot => {}
            Action::End => {
                self.over = true;
                self.end();
            }
        }
    }

    /// Sends what the socket takes now; a failing socket shows when it is read.
    fn send(&self, message: &ToRoot) {
        let mut line = self.shared.line();
        let stream = line.stream.clone();
        line.outbox.push(wire::encode_in(self.shared.branch, message));
        if let Some(stream) = stream {
            let _ = line.outbox.flush(&stream);
        }
    }

    /// Nothing more will arrive.
    fn end(&self) {
        self.shared.desk().ended = true;
        self.shared.changed.notify_all();
    }
}
