//! The sending end.
//!
//! A message is written at once, header and payload in one system call, and with it what was held for
//! it. What the kernel does not take waits in its lane's queue, and later calls write as much of the
//! queue as fits in one system call. A send is done when the kernel has all of it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use ccl_plugin::Error;
use ccl_plugin::net::{Elsewhere, Request, SendBuffer, SendComm};

use crate::convoy::{Convoy, Step};
use crate::halving::Halving;
use crate::recv::SocketRecv;
use crate::slots::{SLOTS, Slots, request};
use crate::stream::{Piece, Stream, piece, total, truncate};
use crate::wire::{FILLER, FILLER_BETWEEN, FILLER_BYTES, HEADER_BYTES, Header, share};
use crate::{Context, turned_before};

/// The sending end of a connection.
pub struct SocketSend {
    lanes: Box<[Lane]>,
    slots: Slots<Pending>,
    stripe_min_bytes: u64,
    /// Whether something waits for the message after it.
    is_held: bool,
    peer: SocketAddr,
    /// Whether the other direction was asked for, or it is one.
    turned: bool,
    failed: Option<Error>,
    context: Arc<Context>,
}

/// Whether a message waits for the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    Yes,
}

/// A message of which something is not written.
#[derive(Default)]
struct Pending {
    header: [u8; HEADER_BYTES],
    /// Parts in the queues of lanes.
    parts_left: usize,
}

struct Lane {
    stream: Stream,
    convoy: Convoy,
    halving: Halving,
    queue: VecDeque<Part>,
}

/// What a lane has yet to write of a message.
#[derive(Clone, Copy)]
struct Part {
    sequence: usize,
    /// Bytes of the header left, at its end.
    header_left: usize,
    data: *const u8,
    bytes: usize,
}

// SAFETY: the addresses in the queues are the host's messages, which the contract keeps valid
// until their requests are done, whatever thread asks.
unsafe impl Send for SocketSend {}

impl SocketSend {
    pub(crate) fn new(
        streams: Vec<Stream>,
        peer: SocketAddr,
        stripe_min_bytes: u64,
        context: Arc<Context>,
    ) -> SocketSend {
        let lane = |stream: Stream| {
            let convoy = stream.convoy();
            // Each message may have a filler before it.
            let halving = stream.halving();
            Lane { stream, convoy, halving, queue: VecDeque::with_capacity(2 * SLOTS) }
        };
        SocketSend {
            lanes: streams.into_iter().map(lane).collect(),
            slots: Slots::new(),
            stripe_min_bytes,
            is_held: false,
            peer,
            turned: false,
            failed: None,
            context,
        }
    }

    /// Marked as the other direction of something.
    pub(crate) fn marked_turned(mut self) -> SocketSend {
        self.turned = true;
        self
    }

    /// The other direction, once.
    pub(crate) fn turn(&mut self) -> Result<SocketRecv, Error> {
        if std::mem::replace(&mut self.turned, true) {
            return Err(turned_before());
        }
        let streams = self.lanes.iter().map(|lane| lane.stream.turned()).collect();
        Ok(SocketRecv::new(streams, self.peer, self.stripe_min_bytes, self.context.clone()).marked_turned())
    }

    /// Queues a message, and writes it unless it is `held` for the one after it.
    fn post(&mut self, message: SendBuffer, held: Held) -> Result<Option<Request>, Error> {
        self.check()?;
        if !self.slots.has_room(1) {
            self.progress()?;
            return Ok(None);
        }
        self.context.count_write();
        let was_held = std::mem::replace(&mut self.is_held, held == Held::Yes);
        let step = self.lanes[0].travels(message.bytes, &self.context);
        let header =
            Header { bytes: message.bytes as u64, tag: message.tag, is_marked: step.marks() }.encode();
        let sequence = self.slots.take(Pending { header, parts_left: 0 });
        for lane in 0..self.lanes.len() {
            let (offset, bytes) = share(message.bytes, self.lanes.len(), self.stripe_min_bytes, lane);
            if lane > 0 && bytes == 0 {
                break;
            }
            let header_left = if lane == 0 { HEADER_BYTES } else { 0 };
            let data = message.data.wrapping_add(offset);
            let was_empty = self.lanes[lane].queue.is_empty();
            if lane == 0 && message.bytes >= FILLED_BYTES {
                self.fill(sequence, was_held);
            }
            self.lanes[lane].queue.push_back(Part { sequence, header_left, data, bytes });
            self.slots.at(sequence).parts_left += 1;
            if held == Held::No && (was_empty || was_held && lane == 0) {
                self.write_first(lane)?;
            }
        }
        if was_held && held == Held::No {
            self.progress()?;
        }
        if step == Step::Form {
            self.lanes[0].form();
        }
        Ok(Some(request(sequence)))
    }

