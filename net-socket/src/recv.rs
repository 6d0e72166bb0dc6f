//! The receiving end.
//!
//! The first socket carries headers. While the next header is unknown, one system call reads it,
//! the payload straight into the oldest posted buffer (the likely match), and what follows into a
//! staging area. A wrong guess costs a copy of at most [`GUESS_BYTES`], nothing else. After short
//! messages all of it goes to the staging area: one piece of memory is read faster than three. So it does after marked
//! ones, which come many at a time; before anybody waits for more of those, what was read is acknowledged. Large
//! payloads are read into place, with room for the next header behind. The other sockets carry shares whose
//! lengths are known, and need neither.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ccl_plugin::c::MAX_RECVS;
use ccl_plugin::net::{RecvBuffer, RecvComm, Request};
use ccl_plugin::{Code, Error};

use crate::rest::Rest;
use crate::send::SocketSend;
use crate::slots::{SLOTS, Slots, request};
use crate::staging::Staging;
use crate::stream::{Piece, Stream, piece, total};
use crate::turn::Turn;
use crate::wire::{FILLER_BYTES, HEADER_BYTES, Header, filler_bytes, share};
use crate::{Context, turned_before};

/// The receiving end of a connection.
pub struct SocketRecv {
    lanes: Box<[Lane]>,
    staging: Staging,
    slots: Slots<Posted>,
    /// Receives without a message, oldest first.
    unmatched: VecDeque<usize>,
    stripe_min_bytes: u64,
    /// Whether the last message in the order of posting was so short that copying it is cheaper than
    /// reading to several places.
    is_short: bool,
    /// Bytes before its payload.
    lead_bytes: usize,
    /// Of the first socket, where a header is expected.
    rest: Rest,
    /// Messages until acknowledgements are put off again.
    until_delay: u32,
    /// Whether the last message was marked: what comes after it may wait for an acknowledgement,
    is_marked: bool,
    /// and something was read since the last one that was asked for.
    owes: bool,
    /// Whether to look at the first socket again in this turn of the core.
    turn: Turn,
    peer: SocketAddr,
    /// Whether the other direction was asked for, or it is one.
    turned: bool,
    failed: Option<Error>,
    context: Arc<Context>,
}

/// A posted buffer.
struct Posted {
    data: *mut u8,
    capacity: usize,
    tag: u32,
    /// Length of the message, once matched.
    bytes: usize,
    /// Lanes that have yet to bring some of it; before it is matched, one.
    lanes_left: usize,
    /// For the first of a request: how many buffers the request has.
    group: usize,
}

struct Lane {
    stream: Stream,
    /// Nothing more will come of it.
    failed: bool,
    /// What will arrive on this socket, in order. On the first at most one part.
    parts: VecDeque<Part>,
}

/// A share of a message that has not all arrived.
#[derive(Clone, Copy)]
struct Part {
    sequence: usize,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: the addresses are the host's posted buffers, which the contract keeps valid until their
// requests are done, whatever thread asks.
unsafe impl Send for SocketRecv {}

impl SocketRecv {
    pub(crate) fn new(
        streams: Vec<Stream>,
        peer: SocketAddr,
        stripe_min_bytes: u64,
        context: Arc<Context>,
    ) -> SocketRecv {
        let lane = |stream| Lane { stream, failed: false, parts: VecDeque::with_capacity(SLOTS) };
        SocketRecv {
            lanes: streams.into_iter().map(lane).collect(),
            staging: Staging::new(STAGING_BYTES),
            slots: Slots::new(),
            unmatched: VecDeque::with_capacity(SLOTS),
            stripe_min_bytes,
            is_short: true,
            lead_bytes: HEADER_BYTES,
            rest: Rest::default(),
            until_delay: 0,
            is_marked: false,
            owes: false,
            turn: Turn::default(),
            peer,
            turned: false,
            failed: None,
            context,
        }
    }

    /// Marked as the other direction of something.
    pub(crate) fn marked_turned(mut self) -> SocketRecv {
        self.turned = true;
        self
    }

