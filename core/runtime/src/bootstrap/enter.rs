//! The shell around a joining member: one socket, in the caller's thread.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use ccl_plan::Rank;
use rustix::event::{PollFd, PollFlags};
use tracing::debug;

use crate::bootstrap::auth::Key;
use crate::bootstrap::id::{UniqueId, random};
use crate::bootstrap::joiner::{Action, Entry, Event, Joiner, Outcome, Purpose};
use crate::bootstrap::machine::Ending;
use crate::bootstrap::roots::Ids;
use crate::bootstrap::wire::{Decoder, MEMBER_BYTES, STRANGER_BYTES};
use crate::bootstrap::{BootstrapSettings, tcp};
use crate::error::Result;

/// A control connection, with what had arrived or was waiting on it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) decoder: Decoder,
    pub(crate) outbox: tcp::Outbox,
    /// Frames that arrived behind the one that ended joining.
    pub(crate) early: Vec<Vec<u8>>,
}

/// How a member got in.
pub(crate) enum Entered {
    /// All ranks are in.
    In(Box<Connection>, Entry),
    /// The failure is announced.
    Announced,
}

/// Goes to a root of `ids` for `purpose`, until it is done or fails.
pub(crate) fn enter(
    ids: &[UniqueId],
    (rank, n): (Rank, u32),
    purpose: Purpose,
    settings: &BootstrapSettings,
    started: Instant,
) -> Result<Entered> {
    let (id, claim) = Ids::new(ids, n)?.of(rank)?;
    let who = (rank, n);
    let machine =
        Joiner::new(Key::new(id), id.addresses(), who, purpose, (Duration::ZERO, settings.deadline))
            .claiming(claim);
    let mut shell = Shell { machine, settings, started, connection: None, connecting: false, done: None };
    shell.feed(Event::Tick);
    loop {
        if let Some(result) = shell.done.take() {
            return Ok(match (result?, shell.connection) {
                (Outcome::Entered(entry), Some(connection)) => Entered::In(Box::new(connection), entry),
                _ => Entered::Announced,
            });
        }
        shell.turn();
    }
}

struct Shell<'a> {
    machine: Joiner,
    settings: &'a BootstrapSettings,
    started: Instant,
    connection: Option<Connection>,
    connecting: bool,
    done: Option<Result<Outcome>>,
}

impl Shell<'_> {
    /// Waits for something to happen and takes it in.
    fn turn(&mut self) {
        let timeout = self.machine.deadline().map(|at| at.saturating_sub(self.started.elapsed()));
        let Some(connection) = &self.connection else {
            tcp::wait(&mut [], timeout);
            return self.feed(Event::Tick);
        };
        let flags = match self.connecting {
            true => PollFlags::OUT,
            false => tcp::interest(&connection.outbox),
        };
        let mut polled = [PollFd::new(&connection.stream, flags)];
        tcp::wait(&mut polled, timeout);
        match (polled[0].revents().is_empty(), self.connecting) {
            (true, _) => self.feed(Event::Tick),
            (false, true) => self.finish_connecting(),
            (false, false) => self.transfer(),
        }
    }

    fn finish_connecting(&mut self) {
        self.connecting = false;
        let result = self.connection.as_ref().map_or(Ok(()), |connection| tcp::connected(&connection.stream));
        let event = match (result, random()) {
            (Ok(()), Ok(nonce)) => Event::Connected { nonce },
            (Err(error), _) => Event::Unconnected(error.to_string()),
            (_, Err(error)) => Event::Unconnected(error.to_string()),
        };
        self.feed(event);
    }

    fn transfer(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let flushed = connection.outbox.flush(&connection.stream).map_err(|error| tcp::ending(&error));
        // The root's answer is judged, and the limit raised, before the root sends anything longer.
        let mut bodies = Vec::new();
        let received = tcp::receive(&connection.stream, &mut connection.decoder, |body| bodies.push(body));
        for body in bodies {
            match (&self.done, &mut self.connection) {
                (Some(_), Some(connection)) => connection.early.push(body),
                _ => self.feed(Event::Received(body)),
            }
        }
        if let Err(why) = flushed.and(received) {
            self.feed(Event::Closed(why));
        }
    }

    fn feed(&mut self, event: Event) {
        for action in self.machine.on(event, self.started.elapsed()) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(address) => match tcp::connect(address, self.settings) {
                Ok(stream) => {
                    let (decoder, outbox) = (Decoder::new(STRANGER_BYTES), tcp::Outbox::default());
                    let early = Vec::new();
                    (self.connection, self.connecting) =
                        (Some(Connection { stream, decoder, outbox, early }), true);
                }
                Err(error) => self.feed(Event::Unconnected(error.to_string())),
            },
            Action::Disconnect => self.connection = None,
            Action::Send(frame) => self.send(frame),
            Action::Trust => {
                if let Some(connection) = &mut self.connection {
                    connection.decoder.allow(MEMBER_BYTES);
                }
            }
            Action::Done(result) => self.done = Some(*result),
        }
    }

    fn send(&mut self, frame: crate::bootstrap::wire::Frame) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        connection.outbox.push(frame);
        if let Err(error) = connection.outbox.flush(&connection.stream) {
            let why: Ending = tcp::ending(&error);
            debug!(target: "ccl::bootstrap", "sending to the root failed: {why}");
        }
    }
}