    /// Puts a filler before a long message that is about to be queued.
    fn fill(&mut self, sequence: usize, was_held: bool) {
        let filler: &'static [u8] = if was_held { &FILLER_BETWEEN } else { &FILLER };
        let part = Part { sequence, header_left: 0, data: filler.as_ptr(), bytes: filler.len() };
        self.lanes[0].queue.push_back(part);
        self.slots.at(sequence).parts_left += 1;
    }

    /// Writes a message most of which is elsewhere, if nothing waits before it and it goes over one socket; the request.
    /// What the kernel does not take is copied to its place.
    ///
    /// # Safety
    ///
    /// As [`Elsewhere`] says.
    unsafe fn write_from(&mut self, message: SendBuffer, of: Elsewhere) -> Result<Request, Error> {
        self.context.count_write();
        let step = self.lanes[0].travels(message.bytes, &self.context);
        let header =
            Header { bytes: message.bytes as u64, tag: message.tag, is_marked: step.marks() }.encode();
        let rest_bytes = message.bytes - of.head_bytes;
        let filler_bytes = if message.bytes >= FILLED_BYTES { FILLER_BYTES } else { 0 };
        let pieces = [
            piece(FILLER.as_ptr(), filler_bytes),
            piece(header.as_ptr(), HEADER_BYTES),
            piece(message.data, of.head_bytes),
            piece(of.data, rest_bytes),
        ];
        // SAFETY: the caller's contract; the header is here.
        let wrote =
            match unsafe { self.lanes[0].stream.write_pieces(&pieces[usize::from(filler_bytes == 0)..]) } {
                Ok(wrote) => wrote.unwrap_or(0),
                Err(error) => return Err(self.fail(Error::system("send", &error))),
            };
        let sequence = self.slots.take(Pending { header, parts_left: 0 });
        let mut filler = Part { sequence, header_left: 0, data: FILLER.as_ptr(), bytes: filler_bytes };
        let mut part = Part { sequence, header_left: HEADER_BYTES, data: message.data, bytes: message.bytes };
        part.advance(wrote - filler.advance(wrote));
        if !part.is_written() {
            let gone = rest_bytes - part.bytes.min(rest_bytes);
            // SAFETY: the caller's contract; both ranges end with the message.
            unsafe {
                let place = message.data.cast_mut().add(of.head_bytes + gone);
                std::ptr::copy_nonoverlapping(of.data.add(gone), place, rest_bytes - gone);
            }
            let left = [filler, part].into_iter().filter(|part| !part.is_written());
            self.slots.at(sequence).parts_left = left.clone().count();
            self.lanes[0].queue.extend(left);
        }
        if step == Step::Form {
            self.lanes[0].form();
        }
        Ok(request(sequence))
    }

