//! Launches: the events of calls and of the work they ask for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ccl_plan::{Collective, Dtype, Shape};

use super::emitter::{Emitter, Span, name};
use super::record::{Body, Call, Name};
use super::{Kind, StateKind};
use crate::exec::plans::Decision;
use crate::request::{Bound, Buffers, Request};
use crate::transport::PathKind;

/// The launch that is under way on a communicator, and the groups whose work is not over.
pub(crate) struct Launches {
    emitter: Arc<Emitter>,
    n: u32,
    /// What the calls of the launch descend from; `None` between launches.
    api: Option<Span>,
    call: Span,
    call_bytes: u64,
    groups: Vec<Group>,
    /// Launches so far.
    number: u64,
    /// Launches go by unheard, until there is this much room.
    skipping: Option<u64>,
    /// Events that were not put down, with their launches, and not counted yet.
    skipped_events: u64,
    names: HashMap<String, Name>,
}

/// What was launched together.
struct Group {
    number: u64,
    depth: u32,
    /// What it descends from, then itself.
    span: Span,
    started: bool,
    /// Operations that are not over.
    open: u32,
    /// No more will be launched.
    closed: bool,
}

/// An operation's part in a launch. The default is of none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ticket {
    /// Of the launch; 0 for none.
    group: u64,
    call_id: u64,
    bytes: u64,
    span: Span,
}

impl Ticket {
    /// What its edges work for.
    pub(crate) fn span(&self) -> Span {
        self.span
    }
}

/// An operation as it begins.
pub(crate) struct Work<'a> {
    pub(crate) bound: &'a Bound,
    pub(crate) decision: &'a Decision,
    pub(crate) sequence: u64,
    /// The way to a message's peer.
    pub(crate) path: Option<PathKind>,
}

impl Launches {
    pub(super) fn new(emitter: Arc<Emitter>, n: u32) -> Launches {
        Launches {
            emitter,
            n,
            api: None,
            call: Span::default(),
            call_bytes: 0,
            groups: Vec::new(),
            number: 0,
            skipping: None,
            skipped_events: 0,
            names: HashMap::new(),
        }
    }

    /// Whether the next launch of one call is put down: not if nothing is wanted, and not if there is no room, so that
    /// calls that come faster than they are passed on cost little more than a look. A launch that is not put down is
    /// dropped whole, and the next ones with it until half of the room is free.
    #[inline]
    pub(crate) fn heeds(&mut self, collective: Collective) -> bool {
        let mask = self.emitter.wanted();
        if mask == 0 {
            return false;
        }
        if self.emitter.ring.free() >= self.skipping.unwrap_or(LAUNCH_PLACES) || self.api.is_some() {
            self.skipping = None;
            return true;
        }
        if self.skipping.is_none() {
            self.skip();
        }
        let own =
            if collective.is_message() { [Kind::P2pApi, Kind::P2p] } else { [Kind::CollApi, Kind::Coll] };
        let kinds = [Kind::GroupApi, Kind::Group, own[0], own[1]];
        self.skipped_events += kinds.iter().map(|kind| u64::from(mask & kind.wanted_by() != 0)).sum::<u64>();
        false
    }

    #[cold]
    fn skip(&mut self) {
        self.skipping = Some(self.emitter.ring.places() / 2);
        // What edges do is nobody's.
        self.emitter.enter(Span::default());
    }

    /// A launch begins, unless one is under way; `depth` is 1 for calls that were collected.
    pub(crate) fn launch(&mut self, depth: u32) {
        if self.api.is_some() {
            return;
        }
        let top = self.emitter.top();
        let api = self.emitter.start(Kind::GroupApi, top, Body::Group { depth });
        self.emitter.state(api, StateKind::GroupStartStop, 0, 0);
        self.api = Some(api);
        self.number += 1;
        let (number, started) = (self.number, false);
        self.groups.push(Group { number, depth, span: top, started, open: 0, closed: false });
    }

    /// A call of the launch begins.
    pub(crate) fn call(&mut self, request: &Request<'_>) {
        let Some(api) = self.api.filter(|api| api.is_wanted()) else { return };
        self.call_bytes = bytes_of(request, self.n);
        let (send, recv) = match &request.buffers {
            Buffers::Separate { send, recv } => (address(send), address(recv)),
            Buffers::InPlace(buffer) => (address(buffer), address(buffer)),
        };
        let call = Call {
            count: request.count as u64,
            bytes: self.call_bytes,
            send,
            recv,
            in_place: matches!(request.buffers, Buffers::InPlace(_)),
            ..self.describe(request.collective, request.dtype, request.root.0)
        };
        let call = Call { op: self.op(request.collective, request.reduce.op().name()), ..call };
        let kind = if request.collective.is_message() { Kind::P2pApi } else { Kind::CollApi };
        self.call = self.emitter.start(kind, api, Body::Call(call));
    }

    /// The call has returned, but for waiting.
    pub(crate) fn called(&mut self) {
        self.emitter.stop(&mut self.call);
    }

