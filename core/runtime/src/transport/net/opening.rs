//! How a connection comes about: one end listens, the other connects, and they greet each other.
//!
//! Where the network's connections can be turned, one serves both edges between two ranks of a channel
//! and tag: the higher rank listens, the lower connects, both greet, and neither edge waits for the
//! other to be used. Elsewhere each edge has a connection of its own: its receiver listens, its sender
//! connects and greets.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_plugin_host::{Connecting, Handle, Listener, MemoryKind, Mr, NetError, RecvComm, Request, SendComm};

use super::greeting::{GREETING_BYTES, agrees};
use super::network::Line;
use crate::error::{Error, Result};
use crate::memory::{Entry, Ledger, Staging};

/// A connection being made, shared by the edges it is for: each polls it, and takes its end.
#[derive(Clone)]
pub(super) struct Opening(Arc<Mutex<Attempt>>);

/// Which edges a connection serves, seen from this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Serves {
    /// The one from this rank.
    Sending,
    /// The one to this rank.
    Receiving,
    /// Both.
    BothWays,
}

/// One end of a connection, and what counts the connection.
pub(super) struct Half<C> {
    pub(super) comm: C,
    pub(super) entry: Arc<Entry>,
}

struct Attempt {
    state: State,
    serves: Serves,
    line: Line,
}

enum State {
    /// For the handle of the rank that listens.
    Waiting,
    Connecting(Connecting, Greetings),
    /// This end connected; the other's greeting comes over a connection that serves both ways.
    Greeting(Outgoing, Option<Incoming>, Greetings),
    Listening(Listener, Vec<Incoming>, Greetings),
    /// The other end connected and has greeted.
    Answering(RecvComm, Outgoing),
    Open {
        send: Option<Half<SendComm>>,
        receive: Option<Half<RecvComm>>,
    },
    Broken(Error),
}

/// What both ends have to say over the connections of one listener.
struct Greetings {
    own: [u8; GREETING_BYTES],
    peers: [u8; GREETING_BYTES],
}

/// A greeting on its way out. The connection closes before its memory is freed.
struct Outgoing {
    comm: SendComm,
    mr: Mr,
    bytes: Staging,
    progress: Said,
}

/// A greeting that is awaited. The connection closes before its memory is freed.
struct Incoming {
    comm: RecvComm,
    mr: Mr,
    bytes: Staging,
    request: Option<Request>,
}

/// How far a greeting is.
enum Said {
    Nothing,
    Pending(Request),
    All,
}

impl Opening {
    /// Begins to listen, or to wait for the handle of who does.
    ///
    /// Errors: no port to be had, the relay's.
    pub(super) fn new(line: Line, serves: Serves) -> Result<Opening> {
        let listens = match serves {
            Serves::Sending => false,
            Serves::Receiving => true,
            Serves::BothWays => line.me > line.peer,
        };
        let state = if listens { listen(&line)? } else { State::Waiting };
        Ok(Opening(Arc::new(Mutex::new(Attempt { state, serves, line }))))
    }

    /// Gets as far as it can, and takes the sending end once that is open.
    ///
    /// Errors: the connection cannot be made; both edges hear of it.
    pub(super) fn take_send(&self) -> Result<Option<Half<SendComm>>> {
        self.with(|send, _| send.take())
    }

    /// The same for the receiving end.
    pub(super) fn take_receive(&self) -> Result<Option<Half<RecvComm>>> {
        self.with(|_, receive| receive.take())
    }

    fn with<R>(
        &self,
        take: impl FnOnce(&mut Option<Half<SendComm>>, &mut Option<Half<RecvComm>>) -> Option<R>,
    ) -> Result<Option<R>> {
        // A panic while it was locked left a state that says "waiting": nobody comes, and the deadline passes.
        let mut attempt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        attempt.progress();
        match &mut attempt.state {
            State::Open { send, receive } => Ok(take(send, receive)),
            State::Broken(error) => Err(error.clone()),
            _ => Ok(None),
        }
    }
}

impl Attempt {
    fn progress(&mut self) {
        let state = mem::replace(&mut self.state, State::Waiting);
        self.state = self.next(state).unwrap_or_else(State::Broken);
    }

