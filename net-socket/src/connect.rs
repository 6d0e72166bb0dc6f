//! Making a connection: dial every lane, say hello on each, wait for the answer on the first.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ccl_plugin::net::Connecting;
use ccl_plugin::{Code, Error};

use crate::Context;
use crate::config::Config;
use crate::send::SocketSend;
use crate::stream::{Stream, connect_error};
use crate::wire::{ANSWER, ANSWER_BYTES, HELLO_BYTES, Hello, Target};

/// A connection being made.
pub struct SocketConnecting {
    lanes: Vec<Lane>,
    answer: [u8; ANSWER_BYTES],
    answered: usize,
    from: SocketAddr,
    to: SocketAddr,
    stripe_min_bytes: u64,
    deadline: Option<Instant>,
    context: Arc<Context>,
}

struct Lane {
    stream: Stream,
    connected: bool,
    hello: [u8; HELLO_BYTES],
    said: usize,
}

impl SocketConnecting {
    /// Dials every lane; `connection` is random.
    pub(crate) fn start(
        from: SocketAddr,
        target: &Target,
        connection: u64,
        config: &Config,
        context: Arc<Context>,
        now: Instant,
    ) -> Result<SocketConnecting, Error> {
        let dial = |lane| {
            let hello = Hello {
                key: target.key,
                cookie: target.cookie,
                connection,
                stripe_min_bytes: config.stripe_min_bytes,
                lane: lane as u16,
                lanes: config.lanes as u16,
            };
            let stream = Stream::dial(from, target.address, config)?;
            Ok(Lane { stream, connected: false, hello: hello.encode(), said: 0 })
        };
        Ok(SocketConnecting {
            lanes: (0..config.lanes).map(dial).collect::<Result<_, Error>>()?,
            answer: [0; ANSWER_BYTES],
            answered: 0,
            from,
            to: target.address,
            stripe_min_bytes: config.stripe_min_bytes,
            deadline: (!config.connect_timeout.is_zero()).then(|| now + config.connect_timeout),
            context,
        })
    }

    /// Whether the peer accepted.
    fn on_poll(&mut self, now: Instant) -> Result<bool, Error> {
        let mut said = true;
        for lane in &mut self.lanes {
            said &= lane.on_poll().map_err(|error| connect_error(&error, self.from, self.to))?;
        }
        if said && self.read_answer()? {
            return Ok(true);
        }
        // Once its system has taken the connection, when the peer looks at its listener is up to what it does: the
        // host knows how long to wait for that.
        if !said && self.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Error::new(Code::TIMEOUT, "it did not answer at all in time").with_peer(self.to));
        }
        Ok(false)
    }

    fn read_answer(&mut self) -> Result<bool, Error> {
        match self.lanes[0].stream.read(&mut self.answer[self.answered..]) {
            Ok(None) => return Ok(false),
            Ok(Some(0)) => {
                let words = "it closed the connection without accepting it: the listener is gone, or \
                             the handle is not its";
                return Err(Error::remote(words).with_peer(self.to));
            }
            Ok(Some(bytes)) => self.answered += bytes,
            Err(error) => return Err(connect_error(&error, self.from, self.to)),
        }
        if self.answered == ANSWER_BYTES && self.answer != ANSWER {
            let words = "its answer is not one of this protocol: something else listens there";
            return Err(Error::remote(words).with_peer(self.to));
        }
        Ok(self.answered == ANSWER_BYTES)
    }
}

impl Lane {
    /// Whether the hello is on its way.
    fn on_poll(&mut self) -> std::io::Result<bool> {
        if self.said == HELLO_BYTES {
            return Ok(true);
        }
        self.connected = self.connected || self.stream.is_connected()?;
        if self.connected {
            self.said += self.stream.write(&self.hello[self.said..])?.unwrap_or(0);
        }
        Ok(self.said == HELLO_BYTES)
    }
}

impl Connecting for SocketConnecting {
    type SendComm = SocketSend;

    fn poll(&mut self) -> Result<Option<SocketSend>, Error> {
        self.context.check()?;
        if !self.on_poll(Instant::now())? {
            return Ok(None);
        }
        let streams = self.lanes.drain(..).map(|lane| lane.stream).collect();
        Ok(Some(SocketSend::new(streams, self.to, self.stripe_min_bytes, self.context.clone())))
    }
}
