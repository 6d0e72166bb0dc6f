//! What clauses work with: contexts, connections, and messages that are looked at when they arrive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_plugin::c::CclNetPropertiesV1;
use ccl_plugin_host::NetPlugin;

use crate::breach::{Failed, Outcome, Stop, breach};
use crate::clauses::net::buffer::Buffer;
use crate::clauses::net::raw::{
    Connecting, Context, Listener, Pending, RecvEnd, SendEnd, Table, empty_properties,
};

/// Where a clause plays: a plugin, how it is set, and which of its devices.
pub(crate) struct Stage {
    pub(crate) table: Table,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) device: u32,
    /// What speed is compared with.
    pub(crate) reference: Option<NetPlugin>,
}

/// A connection.
pub(crate) struct Pair {
    pub(crate) send: SendEnd,
    pub(crate) recv: RecvEnd,
}

/// A message and the room for it, one of a group or alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) seed: u64,
    pub(crate) bytes: usize,
    pub(crate) room: usize,
    pub(crate) tag: u32,
}

impl Message {
    /// A message in room of its own size.
    pub(crate) fn new(seed: u64, bytes: usize, tag: u32) -> Message {
        Message { seed, bytes, room: bytes, tag }
    }

    fn objection(&self, buffer: &Buffer, size: u64) -> Option<String> {
        let Message { bytes, room, tag, .. } = self;
        if size != *bytes as u64 {
            return Some(format!(
                "expected {bytes} bytes received in room of {room} with tag {tag}, found {size} reported"
            ));
        }
        buffer.objection(self.seed, *bytes).map(|words| format!("tag {tag}, {words}"))
    }
}

impl Stage {
    /// The same with another plugin, unset and on its first device.
    pub(crate) fn with(&self, plugin: NetPlugin) -> Stage {
        let table = Table::new(plugin, Arc::clone(&self.table.pulse));
        Stage { table, settings: Vec::new(), device: 0, reference: None }
    }

    /// Whether its contract is NCCL's: errors have neither codes of ours nor a peer, and a handle is for one connection.
    pub(crate) fn is_made_for_nccl(&self) -> bool {
        self.table.plugin.is_made_for_nccl()
    }

    pub(crate) fn context(&self) -> Outcome<Context> {
        Context::new(&self.table, &self.settings)
    }

    pub(crate) fn properties(&self, context: &Context) -> Outcome<CclNetPropertiesV1> {
        let mut properties = empty_properties();
        context.properties(self.device, &mut properties)?;
        Ok(properties)
    }

    /// A connection of a context of its own.
    pub(crate) fn pair(&self) -> Outcome<Pair> {
        let context = self.context()?;
        self.pair_between(&context, &context)
    }

    pub(crate) fn pair_between(&self, from: &Context, to: &Context) -> Outcome<Pair> {
        let (handle, mut listener) = to.listen(self.device)?;
        let mut connecting = from.connect(self.device, &handle)?;
        self.join(&mut connecting, &mut listener)
    }

    /// Polls both ends until both are there.
    pub(crate) fn join(&self, connecting: &mut Connecting, listener: &mut Listener) -> Outcome<Pair> {
        let (mut send, mut recv) = (None, None);
        self.wait("a connection", || {
            if send.is_none() {
                send = connecting.poll()?;
            }
            if recv.is_none() {
                recv = listener.accept()?;
            }
            Ok(send.is_some() && recv.is_some())
        })?;
        match (send, recv) {
            (Some(send), Some(recv)) => Ok(Pair { send, recv }),
            _ => breach("expected both ends of a connection"),
        }
    }

