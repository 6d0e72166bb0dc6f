//! The root service: one port, one connection per rank, served by the control thread.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use tracing::{debug, warn};

use crate::bootstrap::auth::Key;
use crate::bootstrap::id::{UniqueId, random};
use crate::bootstrap::machine::{Action, Conn, Ending, Event, Gathering, Rules, Time};
use crate::bootstrap::process::{Life, Process};
use crate::bootstrap::station::Station;
use crate::bootstrap::wire::{Decoder, Frame, MEMBER_BYTES, STRANGER_BYTES};
use crate::bootstrap::{BootstrapSettings, tcp};
use crate::control::hub::{Hub, LifeOf, Terms};
use crate::control::thread::{self, Attended, Charge};
use crate::error::{Error, Result};

/// The service through which ranks join, and by which they hear of each other afterwards.
#[derive(Debug)]
pub struct Root;

impl Root {
    /// Starts the root of a new job: one listening port, served by the process's control thread.
    ///
    /// It ends, and closes everything, when all ranks have left or died, when joining has
    /// failed and all have been told, or when nobody has come for [`BootstrapSettings::expiry`].
    ///
    /// # Errors
    ///
    /// If no port of the range can be had at the chosen address, or the system is out of descriptors
    /// or threads.
    pub fn start(settings: &BootstrapSettings) -> Result<(UniqueId, RootHandle)> {
        let listener = tcp::listen(settings)?;
        let id = UniqueId::new(tcp::reachable(&listener)?)?;
        let handle = Root::serve(&id, listener, settings)?;
        Ok((id, handle))
    }

    /// Starts the root of an id made by [`UniqueId::agreed`], at the id's first address.
    ///
    /// # Errors
    ///
    /// If that address and port cannot be had here.
    pub fn start_for(id: &UniqueId, settings: &BootstrapSettings) -> Result<RootHandle> {
        let Some(address) = id.addresses().first() else {
            return Err(Error::usage(
                "expected an id with an address, found none",
                "name the address of rank 0",
            ));
        };
        let advice =
            "choose a port that is free and an address of this host, see `ss -ltnp` for who has the port";
        let listener = tcp::listen_at(*address)
            .map_err(|error| Error::system(&format!("listen at {address}"), error, advice))?;
        Root::serve(id, listener, settings)
    }

    /// Starts the root of `id` behind `listener`.
    fn serve(id: &UniqueId, listener: TcpListener, settings: &BootstrapSettings) -> Result<RootHandle> {
        let settings = &settings.bounded();
        let status = Arc::new(Status { stop: AtomicBool::new(false), over: AtomicBool::new(false) });
        let machine = Station::new(Key::new(id), settings, (Process::this(), Process::life), Duration::ZERO);
        let service = Service {
            machine,
            settings: settings.clone(),
            started: Instant::now(),
            listener: Some(listener),
            accept_from: Duration::ZERO,
            links: BTreeMap::new(),
            next_conn: 0,
            events: VecDeque::new(),
            finishing: false,
            status: status.clone(),
        };
        debug!(target: "ccl::bootstrap", job = %format_args!("{:016x}", id.job()), addresses = ?id.addresses(), "root listens");
        thread::serve(Box::new(service))?;
        Ok(RootHandle(status))
    }
}

/// A hold on a running root. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct RootHandle(Arc<Status>);

impl RootHandle {
    /// Ends the root at once; ranks that still need it will report that it is gone.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        thread::wake();
    }

    /// Whether the root has ended and closed everything.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Status {
    stop: AtomicBool,
    over: AtomicBool,
}

/// Joining and what comes after, as one machine.
pub(crate) struct RootMachine {
    pub(super) gathering: Gathering,
    hub: Option<Hub>,
    this: (Process, LifeOf),
    heartbeat: Duration,
    is_branch: bool,
    /// The processes of the other roots, where there are several: of service 1 and on.
    pub(super) services: Vec<Process>,
}