    /// The other direction, once.
    pub(crate) fn turn(&mut self) -> Result<SocketSend, Error> {
        if std::mem::replace(&mut self.turned, true) {
            return Err(turned_before());
        }
        let streams = self.lanes.iter().map(|lane| lane.stream.turned()).collect();
        Ok(SocketSend::new(streams, self.peer, self.stripe_min_bytes, self.context.clone()).marked_turned())
    }

    /// Takes in what has arrived.
    fn progress(&mut self) -> Result<(), Error> {
        for lane in 1..self.lanes.len() {
            while !self.lanes[lane].is_idle() && self.read_shares(lane)? {}
        }
        while !self.lanes[0].failed && self.use_staging()? {
            if !self.read_first()? {
                self.use_staging()?;
                break;
            }
        }
        Ok(())
    }

    /// Uses up what is staged; whether more of the first socket is wanted.
    fn use_staging(&mut self) -> Result<bool, Error> {
        loop {
            if let Some(part) = self.lanes[0].parts.front_mut() {
                // SAFETY: the part lies in a posted buffer, valid until its request is done.
                let copied = unsafe { self.staging.take_into(part.data, part.bytes) };
                self.arrived(0, copied);
                if !self.lanes[0].parts.is_empty() {
                    return Ok(true);
                }
            }
            let Some((lead_bytes, header)) = self.lead() else {
                return Ok(!self.unmatched.is_empty());
            };
            if !self.begin(lead_bytes, &header)? {
                return Ok(false);
            }
        }
    }

    /// What is staged up to the next payload: its length, and the header at its end. Nothing if not all of it is there.
    #[inline]
    fn lead(&self) -> Option<(usize, [u8; HEADER_BYTES])> {
        let bytes = self.staging.peek(0)?;
        match filler_bytes(&bytes) {
            Some(filler) => Some((filler + HEADER_BYTES, self.staging.peek(filler)?)),
            None => Some((HEADER_BYTES, bytes)),
        }
    }

    /// Matches a header, which ends what is staged first, with a posted receive; whether there is one.
    fn begin(&mut self, lead_bytes: usize, bytes: &[u8; HEADER_BYTES]) -> Result<bool, Error> {
        let Some(header) = Header::decode(bytes) else {
            return Err(self.fail(Error::remote("its stream is out of step: expected a message header")));
        };
        let slots = &mut self.slots;
        let Some(index) = self.unmatched.iter().position(|s| slots.at(*s).tag == header.tag) else {
            return Ok(false);
        };
        let sequence = self.unmatched[index];
        let capacity = slots.at(sequence).capacity;
        if header.bytes > capacity as u64 {
            let words = format!(
                "its message of {} bytes with tag {} is longer than the {capacity} bytes posted for it",
                header.bytes, header.tag
            );
            return Err(self.fail(Error::new(Code::TOO_LONG, words)));
        }
        self.unmatched.remove(index);
        if index == 0 {
            self.is_short = header.bytes <= SHORT_BYTES as u64;
            self.lead_bytes = lead_bytes.min(MOST_LEAD_BYTES);
        }
        self.staging.skip(lead_bytes);
        (self.is_marked, self.owes) = (header.is_marked, self.owes | header.is_marked);
        self.rest.begins();
        self.spread(sequence, header.bytes as usize);
        Ok(true)
    }

    /// Says on each lane which share of a message comes next.
    fn spread(&mut self, sequence: usize, bytes: usize) {
        let lanes = self.lanes.len();
        let posted = self.slots.at(sequence);
        (posted.bytes, posted.lanes_left) = (bytes, 0);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let (offset, bytes) = share(bytes, lanes, self.stripe_min_bytes, index);
            if bytes > 0 {
                lane.parts.push_back(Part { sequence, data: posted.data.wrapping_add(offset), bytes });
                posted.lanes_left += 1;
            }
        }
    }