    /// Polls until it is so; a breach if it never is.
    pub(crate) fn wait(&self, what: &str, mut poll: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
        let begun = Instant::now();
        while !poll()? {
            if begun.elapsed() > self.patience() {
                return breach(format!("expected {what} within {:?}, found it never came", self.patience()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Polls for a while; the first error that it meets.
    pub(crate) fn wait_for_error(
        &self,
        what: &str,
        mut poll: impl FnMut() -> Result<(), Failed>,
    ) -> Outcome<Failed> {
        let begun = Instant::now();
        while begun.elapsed() < self.patience() {
            if let Err(failed) = poll() {
                return Ok(failed);
            }
            std::thread::yield_now();
        }
        breach(format!("expected an error {what} within {:?}, found none", self.patience()))
    }

    pub(crate) fn patience(&self) -> Duration {
        self.table.pulse.patience
    }

    /// Sends messages in order, into groups of receives posted in order, and looks at each when it is there.
    /// `sent` names messages by their places in the flattened groups.
    pub(crate) fn exchange(
        &self,
        pair: &mut Pair,
        sent: &[usize],
        groups: &[Vec<Message>],
        window: usize,
    ) -> Outcome<()> {
        let messages: Vec<Message> = groups.iter().flatten().copied().collect();
        let mut sending = Sending::new(sent.iter().map(|place| messages[*place]));
        let mut receiving = Receiving::new(groups);
        self.wait(&format!("{} messages", sent.len()), || {
            receiving.step(&mut pair.recv, window)?;
            sending.step(&mut pair.send, window)?;
            Ok(sending.is_over() && receiving.is_over())
        })
    }

    /// Sends these, one after the other, into room of their own.
    pub(crate) fn carry(&self, pair: &mut Pair, messages: &[Message]) -> Outcome<()> {
        let groups: Vec<_> = messages.iter().map(|message| vec![*message]).collect();
        let order: Vec<_> = (0..messages.len()).collect();
        self.exchange(pair, &order, &groups, WINDOW)
    }
}

/// Messages on their way out.
pub(crate) struct Sending {
    left: Vec<(Buffer, Message)>,
    pending: Vec<(Pending, Buffer, Message)>,
}

impl Sending {
    pub(crate) fn new(messages: impl Iterator<Item = Message>) -> Sending {
        let buffer = |message: Message| (Buffer::message(message.seed, message.bytes), message);
        let mut left: Vec<_> = messages.map(buffer).collect();
        left.reverse();
        Sending { left, pending: Vec::new() }
    }

    /// Posts what may be posted and tests what is pending.
    pub(crate) fn step(&mut self, send: &mut SendEnd, window: usize) -> Outcome<()> {
        while self.pending.len() < window
            && let Some((buffer, message)) = self.left.last()
        {
            let Some(request) = send.post(buffer, message.tag)? else { break };
            self.pending.push((request, *buffer, *message));
            self.left.pop();
        }
        for (request, buffer, message) in &mut self.pending {
            if send.test(request)?
                && let Some(words) = buffer.objection(message.seed, message.bytes)
            {
                return breach(format!("a message was changed by sending it: {words}"));
            }
        }
        self.pending.retain(|(request, ..)| !request.is_dead());
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty() && self.pending.is_empty()
    }
}

/// Groups of receives.
pub(crate) struct Receiving {
    left: Vec<Vec<(Buffer, Message)>>,
    pending: Vec<(Pending, Vec<(Buffer, Message)>)>,
}

impl Receiving {
    pub(crate) fn new(groups: &[Vec<Message>]) -> Receiving {
        let room = |message: &Message| (Buffer::new(message.room), *message);
        let left = groups.iter().rev().map(|group| group.iter().map(room).collect()).collect();
        Receiving { left, pending: Vec::new() }
    }

    pub(crate) fn step(&mut self, recv: &mut RecvEnd, window: usize) -> Outcome<()> {
        while self.pending.len() < window
            && let Some(group) = self.left.last()
        {
            let buffers: Vec<_> = group.iter().map(|(buffer, message)| (*buffer, message.tag)).collect();
            let Some(request) = recv.post(&buffers)? else { break };
            self.pending.extend(self.left.pop().map(|group| (request, group)));
        }
        for (request, group) in &mut self.pending {
            if recv.test(request)? {
                look_at(request, group)?;
            }
        }
        self.pending.retain(|(request, _)| !request.is_dead());
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty() && self.pending.is_empty()
    }
}

/// A group that is done holds its messages.
fn look_at(request: &Pending, group: &[(Buffer, Message)]) -> Outcome<()> {
    for ((buffer, message), size) in group.iter().zip(&request.sizes) {
        if let Some(words) = message.objection(buffer, *size) {
            return Err(Stop::Breach(words));
        }
    }
    Ok(())
}

/// Requests in flight that every network takes.
pub(crate) const WINDOW: usize = 8;