impl RootMachine {
    pub(crate) fn new(
        key: Key,
        settings: &BootstrapSettings,
        this: (Process, LifeOf),
        now: Time,
    ) -> RootMachine {
        let rules = Rules {
            strangers: settings.strangers.max(1),
            stranger_deadline: settings.stranger_deadline,
            expiry: settings.expiry,
            linger: settings.deadline.min(LONGEST_LINGER),
        };
        RootMachine {
            gathering: Gathering::new(key, rules, now),
            hub: None,
            this,
            heartbeat: settings.heartbeat,
            is_branch: false,
            services: Vec::new(),
        }
    }

    /// The same beside these other roots.
    pub(super) fn beside(mut self, services: &[Process]) -> RootMachine {
        self.services = services.to_vec();
        self.is_branch = true;
        self
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let member = |hub: &Hub, conn: Conn| hub.owns(conn);
        let mut actions = match (event, &mut self.hub) {
            (Event::Received { conn, body }, Some(hub)) if member(hub, conn) => {
                hub.received(conn, &body, now)
            }
            (Event::Closed { conn, why }, Some(hub)) if member(hub, conn) => hub.closed(conn, &why, now),
            (Event::Tick, Some(hub)) => {
                let mut actions = hub.tick(now);
                actions.extend(self.gathering.on(Event::Tick, now));
                actions
            }
            (event, _) => self.gathering.on(event, now),
        };
        if let Some(joined) = self.gathering.take_full() {
            let services = std::iter::once(&self.this.0).chain(&self.services).cloned().collect();
            let (hub, tables) = Hub::new(joined, (services, self.this.1), self.terms(), now);
            self.hub = Some(hub);
            actions.extend(tables);
        }
        actions
    }

    /// Lets a rank of `n` in that has proved elsewhere that it knows the secret.
    pub(crate) fn admit(&mut self, conn: Conn, address: SocketAddr, who: (u32, u32), now: Time) {
        self.gathering.admit(conn, address, who, now);
    }

    fn terms(&self) -> Terms {
        Terms { heartbeat: self.heartbeat, is_branch: self.is_branch }
    }

    /// The root of service `service` has ended, and with it the connections of its ranks.
    pub(super) fn service_lost(&mut self, service: u32, why: &Ending, now: Time) -> Vec<Action> {
        if let Some(hub) = &mut self.hub {
            return hub.service_lost(service, why, now);
        }
        let why = Ending::Unreachable(format!("the root that it came to is lost: {why}"));
        let lost = self.gathering.at_service(service).into_iter();
        lost.flat_map(|conn| self.gathering.on(Event::Closed { conn, why: why.clone() }, now)).collect()
    }

    /// What the root of a service sees of a rank.
    pub(super) fn seen(&mut self, conn: Conn, silence: Duration, life: Life, now: Time) {
        if let Some(hub) = &mut self.hub {
            hub.seen(conn, silence, life, now);
        }
    }

    /// Whether a rank here, present or about to join, has this connection.
    pub(crate) fn owns(&self, conn: Conn) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.owns(conn)) || self.gathering.owns(conn)
    }

    /// Whether a member that proved itself has this connection; where it comes from.
    pub(crate) fn address(&self, conn: Conn) -> Option<SocketAddr> {
        self.hub.as_ref()?.address(conn)
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.gathering.deadline().into_iter().chain(self.hub.as_ref().and_then(Hub::deadline)).min()
    }
}

/// The shell: sockets and clock around the machine.
struct Service {
    machine: Station,
    settings: BootstrapSettings,
    started: Instant,
    listener: Option<TcpListener>,
    /// No connection is accepted before this, after the system ran out of descriptors.
    accept_from: Time,
    links: BTreeMap<Conn, Link>,
    next_conn: u64,
    events: VecDeque<Event>,
    finishing: bool,
    status: Arc<Status>,
}

struct Link {
    stream: TcpStream,
    decoder: Decoder,
    outbox: tcp::Outbox,
    /// When to drop it at the latest, if it is only being drained.
    closing: Option<Time>,
    /// It is not there yet.
    connecting: bool,
}

impl Link {
    fn new(stream: TcpStream, connecting: bool) -> Link {
        let (decoder, outbox) = (Decoder::new(STRANGER_BYTES), tcp::Outbox::default());
        Link { stream, decoder, outbox, closing: None, connecting }
    }