    fn next(&self, state: State) -> Result<State> {
        match state {
            State::Waiting => self.connect(),
            State::Connecting(mut connecting, greetings) => {
                let polled = connecting.poll().map_err(|e| self.line.error(&e, "connect to"))?;
                let Some(comm) = polled else { return Ok(State::Connecting(connecting, greetings)) };
                self.greet(comm, greetings)
            }
            State::Greeting(out, back, greetings) => self.hear(out, back, greetings),
            State::Listening(listener, strangers, greetings) => self.accept(listener, strangers, greetings),
            State::Answering(receive, mut out) => {
                let answered = out.poll().map_err(|e| self.line.error(&e, "greet"))?;
                if !answered {
                    return Ok(State::Answering(receive, out));
                }
                let send = out.into_comm().map_err(|e| self.line.error(&e, "greet"))?;
                Ok(self.open(Some(send), Some(receive)))
            }
            State::Open { .. } | State::Broken(_) => Ok(state),
        }
    }

    /// Connects once the handle is here.
    fn connect(&self) -> Result<State> {
        let Some(bytes) = self.line.relay.try_take(self.line.peer, self.line.topic) else {
            return Ok(State::Waiting);
        };
        let handle = <[u8; _]>::try_from(&bytes[..]).map_err(|_| {
            self.line.broken(format!("expected a network handle, found {} bytes", bytes.len()))
        })?;
        let connecting = self.line.context.connect(self.line.device, Handle(handle));
        let connecting = connecting.map_err(|e| self.line.error(&e, "connect to"))?;
        Ok(State::Connecting(connecting, Greetings::of(&self.line, &bytes)))
    }

    fn greet(&self, mut comm: SendComm, greetings: Greetings) -> Result<State> {
        let failed = |e: NetError| self.line.error(&e, "greet");
        let back = match self.serves {
            Serves::BothWays => Some(Incoming::new(comm.turn().map_err(failed)?, &self.line)?),
            _ => None,
        };
        let out = Outgoing::new(comm, &greetings.own, &self.line)?;
        Ok(State::Greeting(out, back, greetings))
    }

    /// Whether this end's greeting has left, and the other's has come if it must.
    fn hear(&self, mut out: Outgoing, back: Option<Incoming>, greetings: Greetings) -> Result<State> {
        let failed = |e: NetError| self.line.error(&e, "greet");
        if !out.poll().map_err(failed)? {
            return Ok(State::Greeting(out, back, greetings));
        }
        let Some(mut incoming) = back else {
            return Ok(self.open(Some(out.into_comm().map_err(failed)?), None));
        };
        match incoming.poll(&greetings.peers).map_err(failed)? {
            Heard::Nothing => Ok(State::Greeting(out, Some(incoming), greetings)),
            Heard::Another => Err(self.line.broken(NO_GREETING)),
            Heard::Greeting => {
                let (send, receive) =
                    (out.into_comm().map_err(failed)?, incoming.into_comm().map_err(failed)?);
                Ok(self.open(Some(send), Some(receive)))
            }
        }
    }