    /// One system call on the first socket; whether there may be more.
    fn read_first(&mut self) -> Result<bool, Error> {
        match self.lanes[0].parts.front() {
            Some(part) => {
                let (data, bytes) = (part.data, part.bytes);
                let tail = self.staging.room(if self.is_marked { STAGING_BYTES } else { TAIL_BYTES });
                let read = self.read(0, &[piece(data, bytes), tail])?;
                let in_place = read.min(bytes);
                self.arrived(0, in_place);
                self.staging.grow(read - in_place);
                Ok(read == bytes + tail.iov_len)
            }
            None if self.staging.is_empty() => self.read_guess(),
            None => {
                let room = self.staging.room(STAGING_BYTES);
                let read = self.read(0, &[room])?;
                self.staging.grow(read);
                Ok(read == room.iov_len)
            }
        }
    }

    /// Reads a header, and its payload into the oldest buffer if it is worth guessing.
    fn read_guess(&mut self) -> Result<bool, Error> {
        let Some(first) = self.unmatched.front() else { return Ok(false) };
        if self.rest.goes_on(Instant::now) {
            return Ok(false);
        }
        if !self.is_marked && self.turn.is_over(Instant::now) {
            self.context.count_wait();
            return Ok(false);
        }
        let Posted { data, capacity, tag, .. } = *self.slots.at(*first);
        if self.is_short || self.is_marked {
            let most = if self.is_marked { STAGING_BYTES } else { HEADER_BYTES + SHORT_BYTES };
            let room = self.staging.room(most);
            let read = self.read(0, &[room])?;
            self.note_read(read);
            self.staging.grow(read);
            return Ok(read == room.iov_len);
        }
        let (lead, guess) = (self.lead_bytes, self.first_share(capacity).min(GUESS_BYTES));
        let [head, tail] = self.staging.head_and_tail(lead, TAIL_BYTES);
        let read = self.read(0, &[head, piece(data, guess), tail])?;
        self.note_read(read);
        self.staging.grow(read.min(lead));
        if read <= lead {
            return Ok(false);
        }
        let guessed = (read - lead).min(guess);
        let behind = read - lead - guessed;
        let found = self.lead().filter(|(bytes, _)| *bytes == lead);
        let in_place = match found.and_then(|(_, bytes)| Header::decode(&bytes)) {
            Some(header) if header.tag == tag && header.bytes <= capacity as u64 => {
                self.first_share(header.bytes as usize).min(guessed)
            }
            _ => 0,
        };
        // SAFETY: `guessed` bytes were just read to `data`.
        unsafe { self.staging.insert(data.wrapping_add(in_place), guessed - in_place, behind) };
        if in_place > 0
            && let Some((lead, bytes)) = found
            && self.begin(lead, &bytes)?
        {
            self.arrived(0, in_place);
        }
        Ok(read == lead + guess + tail.iov_len)
    }

    /// After a look for a header.
    #[inline]
    fn note_read(&mut self, bytes: usize) {
        match bytes {
            0 => self.rest.found_nothing(),
            _ => self.rest.found(self.context.writes(), Instant::now),
        }
    }

    /// Bytes of a message that come over the first socket.
    fn first_share(&self, bytes: usize) -> usize {
        share(bytes, self.lanes.len(), self.stripe_min_bytes, 0).1
    }

    /// One system call on another socket; whether there may be more.
    fn read_shares(&mut self, lane: usize) -> Result<bool, Error> {
        let mut pieces = [piece(std::ptr::null(), 0); MAX_PIECES];
        let (mut count, mut wanted) = (0, 0);
        for (part, into) in self.lanes[lane].parts.iter().zip(&mut pieces) {
            *into = piece(part.data, part.bytes);
            (count, wanted) = (count + 1, wanted + part.bytes);
        }
        let read = self.read(lane, &pieces[..count])?;
        self.arrived(lane, read);
        Ok(read == wanted)
    }

    /// Accounts for bytes that are in place in the lane's first parts.
    fn arrived(&mut self, lane: usize, mut bytes: usize) {
        while let Some(part) = self.lanes[lane].parts.front_mut() {
            let taken = bytes.min(part.bytes);
            part.data = part.data.wrapping_add(taken);
            part.bytes -= taken;
            bytes -= taken;
            if part.bytes > 0 {
                return;
            }
            let sequence = part.sequence;
            self.lanes[lane].parts.pop_front();
            self.slots.at(sequence).lanes_left -= 1;
        }
    }