    /// Sends what the socket takes now, and keeps the rest. If the connection has ended, `heard` gets what the
    /// other side said before: a rank may be gone before its leave is read.
    fn send(&mut self, frame: Frame, heard: impl FnMut(Vec<u8>)) -> Result<(), Ending> {
        let why = match (self.outbox.push(frame), self.outbox.flush(&self.stream)) {
            (true, Ok(())) => return Ok(()),
            (true, Err(error)) => tcp::ending(&error),
            (false, _) => Ending::Unreachable("it does not read what it is sent".into()),
        };
        // How reading ends says nothing new.
        let _ = tcp::receive(&self.stream, &mut self.decoder, heard);
        Err(why)
    }

    fn interest(&self) -> PollFlags {
        if self.connecting { PollFlags::OUT } else { tcp::interest(&self.outbox) }
    }
}

impl Charge for Service {
    /// The links, and the listener if it may accept.
    fn interests<'a>(&'a self, polled: &mut Vec<PollFd<'a>>) {
        let listener = self.listener.as_ref().filter(|_| self.started.elapsed() >= self.accept_from);
        polled.extend(self.links.values().map(|link| PollFd::new(&link.stream, link.interest())));
        polled.extend(listener.map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
    }

    fn due(&self) -> Option<Instant> {
        let accept_from = (self.accept_from > self.started.elapsed()).then_some(self.accept_from);
        let closing = self.links.values().filter_map(|link| link.closing);
        let due = self.machine.deadline().into_iter().chain(accept_from).chain(closing).min();
        due.map(|due| self.started + due)
    }

    fn attend(&mut self, ready: &[bool]) -> Attended {
        let now = self.started.elapsed();
        let conns: Vec<Conn> =
            self.links.keys().zip(ready).filter(|(_, ready)| **ready).map(|(conn, _)| *conn).collect();
        if ready.get(self.links.len()) == Some(&true) {
            self.accept(now);
        }
        for conn in conns {
            self.transfer(conn, now);
        }
        self.events.push_back(Event::Tick);
        self.settle(now);
        self.links.retain(|_, link| link.closing.is_none_or(|until| now < until));
        let is_over = self.finishing && self.links.is_empty();
        if is_over || self.status.stop.load(Ordering::Acquire) { Attended::IsOver } else { Attended::GoesOn }
    }

    fn end(self: Box<Self>) {
        let status = Arc::clone(&self.status);
        drop(self);
        debug!(target: "ccl::bootstrap", "root ends");
        // Pairs with the load in `is_over`: who sees it sees everything closed.
        status.over.store(true, Ordering::Release);
    }
}

impl Service {
    fn accept(&mut self, now: Time) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Ok((stream, address)) => {
                    let (Ok(()), Ok(nonce)) = (tcp::tune(&stream, &self.settings), random()) else {
                        continue;
                    };
                    let conn = Conn(self.next_conn);
                    self.next_conn += 1;
                    self.links.insert(conn, Link::new(stream, false));
                    self.events.push_back(Event::Accepted { conn, address, nonce });
                    self.settle(now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    warn!(target: "ccl::bootstrap", "accept: {error}; trying again in a moment");
                    self.accept_from = now + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }

    /// Sends and receives what is ready on `conn`.
    fn transfer(&mut self, conn: Conn, now: Time) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if link.connecting {
            return self.finish_connecting(conn, now);
        }
        let closing = link.closing.is_some();
        let flushed = link.outbox.flush(&link.stream).map_err(|error| tcp::ending(&error));
        let events = &mut self.events;
        // A stranger sends one frame and waits to be welcomed, so the machine has judged it, and raised
        // the limit, before more can be there.
        let received = tcp::receive(&link.stream, &mut link.decoder, |body| {
            if !closing {
                events.push_back(Event::Received { conn, body });
            }
        });
        if closing && link.outbox.is_empty() {
            let _ = link.stream.shutdown(std::net::Shutdown::Write);
        }
        if let Err(why) = received.and(flushed) {
            if closing {
                self.links.remove(&conn);
            } else {
                self.events.push_back(Event::Closed { conn, why });
            }
        }
        self.settle(now);
    }

