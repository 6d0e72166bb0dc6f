//! A connection: what both ends have posted, and how a message gets from one to the other. In a network of yours this is
//! a queue pair, a socket, a ring in shared memory.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;

use ccl_plugin::net::{RecvBuffer, Request, SendBuffer};
use ccl_plugin::{Code, Error, Result};

/// Both ends have it, behind a lock.
#[derive(Default)]
pub(crate) struct Link {
    /// Oldest first.
    sends: VecDeque<(usize, SendBuffer)>,
    recvs: VecDeque<(usize, RecvBuffer)>,
    /// Requests that are done and not yet reported, and their messages' lengths.
    done: HashMap<usize, u64>,
    /// Requests so far, which also numbers them.
    posted: usize,
    pub(crate) is_accepted: bool,
    pub(crate) is_send_closed: bool,
    pub(crate) is_recv_closed: bool,
}

impl Link {
    pub(crate) fn post_send(&mut self, message: SendBuffer) -> Option<Request> {
        self.posted += 1;
        self.sends.push_back((self.posted, message));
        NonZeroUsize::new(self.posted).map(Request)
    }

    pub(crate) fn post_recv(&mut self, room: RecvBuffer) -> Option<Request> {
        self.posted += 1;
        self.recvs.push_back((self.posted, room));
        NonZeroUsize::new(self.posted).map(Request)
    }

    /// The length of a request's message if it is done; then the request is dead.
    pub(crate) fn take_done(&mut self, request: Request) -> Option<u64> {
        self.done.remove(&request.0.get())
    }

    /// Gives every message to the oldest receive with its tag.
    pub(crate) fn deliver(&mut self) -> Result<()> {
        while let Some((from, to)) = self.next() {
            let ((_, message), (_, room)) = (self.sends[from], self.recvs[to]);
            if message.bytes > room.bytes {
                return Err(too_long(message.bytes, room.bytes));
            }
            if message.bytes > 0 {
                // SAFETY: the host keeps the bytes of both valid, and lets nobody else write them, until their requests
                // are done or their comms closed. Neither is: what is done or closed leaves these queues, under the
                // lock that is held here. The room is long enough.
                unsafe { std::ptr::copy(message.data, room.data, message.bytes) };
            }
            let requests =
                [self.sends.remove(from).map(|send| send.0), self.recvs.remove(to).map(|recv| recv.0)];
            self.done.extend(requests.into_iter().flatten().map(|request| (request, message.bytes as u64)));
        }
        Ok(())
    }

    /// After it the bytes of messages that nobody took are the host's again.
    pub(crate) fn close_send(&mut self) {
        self.sends.clear();
        self.is_send_closed = true;
    }

    /// After it no buffer is written.
    pub(crate) fn close_recv(&mut self) {
        self.recvs.clear();
        self.is_recv_closed = true;
    }

    /// Places of the oldest message that has a receive, and of that receive.
    fn next(&self) -> Option<(usize, usize)> {
        self.sends.iter().enumerate().find_map(|(from, (_, message))| {
            let to = self.recvs.iter().position(|(_, room)| room.tag == message.tag)?;
            Some((from, to))
        })
    }
}

#[cold]
fn too_long(bytes: usize, room: usize) -> Error {
    let words = format!("a message of {bytes} bytes is longer than the {room} bytes posted for it");
    Error::new(Code::TOO_LONG, words)
}