    /// Accepts whoever connects; goes on with the first that greets as the peer does.
    fn accept(
        &self,
        mut listener: Listener,
        mut strangers: Vec<Incoming>,
        greetings: Greetings,
    ) -> Result<State> {
        let accepted = listener.poll().map_err(|e| self.line.error(&e, "accept a connection of"))?;
        if let Some(comm) = accepted {
            if strangers.len() == MOST_STRANGERS {
                strangers.remove(0);
            }
            strangers.push(Incoming::new(comm, &self.line)?);
        }
        let mut waiting = Vec::with_capacity(strangers.len());
        for mut stranger in strangers {
            let reason = match stranger.poll(&greetings.peers) {
                Ok(Heard::Greeting) => return self.answer(stranger, &greetings),
                Ok(Heard::Nothing) => {
                    waiting.push(stranger);
                    continue;
                }
                Ok(Heard::Another) => NO_GREETING.to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::warn!(peer = self.line.peer.0, reason, "a connection is closed");
        }
        Ok(State::Listening(listener, waiting, greetings))
    }

    fn answer(&self, friend: Incoming, greetings: &Greetings) -> Result<State> {
        let failed = |e: NetError| self.line.error(&e, "greet");
        let mut comm = friend.into_comm().map_err(failed)?;
        if self.serves == Serves::Receiving {
            return Ok(self.open(None, Some(comm)));
        }
        let back = comm.turn().map_err(failed)?;
        Ok(State::Answering(comm, Outgoing::new(back, &greetings.own, &self.line)?))
    }

    fn open(&self, send: Option<SendComm>, receive: Option<RecvComm>) -> State {
        let entry = Arc::new(self.line.ledger.connection());
        State::Open {
            send: send.map(|comm| Half { comm, entry: Arc::clone(&entry) }),
            receive: receive.map(|comm| Half { comm, entry }),
        }
    }
}

fn listen(line: &Line) -> Result<State> {
    let (handle, listener) = line.context.listen(line.device).map_err(|e| line.error(&e, "listen for"))?;
    line.relay.send(line.peer, line.topic, handle.0.to_vec())?;
    Ok(State::Listening(listener, Vec::new(), Greetings::of(line, &handle.0)))
}

impl Greetings {
    fn of(line: &Line, handle: &[u8]) -> Greetings {
        let [own, peers] = line.greetings(handle);
        Greetings { own, peers }
    }
}

impl Outgoing {
    fn new(mut comm: SendComm, greeting: &[u8; GREETING_BYTES], line: &Line) -> Result<Outgoing> {
        let bytes = memory()?;
        // SAFETY: as many bytes, which nobody else knows yet.
        unsafe { bytes.at(0).cast().write(*greeting) };
        let mr = comm.register(bytes.at(0).as_ptr(), GREETING_BYTES, MemoryKind::Host);
        let mr = mr.map_err(|e| line.error(&e, "register memory for"))?;
        Ok(Outgoing { comm, mr, bytes, progress: Said::Nothing })
    }

    /// Whether the network has taken all of it.
    fn poll(&mut self) -> Result<bool, NetError> {
        if matches!(self.progress, Said::Nothing) {
            let from = self.bytes.at(0).as_ptr();
            // SAFETY: the memory outlives the connection, which is declared before it, and nobody
            // changes it.
            if let Some(request) = unsafe { self.comm.send(from, GREETING_BYTES, 0, &self.mr)? } {
                self.progress = Said::Pending(request);
            }
        }
        if let Said::Pending(request) = &mut self.progress
            && self.comm.test(request)?.is_some()
        {
            self.progress = Said::All;
        }
        Ok(matches!(self.progress, Said::All))
    }

    fn into_comm(self) -> Result<SendComm, NetError> {
        let Outgoing { mut comm, mr, .. } = self;
        comm.deregister(mr)?;
        Ok(comm)
    }
}

/// What came over a connection so far.
enum Heard {
    Nothing,
    Greeting,
    /// Something else.
    Another,
}

impl Incoming {
    fn new(mut comm: RecvComm, line: &Line) -> Result<Incoming> {
        let bytes = memory()?;
        let mr = comm.register(bytes.at(0).as_ptr(), GREETING_BYTES, MemoryKind::Host);
        let mr = mr.map_err(|e| line.error(&e, "register memory for"))?;
        Ok(Incoming { comm, mr, bytes, request: None })
    }

    fn poll(&mut self, expected: &[u8; GREETING_BYTES]) -> Result<Heard, NetError> {
        let into = self.bytes.at(0);
        let Some(request) = &mut self.request else {
            // SAFETY: the memory outlives the connection, which is declared before it, and nobody
            // looks at it until the request is done.
            self.request = unsafe { self.comm.recv(into.as_ptr(), GREETING_BYTES, 0, &self.mr)? };
            return Ok(Heard::Nothing);
        };
        let Some(arrived) = self.comm.test(request)? else { return Ok(Heard::Nothing) };
        // SAFETY: the receive is done, so nobody else touches as many bytes.
        let found = unsafe { into.cast::<[u8; GREETING_BYTES]>().read() };
        let is_friend = arrived == GREETING_BYTES && agrees(&found, expected);
        Ok(if is_friend { Heard::Greeting } else { Heard::Another })
    }

    fn into_comm(self) -> Result<RecvComm, NetError> {
        let Incoming { mut comm, mr, .. } = self;
        comm.deregister(mr)?;
        Ok(comm)
    }
}

/// Memory for a greeting: in nobody's footprint, since it goes before the connection is used.
fn memory() -> Result<Staging> {
    Staging::new(GREETING_BYTES, &Ledger::default())
}

/// Connections that have not greeted yet; the oldest goes when one more comes.
const MOST_STRANGERS: usize = 8;
const NO_GREETING: &str = "it did not greet as a rank of this communicator does";
