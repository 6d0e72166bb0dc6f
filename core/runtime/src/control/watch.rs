//! The watch thread: one socket, asleep until something arrives.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use tracing::{debug, warn};

use crate::bootstrap::machine::Ending;
use crate::bootstrap::process::Life;
use crate::bootstrap::tcp;
use crate::bootstrap::wire::{self, Decoder, Frame, ToRoot};
use crate::control::member::{Action, Event, Member};
use crate::control::shared::Shared;
use crate::error::{Error, Result};

/// Starts the thread "ccl-watch" behind a control connection; it ends when the rank leaves or the
/// connection does, and then closes it.
pub(super) fn start(
    shared: Arc<Shared>,
    (stream, decoder, early): (Arc<TcpStream>, Decoder, Vec<Vec<u8>>),
    heartbeat: Duration,
) -> Result<()> {
    let rank = shared.rank;
    let machine = Member::new(rank, (shared.root.clone(), shared.hosts.clone()), heartbeat, Duration::ZERO);
    let watch = Watch { shared, stream, decoder, machine, started: Instant::now(), over: false };
    let thread = std::thread::Builder::new().name("ccl-watch".into()).spawn(move || watch.run(early));
    thread.map_err(|error| {
        Error::system("start the thread ccl-watch", error, "raise the limit of threads").on(rank)
    })?;
    Ok(())
}

struct Watch {
    shared: Arc<Shared>,
    stream: Arc<TcpStream>,
    decoder: Decoder,
    machine: Member,
    started: Instant,
    over: bool,
}

impl Watch {
    fn run(mut self, early: Vec<Vec<u8>>) {
        for body in early {
            self.feed(Event::Received(body));
        }
        while !self.over {
            self.turn();
        }
        // The last hold on the socket but the line's: nobody sends any more.
        let mut line = self.shared.line();
        (line.stream, line.outbox) = (None, tcp::Outbox::default());
        drop(line);
        let Watch { shared, stream, .. } = self;
        drop(stream);
        debug!(target: "ccl::control", rank = shared.rank.0, "control connection closed");
        shared.desk().ended = true;
        shared.changed.notify_all();
    }

    /// Sleeps until something happens and takes it in.
    fn turn(&mut self) {
        let (flags, leaving) = {
            let line = self.shared.line();
            (tcp::interest(&line.outbox), line.leaving)
        };
        if leaving {
            self.feed(Event::Leaving);
        }
        let timeout = self.machine.deadline().map(|at| at.saturating_sub(self.started.elapsed()));
        let mut polled = vec![PollFd::new(&*self.stream, flags)];
        polled.extend(self.shared.waker.as_ref().map(|waker| PollFd::new(waker, PollFlags::IN)));
        tcp::wait(&mut polled, timeout);
        let ready = !polled[0].revents().is_empty();
        if let (Some(waker), Some(false)) =
            (&self.shared.waker, polled.get(1).map(|entry| entry.revents().is_empty()))
        {
            waker.clear();
        }
        match ready {
            true => self.transfer(),
            false => self.feed(Event::Tick),
        }
    }

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
