//! A member's side of its control connection: one socket, served by the control thread.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use tracing::{debug, warn};

use crate::bootstrap::machine::Ending;
use crate::bootstrap::process::Life;
use crate::bootstrap::tcp;
use crate::bootstrap::wire::{self, Decoder, Frame, ToRoot};
use crate::control::member::{Action, Event, Member};
use crate::control::shared::Shared;
use crate::control::thread::{self, Attended, Charge};
use crate::error::Result;

/// Has the control thread watch a control connection; that ends when the rank leaves or the connection
/// does, and then closes it.
pub(super) fn start(
    shared: Arc<Shared>,
    (stream, decoder, early): (Arc<TcpStream>, Decoder, Vec<Vec<u8>>),
    heartbeat: Duration,
) -> Result<()> {
    let rank = shared.rank;
    let machine = Member::new(rank, (shared.root.clone(), shared.hosts.clone()), heartbeat, Duration::ZERO);
    let watch = Watch { shared, stream, decoder, early, machine, started: Instant::now(), over: false };
    thread::serve(Box::new(watch)).map_err(|error| error.on(rank))
}

struct Watch {
    shared: Arc<Shared>,
    stream: Arc<TcpStream>,
    decoder: Decoder,
    /// Frames that arrived while joining.
    early: Vec<Vec<u8>>,
    machine: Member,
    started: Instant,
    over: bool,
}

impl Charge for Watch {
    fn interests<'a>(&'a self, polled: &mut Vec<PollFd<'a>>) {
        polled.push(PollFd::new(&*self.stream, tcp::interest(&self.shared.line().outbox)));
    }

    fn due(&self) -> Option<Instant> {
        self.machine.deadline().map(|at| self.started + at)
    }

    fn attend(&mut self, ready: &[bool]) -> Attended {
        for body in std::mem::take(&mut self.early) {
            self.feed(Event::Received(body));
        }
        if self.shared.line().leaving {
            self.feed(Event::Leaving);
        }
        match ready.contains(&true) {
            true => self.transfer(),
            false => self.feed(Event::Tick),
        }
        if self.over { Attended::IsOver } else { Attended::GoesOn }
    }

    fn end(self: Box<Self>) {
        // The last hold on the socket but the line's: nobody sends any more.
        let mut line = self.shared.line();
        (line.stream, line.outbox) = (None, tcp::Outbox::default());
        drop(line);
        let Watch { shared, stream, .. } = *self;
        drop(stream);
        debug!(target: "ccl::control", rank = shared.rank.0, "control connection closed");
        shared.desk().ended = true;
        shared.changed.notify_all();
    }
}

impl Watch {
    fn transfer(&mut self) {
        let flushed = self.shared.line().outbox.flush(&self.stream);
        let mut bodies = Vec::new();
        let received = tcp::receive(&self.stream, &mut self.decoder, |body| bodies.push(body));
        for body in bodies {
            self.feed(Event::Received(body));
        }
        if let Err(why) = received.and(flushed.map_err(|error| tcp::ending(&error))) {
            self.feed(Event::Closed(why));
        }
    }

    fn feed(&mut self, event: Event) {
        for action in self.machine.on(event, self.started.elapsed()) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        let shared = &self.shared;
        match action {
            Action::Send(frame) => self.send(frame),
            Action::Show { question } => {
                let state = shared.board.snapshot();
                self.send(wire::encode(&ToRoot::State { question, state }));
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
            Action::LookAtRoot if shared.root.life(&shared.this) == Life::Gone => {
                self.feed(Event::Closed(Ending::Closed));
            }
            Action::LookAtRoot => {}
            Action::End => self.over = true,
        }
    }

    /// Sends what the socket takes now; a failing socket shows when it is read.
    fn send(&self, frame: Frame) {
        let mut line = self.shared.line();
        line.outbox.push(frame);
        let _ = line.outbox.flush(&self.stream);
    }
}