    /// Reads into pieces; 0: nothing yet.
    fn read(&mut self, lane: usize, pieces: &[Piece]) -> Result<usize, Error> {
        // SAFETY: every piece is staging's own or lies in a posted buffer, which is valid and
        // untouched by others until its request is done.
        let look = |stream: &Stream| unsafe { stream.read_pieces(pieces) };
        let mut found = look(&self.lanes[lane].stream);
        if lane == 0 && matches!(found, Ok(None)) && std::mem::take(&mut self.owes) {
            self.lanes[0].stream.acknowledge();
            // What waited for that has come meanwhile, unless the sender has its socket in hand.
            found = look(&self.lanes[0].stream);
        }
        let error = match found {
            Ok(None) => {
                self.context.count_wait();
                return Ok(0);
            }
            Ok(Some(0)) => Error::remote("it closed the connection"),
            Ok(Some(read)) => {
                if lane == 0 {
                    self.owes |= self.is_marked;
                    self.turn.found(read < total(pieces));
                }
                return Ok(read);
            }
            Err(error) => Error::system("receive", &error).with_code(Code::REMOTE),
        };
        self.lanes[lane].failed = true;
        Err(self.fail(error))
    }

    fn check(&self) -> Result<(), Error> {
        self.context.check()?;
        self.failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.failed.get_or_insert(error.with_peer(self.peer)).clone()
    }

    fn is_done(&mut self, first: usize, count: usize) -> bool {
        (first..first + count).all(|sequence| self.slots.at(sequence).lanes_left == 0)
    }

    /// Whether, after a failure, all that a request misses is under way on sockets that did not
    /// fail: a peer that closes has sent everything, but its sockets end in any order.
    fn may_still_finish(&self, first: usize, count: usize) -> bool {
        let is_ours = |sequence: usize| (first..first + count).contains(&sequence);
        !self.unmatched.iter().any(|sequence| is_ours(*sequence))
            && self.lanes.iter().all(|lane| !lane.failed || !lane.parts.iter().any(|p| is_ours(p.sequence)))
    }
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.failed || self.parts.is_empty()
    }
}

impl RecvComm for SocketRecv {
    fn receive(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, Error> {
        self.check()?;
        if !self.slots.has_room(buffers.len()) {
            return Ok(None);
        }
        let mut first = None;
        for buffer in buffers {
            let &RecvBuffer { data, bytes: capacity, tag, .. } = buffer;
            let group = if first.is_none() { buffers.len() } else { 0 };
            let sequence = self.slots.take(Posted { data, capacity, tag, bytes: 0, lanes_left: 1, group });
            self.unmatched.push_back(sequence);
            first.get_or_insert(sequence);
        }
        Ok(first.map(request))
    }

    fn test(&mut self, request: Request, sizes: &mut [u64]) -> Result<bool, Error> {
        let first = self.slots.find(request)?;
        let count = self.slots.at(first).group;
        if count == 0 || count > sizes.len().min(MAX_RECVS) {
            return Err(Error::invalid("expected the request of a receive, found a buffer of a group"));
        }
        if !self.is_done(first, count) {
            self.context.check()?;
            // What completes in spite of a failure is still reported.
            let progressed = self.progress();
            if !self.is_done(first, count) {
                let error = progressed.err().or_else(|| self.failed.clone());
                return match error {
                    Some(error) if !self.may_still_finish(first, count) => Err(error),
                    _ => Ok(false),
                };
            }
        }
        for (sequence, size) in (first..first + count).zip(sizes) {
            *size = self.slots.at(sequence).bytes as u64;
            self.slots.free(sequence);
        }
        if self.until_delay == 0 {
            self.lanes[0].stream.delay_acks();
            self.until_delay = MESSAGES_PER_DELAY;
        }
        self.until_delay -= 1;
        Ok(true)
    }

    /// A failure is no news: whoever misses something hears of it at the next test.
    fn watch(&mut self, at: &mut dyn FnMut(i32, i16)) {
        for (index, lane) in self.lanes.iter().enumerate() {
            let misses_header = index == 0 && !lane.failed && !self.unmatched.is_empty();
            if misses_header || !lane.is_idle() {
                at(lane.stream.descriptor(), libc::POLLIN);
            }
        }
    }
}

impl Default for Posted {
    fn default() -> Posted {
        Posted { data: std::ptr::null_mut(), capacity: 0, tag: 0, bytes: 0, lanes_left: 0, group: 0 }
    }
}

/// Most that is expected before a payload.
const MOST_LEAD_BYTES: usize = FILLER_BYTES + HEADER_BYTES;
/// Most payload that is read before its header is known to match.
const GUESS_BYTES: usize = 32 << 10;
/// Bytes read beyond what is expected, to find the next headers.
const TAIL_BYTES: usize = 4 << 10;
/// Payload of messages that are read beside the header and then copied.
const SHORT_BYTES: usize = 512;
const STAGING_BYTES: usize = 64 << 10;
/// Messages between two requests to put acknowledgements off. On loopback an answered message of 8
/// bytes takes 6.0 µs one way without such requests, 4.9 with one for each 8 to 64 messages, and 5.3 with
/// one for each.
const MESSAGES_PER_DELAY: u32 = 32;
/// Shares read in one system call.
const MAX_PIECES: usize = 16;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use ccl_plugin::Settings;
    use ccl_plugin::net::Mr;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::wire::FILLER;

