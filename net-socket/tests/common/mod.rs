//! What the tests of this folder share: a connection over any plugin, and messages to check.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use ccl_plugin_host::{
    Connecting, LogFn, MemoryKind, Mr, NetContext, NetError, NetPlugin, RecvComm, Request, SendComm,
};

/// The socket network, linked in.
pub fn linked() -> NetPlugin {
    NetPlugin::linked(ccl_net_socket::table()).unwrap()
}

/// A context on loopback.
pub fn context(plugin: NetPlugin, settings: &[(&str, &str)]) -> NetContext {
    let mut all = vec![("interfaces", "lo=127.0.0.1")];
    all.extend_from_slice(settings);
    plugin.init(&all, LogFn::none()).unwrap()
}

/// Polls until there is something, for at most ten seconds.
pub fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within ten seconds");
        std::thread::yield_now();
    }
}

/// A connection of a context to itself.
pub fn pair(context: &NetContext) -> (SendComm, RecvComm) {
    let (handle, mut listener) = context.listen(0).unwrap();
    let connecting = context.connect(0, handle).unwrap();
    join(connecting, || listener.poll())
}

/// Drives both ends until both are there.
pub fn join(
    mut connecting: Connecting,
    mut accept: impl FnMut() -> Result<Option<RecvComm>, NetError>,
) -> (SendComm, RecvComm) {
    let (mut send, mut recv) = (None, None);
    wait("a connection", || {
        send = send.take().or_else(|| connecting.poll().unwrap());
        recv = recv.take().or_else(|| accept().unwrap());
        (send.is_some() && recv.is_some()).then_some(())
    });
    (send.unwrap(), recv.unwrap())
}

/// Bytes nobody else would send: they depend on the seed and the position.
pub fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(151)) as u8).collect()
}

pub fn register_send(comm: &mut SendComm, bytes: &[u8]) -> Mr {
    comm.register(bytes.as_ptr(), bytes.len(), MemoryKind::Host).unwrap()
}

pub fn register_recv(comm: &mut RecvComm, bytes: &mut [u8]) -> Mr {
    comm.register(bytes.as_mut_ptr(), bytes.len(), MemoryKind::Host).unwrap()
}

/// A message of a run.
pub struct Message {
    pub tag: u32,
    pub bytes: usize,
    /// Room posted for it, at least `bytes`.
    pub room: usize,
}

/// Sends all messages with up to `window` in flight, and receives them in the order `posted`
/// (indices of messages); checks every byte and size.
pub fn exchange(
    send: &mut SendComm,
    recv: &mut RecvComm,
    messages: &[Message],
    posted: &[usize],
    window: usize,
) {
    let sources: Vec<Vec<u8>> = messages.iter().enumerate().map(|(i, m)| pattern(i, m.bytes)).collect();
    let mut rooms: Vec<Vec<u8>> = messages.iter().map(|m| vec![0xEE; m.room]).collect();
    let (mut sends, mut recvs) = (Flight::default(), Flight::default());
    let mut done = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while done < messages.len() || !sends.requests.is_empty() {
        assert!(Instant::now() < deadline, "stuck with {done} of {} messages", messages.len());
        if recvs.next < posted.len() && recvs.requests.len() < window {
            let index = posted[recvs.next];
            let mr = register_recv(recv, &mut rooms[index]);
            let (data, room) = (rooms[index].as_mut_ptr(), messages[index].room);
            // SAFETY: `rooms` outlives the loop, which ends when all are done.
            recvs.add(unsafe { recv.recv(data, room, messages[index].tag, &mr) }.unwrap(), index);
        }
        if sends.next < messages.len() && sends.requests.len() < window {
            let index = sends.next;
            let mr = register_send(send, &sources[index]);
            let data = sources[index].as_ptr();
            // SAFETY: `sources` outlives the loop.
            sends.add(
                unsafe { send.send(data, messages[index].bytes, messages[index].tag, &mr) }.unwrap(),
                index,
            );
        }
        sends.requests.retain_mut(|(request, index)| match send.test(request).unwrap() {
            Some(bytes) => {
                assert_eq!(bytes, messages[*index].bytes);
                false
            }
            None => true,
        });
        recvs.requests.retain_mut(|(request, index)| match recv.test(request).unwrap() {
            Some(bytes) => {
                assert_eq!(bytes, messages[*index].bytes, "message {index}");
                assert!(rooms[*index][..bytes] == sources[*index][..], "message {index} of {bytes} bytes");
                done += 1;
                false
            }
            None => true,
        });
    }
}

/// Requests in flight, and how many were posted.
#[derive(Default)]
struct Flight {
    requests: Vec<(Request, usize)>,
    next: usize,
}

impl Flight {
    fn add(&mut self, request: Option<Request>, index: usize) {
        if let Some(request) = request {
            self.requests.push((request, index));
            self.next += 1;
        }
    }
}