    fn connect(&mut self, conn: Conn, address: SocketAddr) {
        match tcp::connect(address, &self.settings) {
            Ok(stream) => drop(self.links.insert(conn, Link::new(stream, true))),
            Err(error) => {
                let why = Ending::Unreachable(error.to_string());
                self.events.push_back(Event::Closed { conn, why });
            }
        }
    }

    fn finish_connecting(&mut self, conn: Conn, now: Time) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        link.connecting = false;
        let connected = tcp::connected(&link.stream).map_err(|error| error.to_string());
        let event = match connected.and_then(|()| random().map_err(|error| error.to_string())) {
            Ok(nonce) => Event::Connected { conn, nonce },
            Err(why) => Event::Closed { conn, why: Ending::Unreachable(why) },
        };
        self.events.push_back(event);
        self.settle(now);
    }

    /// Feeds the machine until nothing more follows.
    fn settle(&mut self, now: Time) {
        while let Some(event) = self.events.pop_front() {
            if let Event::Closed { conn, .. } = &event {
                self.links.remove(conn);
            }
            for action in self.machine.on(event, now) {
                self.act(action, now);
            }
        }
    }

    fn act(&mut self, action: Action, now: Time) {
        match action {
            Action::Connect { conn, address } => self.connect(conn, address),
            Action::Send { conn, frame } => self.send(conn, frame),
            Action::Trust { conn } => {
                if let Some(link) = self.links.get_mut(&conn) {
                    link.decoder.allow(MEMBER_BYTES);
                }
            }
            Action::Close { conn } => self.close(conn, now),
            Action::Drop { conn } => drop(self.links.remove(&conn)),
            Action::StopListening => self.listener = None,
            Action::Warn(text) => warn!(target: "ccl::bootstrap", "{text}"),
            Action::Finish => {
                (self.finishing, self.listener) = (true, None);
                for conn in self.links.keys().copied().collect::<Vec<_>>() {
                    self.close(conn, now);
                }
            }
        }
    }

    fn send(&mut self, conn: Conn, frame: Frame) {
        let Some(link) = self.links.get_mut(&conn).filter(|link| link.closing.is_none()) else {
            return;
        };
        let events = &mut self.events;
        if let Err(why) = link.send(frame, |body| events.push_back(Event::Received { conn, body })) {
            events.push_back(Event::Closed { conn, why });
        }
    }

    /// Lets the other side read what was sent, then closes.
    fn close(&mut self, conn: Conn, now: Time) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        link.closing.get_or_insert(now + DRAIN);
        if link.outbox.is_empty() {
            let _ = link.stream.shutdown(std::net::Shutdown::Write);
        }
    }
}

const ACCEPTS_PER_TURN: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a closed connection may take to be read empty by the other side.
const DRAIN: Duration = Duration::from_secs(1);
/// How long latecomers are told why at most.
pub(crate) const LONGEST_LINGER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::bootstrap::wire::{self, ToRoot};

    #[test]
    fn last_words_are_heard_though_sending_fails_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut rank = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let mut link = Link::new(stream, false);
        let leave = wire::encode(&ToRoot::Leave { last_entered: Some(3), last_completed: Some(3) });
        link.send(wire::encode(&ToRoot::Ping), |_| panic!("nothing was said")).unwrap();
        rank.read_exact(&mut [0]).unwrap();
        rank.write_all(&leave).unwrap();
        // It ends with bytes unread: the next words to it find the connection reset.
        drop(rank);
        let mut heard = Vec::new();
        let ended = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            link.send(wire::encode(&ToRoot::Ping), |body| heard.push(body)).err()
        });
        assert!(matches!(ended, Some(Ending::Closed)), "{ended:?}");
        assert_eq!(heard.len(), 1);
        assert!(matches!(wire::decode(&heard[0]), Some(ToRoot::Leave { last_entered: Some(3), .. })));
    }
}