    /// A receiving end, and a peer that may write anything.
    fn pair() -> (SocketRecv, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nodelay(true).unwrap();
        let (socket, address) = listener.accept().unwrap();
        let config = Config::parse(&Settings::default()).unwrap();
        let stream = Stream::accepted(socket.into(), &config, false).unwrap();
        (SocketRecv::new(vec![stream], address, u64::MAX, Arc::default()), peer)
    }

    fn post(recv: &mut SocketRecv, room: &mut [u8], tag: u32) -> Request {
        let buffer = RecvBuffer { data: room.as_mut_ptr(), bytes: room.len(), tag, mr: Mr::NONE };
        recv.receive(&[buffer]).unwrap().unwrap()
    }

    fn finish(recv: &mut SocketRecv, request: Request) -> Result<u64, Error> {
        let (deadline, mut sizes) = (Instant::now() + Duration::from_secs(10), [0; MAX_RECVS]);
        while !recv.test(request, &mut sizes)? {
            assert!(Instant::now() < deadline, "a receive does not finish");
        }
        Ok(sizes[0])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_stream_may_be_cut_anywhere(
            messages in proptest::collection::vec((0u32..3, 0usize..3000, prop_oneof![Just(0usize), 0usize..100, Just(40_000)]), 1..20),
            filled in proptest::collection::vec(0usize..2, 20),
            marked in proptest::collection::vec(any::<bool>(), 20),
            cuts in proptest::collection::vec(1usize..5000, 1..30),
        ) {
            let (mut recv, mut peer) = pair();
            let payload = |index: usize, bytes: usize| -> Vec<u8> { (0..bytes).map(|i| (i * 7 + index) as u8).collect() };
            let mut stream = Vec::new();
            for (index, (tag, bytes, _)) in messages.iter().enumerate() {
                (0..filled[index]).for_each(|_| stream.extend(FILLER));
                stream.extend(Header { bytes: *bytes as u64, tag: *tag, is_marked: marked[index] }.encode());
                stream.extend(payload(index, *bytes));
            }
            let mut rooms: Vec<Vec<u8>> = messages.iter().map(|(_, bytes, spare)| vec![0; bytes + spare]).collect();
            let requests: Vec<Request> =
                messages.iter().zip(&mut rooms).map(|((tag, ..), room)| post(&mut recv, room, *tag)).collect();
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                peer.write_all(now).unwrap();
                recv.progress().unwrap();
                rest = later;
                if rest.is_empty() { break; }
            }
            for (index, request) in requests.into_iter().enumerate() {
                let bytes = messages[index].1;
                prop_assert_eq!(finish(&mut recv, request).unwrap(), bytes as u64);
                prop_assert!(rooms[index][..bytes] == payload(index, bytes)[..], "message {}", index);
            }
        }