    /// All calls are made, and the caller waits.
    pub(crate) fn waits(&mut self) {
        if let Some(api) = self.api {
            self.emitter.state(api, StateKind::GroupEndStart, 0, 0);
        }
    }

    /// The launch is over for the caller. Nothing happens if it was before.
    pub(crate) fn landed(&mut self) {
        self.called();
        let Some(mut api) = self.api.take() else { return };
        self.emitter.stop(&mut api);
        let number = self.number;
        if let Some(group) = self.groups.iter_mut().find(|group| group.number == number) {
            group.closed = true;
        }
        self.close_group(number);
    }

    /// The part of an operation that the call under way asks for.
    pub(crate) fn ticket(&mut self) -> Ticket {
        if self.api.is_none_or(|api| !api.is_wanted()) {
            return Ticket::default();
        }
        let number = self.number;
        if let Some(group) = self.groups.iter_mut().find(|group| group.number == number) {
            group.open += 1;
        }
        Ticket { group: number, call_id: self.call.id(), bytes: self.call_bytes, span: Span::default() }
    }

    /// An operation begins to work.
    pub(crate) fn begin(&mut self, ticket: &mut Ticket, work: &Work<'_>) {
        let Some(group) = self.groups.iter_mut().find(|group| group.number == ticket.group) else { return };
        if !group.started {
            let body = Body::Group { depth: group.depth };
            group.span = self.emitter.start(Kind::Group, group.span, body);
            group.started = true;
        }
        let span = group.span;
        let (bound, decision) = (work.bound, work.decision);
        let call = Call {
            algorithm: self.name(&decision.program.name),
            protocol: self.name(decision.carried().name()),
            path: work.path.map_or(Name::default(), |path| self.name(path.name())),
            count: bound.count as u64,
            bytes: ticket.bytes,
            sequence: work.sequence,
            call_id: ticket.call_id,
            send: bound.send.addr() as u64,
            recv: bound.recv.addr() as u64,
            chunk_bytes: (decision.chunk_count * bound.dtype.size_bytes()) as u64,
            channels: decision.channels,
            in_place: bound.in_place,
            ..self.describe(bound.collective, bound.dtype, bound.root.0)
        };
        let call = Call { op: self.op(bound.collective, bound.reduce.op().name()), ..call };
        let kind = if bound.collective.is_message() { Kind::P2p } else { Kind::Coll };
        ticket.span = self.emitter.start(kind, span, Body::Call(call));
    }

    /// An operation is over, whether or not it began.
    pub(crate) fn end(&mut self, ticket: &mut Ticket) {
        let Ticket { group: number, mut span, .. } = std::mem::take(ticket);
        self.emitter.stop(&mut span);
        let Some(group) = self.groups.iter_mut().find(|group| group.number == number) else { return };
        group.open -= 1;
        self.close_group(number);
    }

    /// The communicator closes.
    pub(super) fn end_all(&mut self) {
        self.landed();
        self.emitter.dropped_events.fetch_add(std::mem::take(&mut self.skipped_events), Ordering::Relaxed);
        for group in &mut self.groups {
            if group.started {
                self.emitter.stop(&mut group.span);
            }
        }
    }

    /// Ends a group whose work is over.
    fn close_group(&mut self, number: u64) {
        let over = |group: &Group| group.number == number && group.closed && group.open == 0;
        if let Some(at) = self.groups.iter().position(over) {
            let mut group = self.groups.swap_remove(at);
            if group.started {
                self.emitter.stop(&mut group.span);
            }
        }
    }

    fn describe(&mut self, collective: Collective, dtype: Dtype, root: u32) -> Call {
        Call {
            func: self.name(collective.name()),
            dtype: self.name(dtype.name()),
            root: collective.rooted().then_some(root),
            peer: collective.is_message().then_some(root),
            ..Call::default()
        }
    }

    fn op(&mut self, collective: Collective, op: &str) -> Name {
        if collective.reduces() { self.name(op) } else { Name::default() }
    }

    fn name(&mut self, text: &str) -> Name {
        if let Some(known) = self.names.get(text) {
            return *known;
        }
        let made = name(text);
        self.names.insert(text.to_owned(), made);
        made
    }
}

fn address(buffer: &[u8]) -> u64 {
    if buffer.is_empty() { 0 } else { buffer.as_ptr().addr() as u64 }
}

/// Bytes of the vector, or of all blocks together.
fn bytes_of(request: &Request<'_>, n: u32) -> u64 {
    let collective = request.collective;
    let elements = match &request.blocks {
        Some(blocks) if collective.uneven() => {
            let sum = |counts: &[usize]| counts.iter().sum::<usize>();
            sum(blocks.send_counts).max(sum(blocks.recv_counts))
        }
        _ if [collective.input(), collective.output()].contains(&Shape::PerRank) => {
            request.count.saturating_mul(n as usize)
        }
        _ if collective == Collective::Barrier => 0,
        _ => request.count,
    };
    elements.saturating_mul(request.dtype.size_bytes()) as u64
}

/// Room for the events of a short call that no network carries.
const LAUNCH_PLACES: u64 = 16;