    /// Writes what the kernel takes now.
    fn progress(&mut self) -> Result<(), Error> {
        for index in 0..self.lanes.len() {
            while !self.lanes[index].queue.is_empty() {
                if !self.write_some(index)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Writes a message that nothing waits before, or only what was held for it.
    fn write_first(&mut self, lane: usize) -> Result<(), Error> {
        let Lane { halving, queue, .. } = &mut self.lanes[lane];
        let bytes = queue.iter().map(Part::bytes_left).sum();
        if let Some(half) = halving.first_half(bytes, self.context.waits())
            && !self.write_up_to(lane, half)?
        {
            return Ok(());
        }
        self.write_some(lane).map(drop)
    }

    /// One system call on one lane; whether the kernel took all it was offered.
    fn write_some(&mut self, lane: usize) -> Result<bool, Error> {
        self.write_up_to(lane, usize::MAX)
    }

    /// The same, of at most `most` bytes.
    fn write_up_to(&mut self, lane: usize, most: usize) -> Result<bool, Error> {
        let Lane { stream, queue, .. } = &mut self.lanes[lane];
        let mut pieces = [piece(std::ptr::null(), 0); MAX_PIECES];
        let mut count = 0;
        for part in queue.iter().take(MAX_PIECES / 2) {
            let header = &self.slots.at(part.sequence).header[HEADER_BYTES - part.header_left..];
            count += part.pieces(header, &mut pieces[count..]);
        }
        count = truncate(&mut pieces[..count], most);
        let offered = total(&pieces[..count]);
        #[cfg(test)]
        tests::OFFERED.with_borrow_mut(|all| all.push(offered));
        // SAFETY: headers live in `slots`; messages are valid until done, by the contract.
        let wrote = unsafe { stream.write_pieces(&pieces[..count]) };
        match wrote {
            Ok(wrote) => {
                let wrote = wrote.unwrap_or(0);
                self.took(lane, wrote);
                Ok(wrote == offered)
            }
            Err(error) => Err(self.fail(Error::system("send", &error))),
        }
    }

    /// Accounts for bytes the kernel took from the front of a lane's queue.
    fn took(&mut self, lane: usize, mut bytes: usize) {
        while let Some(part) = self.lanes[lane].queue.front_mut() {
            bytes -= part.advance(bytes);
            if !part.is_written() {
                return;
            }
            let sequence = part.sequence;
            self.lanes[lane].queue.pop_front();
            self.slots.at(sequence).parts_left -= 1;
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.context.check()?;
        self.failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        let error = error.with_code(ccl_plugin::Code::REMOTE).with_peer(self.peer);
        self.failed.get_or_insert(error).clone()
    }
}

impl SendComm for SocketSend {
    fn send(&mut self, message: SendBuffer) -> Result<Option<Request>, Error> {
        self.post(message, Held::No)
    }

    fn send_more(&mut self, message: SendBuffer) -> Result<Option<Request>, Error> {
        self.post(message, Held::Yes)
    }

    fn send_from(&mut self, message: SendBuffer, of: Elsewhere) -> Result<Option<Request>, Error> {
        self.check()?;
        let first = share(message.bytes, self.lanes.len(), self.stripe_min_bytes, 0).1;
        if !self.lanes[0].queue.is_empty() || first < message.bytes || !self.slots.has_room(1) {
            // Whoever has to wait, or to share it out, sends it from where it belongs.
            self.progress()?;
            return Ok(None);
        }
        // SAFETY: the host's promise.
        unsafe { self.write_from(message, of) }.map(Some)
    }

    fn test(&mut self, request: Request) -> Result<bool, Error> {
        let sequence = self.slots.find(request)?;
        if self.slots.at(sequence).parts_left > 0 {
            self.check()?;
            self.progress()?;
            if self.slots.at(sequence).parts_left > 0 {
                return Ok(false);
            }
        }
        self.slots.free(sequence);
        Ok(true)
    }

    fn watch(&mut self, at: &mut dyn FnMut(i32, i16)) {
        let full = self.lanes.iter().filter(|lane| !lane.queue.is_empty());
        full.for_each(|lane| at(lane.stream.descriptor(), libc::POLLOUT));
    }
}

impl Lane {
    /// How a message of so many bytes travels, which is about to be queued.
    #[inline]
    fn travels(&mut self, bytes: usize, context: &Context) -> Step {
        let step = self.convoy.sends(bytes, context.waits());
        if step == Step::Disband {
            self.stream.go_alone(true);
        }
        step
    }

    /// Lets what comes next wait for company, if the marked message ahead of it does not wait here.
    #[cold]
    fn form(&mut self) {
        if self.queue.is_empty() && self.stream.go_alone(false) {
            self.convoy.formed();
        }
    }
}

impl Drop for Lane {
    /// The direction ends, whatever becomes of the other.
    fn drop(&mut self) {
        self.stream.end_writing();
    }
}

impl Part {
    /// Its pieces of memory, at most two; how many.
    fn pieces(&self, header: &[u8], into: &mut [Piece]) -> usize {
        let mut count = 0;
        if !header.is_empty() {
            into[count] = piece(header.as_ptr(), header.len());
            count += 1;
        }
        if self.bytes > 0 {
            into[count] = piece(self.data, self.bytes);
            count += 1;
        }
        count
    }

    /// Marks up to `bytes` as written; how many it took.
    fn advance(&mut self, bytes: usize) -> usize {
        let header = bytes.min(self.header_left);
        self.header_left -= header;
        let payload = (bytes - header).min(self.bytes);
        self.data = self.data.wrapping_add(payload);
        self.bytes -= payload;
        header + payload
    }

    fn bytes_left(&self) -> usize {
        self.header_left + self.bytes
    }

    fn is_written(&self) -> bool {
        self.bytes_left() == 0
    }
}

/// Shortest message that is worth a filler before it.
///
/// The kernel copies what is written to pages of its own. Some processors copy slowly where it goes to an offset in a page that is
/// 1 to 63 bytes behind the one it comes from. Payloads begin on a page, or the 16 bytes behind its begin that allocators use: with
/// the filler, their headers and messages' own, which are of 16 bytes, they go to an offset of 128.
const FILLED_BYTES: usize = 48 << 10;
/// Pieces of memory in one system call: 32 messages with their headers.
const MAX_PIECES: usize = 64;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use ccl_plugin::Settings;
    use ccl_plugin::net::Mr;

    use super::*;
    use crate::config::Config;

    thread_local! {
        /// How much each write of this thread offered to the kernel.
        pub(super) static OFFERED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// A sender, and what it sends to.
    fn pair() -> (SocketSend, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = Config::parse(&Settings::default()).unwrap();
        let to = listener.local_addr().unwrap();
        let stream = Stream::dial("127.0.0.1:0".parse().unwrap(), to, &config).unwrap();
        let (peer, _) = listener.accept().unwrap();
        (SocketSend::new(vec![stream], to, u64::MAX, Arc::default()), peer)
    }

    fn message(of: &[u8]) -> SendBuffer {
        SendBuffer { data: of.as_ptr(), bytes: of.len(), tag: 0, mr: Mr::NONE }
    }

    /// Whether so many bytes come before the payload, a header as the last of them.
    fn is_led_by(peer: &mut TcpStream, ahead: usize, head: usize, payload: &[u8]) -> bool {
        let mut came = vec![0; ahead + payload.len()];
        peer.read_exact(&mut came).unwrap();
        let header = came[..ahead - head].last_chunk().unwrap();
        Header::decode(header)
            == Some(Header { bytes: (head + payload.len()) as u64, tag: 0, is_marked: false })
            && came[ahead..] == *payload
    }

    #[test]
    fn long_payloads_go_where_copying_is_fast() {
        let (mut send, mut peer) = pair();
        let payload: Vec<u8> = (0..FILLED_BYTES).map(|i| (i * 7) as u8).collect();
        for (bytes, plain, held) in [(FILLED_BYTES, 112, 128), (FILLED_BYTES - 1, 16, 48)] {
            let payload = &payload[..bytes];
            let mut requests = vec![send.post(message(payload), Held::No).unwrap().unwrap()];
            assert!(is_led_by(&mut peer, plain, 0, payload), "{bytes}");
            requests.push(send.post(message(&payload[..16]), Held::Yes).unwrap().unwrap());
            requests.push(send.post(message(payload), Held::No).unwrap().unwrap());
            assert!(is_led_by(&mut peer, held, 0, payload), "{bytes}");
            assert!(requests.into_iter().all(|request| send.test(request).unwrap()));
        }
    }

    #[test]
    fn so_do_those_that_are_elsewhere_whatever_the_kernel_takes_at_once() {
        let (mut send, mut peer) = pair();
        let payload: Vec<u8> = (0..1 << 20).map(|i| (i * 7) as u8).collect();
        let mut place = vec![1; 16 + payload.len()];
        let mut requests = Vec::new();
        let mut sent = 0;
        // Until one waits.
        while send.lanes[0].queue.is_empty() {
            let of = Elsewhere { head_bytes: 16, data: payload.as_ptr() };
            place.fill(1);
            // SAFETY: neither changes until all is sent, but the place, which is not read before.
            requests.push(unsafe { send.write_from(message(&place), of) }.unwrap());
            sent += 1;
        }
        let reader = std::thread::spawn({
            let payload = payload.clone();
            move || (0..sent).all(|_| is_led_by(&mut peer, 128, 16, &payload))
        });
        for request in requests {
            while !send.test(request).unwrap() {
                std::thread::yield_now();
            }
        }
        assert!(reader.join().unwrap());
    }

    #[test]
    fn who_waited_writes_a_message_of_two_segments_in_halves_also_behind_one_that_was_held() {
        let (mut send, mut peer) = pair();
        let (short, long) = ([1; 16], vec![7; 64 << 10]);
        let reader = std::thread::spawn(move || peer.read_to_end(&mut Vec::new()).unwrap());
        let mut sends = |waits: u32, held: bool| {
            (0..waits).for_each(|_| send.context.count_wait());
            OFFERED.take();
            let held = held.then(|| send.post(message(&short), Held::Yes).unwrap().unwrap());
            let request = send.post(message(&long), Held::No).unwrap().unwrap();
            let offered = OFFERED.take();
            for request in held.into_iter().chain([request]) {
                while !send.test(request).unwrap() {
                    std::thread::yield_now();
                }
            }
            offered
        };
        let (alone, behind) = (FILLER_BYTES + HEADER_BYTES + (64 << 10), 128 + (64 << 10));
        assert_eq!((sends(0, false), sends(0, true)), (vec![alone], vec![behind]));
        assert_eq!(sends(1000, false), [alone / 2, alone / 2]);
        assert_eq!(sends(1000, true), [behind / 2, behind / 2]);
        drop(send);
        reader.join().unwrap();
    }

    /// Sends so many messages of `bytes`, with `waits` before each, and reads which of them are marked.
    fn marks(
        (send, peer): &mut (SocketSend, TcpStream),
        messages: usize,
        bytes: usize,
        waits: usize,
    ) -> Vec<bool> {
        let payload = vec![7; bytes];
        for _ in 0..messages {
            (0..waits).for_each(|_| send.context.count_wait());
            let request = send.post(message(&payload), Held::No).unwrap().unwrap();
            assert!(send.test(request).unwrap());
        }
        let mut came = vec![0; HEADER_BYTES + bytes];
        let mut read = || {
            peer.read_exact(&mut came).unwrap();
            Header::decode(came.first_chunk().unwrap()).unwrap().is_marked
        };
        (0..messages).map(|_| read()).collect()
    }

    #[test]
    fn streams_of_short_messages_are_marked_and_wait_for_company() {
        let mut pair = pair();
        let marks = marks(&mut pair, STREAM, 8, 0);
        let first = marks.iter().position(|is_marked| *is_marked).unwrap();
        assert!(first > 0 && marks[first..].iter().all(|is_marked| *is_marked), "{marks:?}");
        assert!(!pair.0.lanes[0].stream.goes_alone());
    }

    #[test]
    fn long_messages_and_those_of_who_waits_go_alone() {
        let mut pair = pair();
        marks(&mut pair, STREAM, 8, 0);
        assert_eq!(marks(&mut pair, 1, FILLED_BYTES - 1, 0), [false]);
        assert!(pair.0.lanes[0].stream.goes_alone());
        assert!(!marks(&mut pair, STREAM, 8, 1).contains(&true));
        assert!(pair.0.lanes[0].stream.goes_alone());
    }

    #[test]
    fn what_waits_in_the_queue_forms_nothing() {
        let mut pair = pair();
        for _ in 0..STREAM {
            pair.0.post(message(&[7; 8]), Held::Yes).unwrap().unwrap();
        }
        assert!(pair.0.lanes[0].stream.goes_alone());
    }

    /// More than make a stream, and fewer than may be under way.
    const STREAM: usize = SLOTS - 1;
}