        #[test]
        fn a_peer_that_writes_anything_is_an_error_or_a_message(bytes in proptest::collection::vec(any::<u8>(), 16..400), begins_well in any::<bool>()) {
            let (mut recv, mut peer) = pair();
            let mut guarded = vec![0xAB; 64 + 100 + 64];
            let request = post(&mut recv, &mut guarded[64..164], 1);
            if begins_well {
                peer.write_all(&Header { bytes: 3, tag: 1, is_marked: false }.encode()).unwrap();
            }
            peer.write_all(&bytes).unwrap();
            drop(peer);
            let first = finish(&mut recv, request);
            prop_assert_eq!(first.as_ref().ok(), begins_well.then_some(&3));
            let second = post_or_error(&mut recv, &mut guarded[64..164]);
            prop_assert_eq!(second.code(), Code::REMOTE);
            prop_assert!(guarded[..64].iter().chain(&guarded[164..]).all(|byte| *byte == 0xAB));
        }
    }

    /// How long one waits for a message of which the peer's kernel holds what comes after the `cut` until what is ahead of it is
    /// acknowledged. `looks`: between a marked message ahead and the first bytes.
    fn wait_for_held(cut: usize, looks: usize) -> Duration {
        let (mut recv, mut peer) = pair();
        let message = |is_marked| -> Vec<u8> {
            Header { bytes: 8, tag: 0, is_marked }.encode().into_iter().chain([7; 8]).collect()
        };
        let mut room = [0; 8];
        let [first, second, third] = [0; 3].map(|_| post(&mut recv, &mut room, 0));
        peer.write_all(&message(false)).unwrap();
        // From here on acknowledgements are put off.
        finish(&mut recv, first).unwrap();
        peer.write_all(&message(true)).unwrap();
        if looks > 0 {
            finish(&mut recv, second).unwrap();
        }
        (0..looks).for_each(|_| assert!(!recv.test(third, &mut [0; MAX_RECVS]).unwrap()));
        let third_message = message(true);
        peer.write_all(&third_message[..cut]).unwrap();
        peer.set_nodelay(false).unwrap();
        peer.write_all(&third_message[cut..]).unwrap();
        let begin = Instant::now();
        finish(&mut recv, third).unwrap();
        begin.elapsed()
    }

    #[test]
    fn who_waits_after_a_marked_message_has_what_came_acknowledged() {
        for (cut, looks) in [(0, 0), (1, 0), (1, 1), (HEADER_BYTES, 1), (HEADER_BYTES + 1, 1)] {
            // The kernel puts acknowledgements off for 40 ms. A busy machine may stop this thread for as long, but hardly each time.
            let shortest = (0..8).map(|_| wait_for_held(cut, looks)).min().unwrap();
            assert!(shortest < Duration::from_millis(20), "{cut} {looks}: {shortest:?}");
        }
    }

    #[test]
    fn looks_in_vain_are_counted() {
        let (mut recv, mut peer) = pair();
        let mut room = [0; 8];
        let request = post(&mut recv, &mut room, 0);
        for looks in 1..3 {
            assert!(!recv.test(request, &mut [0; MAX_RECVS]).unwrap());
            assert_eq!(recv.context.waits(), looks);
        }
        peer.write_all(&Header { bytes: 0, tag: 0, is_marked: false }.encode()).unwrap();
        finish(&mut recv, request).unwrap();
    }

    fn post_or_error(recv: &mut SocketRecv, room: &mut [u8]) -> Error {
        let buffer = RecvBuffer { data: room.as_mut_ptr(), bytes: room.len(), tag: 1, mr: Mr::NONE };
        match recv.receive(&[buffer]) {
            Ok(request) => finish(recv, request.unwrap()).unwrap_err(),
            Err(error) => error,
        }
    }
}
