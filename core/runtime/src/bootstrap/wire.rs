//! Frames and messages of the control connection.
//!
//! A frame is a length (4 bytes, little endian) and that many bytes. Before the handshake a frame is
//! one of the fixed messages of [`super::auth`] and at most [`STRANGER_BYTES`] long; after it, a
//! [`ToRoot`] or [`ToMember`] and at most [`MEMBER_BYTES`]. Nothing is allocated for bytes that have
//! not arrived.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::machine::Ending;
use crate::bootstrap::process::Process;
use crate::bootstrap::roots::Claim;
use crate::error::Fault;
use crate::observe::board::Snapshot;

/// What a member says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToRoot {
    /// Here I am; give up on the others when `remaining_ms` have passed.
    Join { process: Process, remaining_ms: u64, info: ByteBuf },
    /// I am here, but cannot take part: everybody should give up.
    Fail { reason: String },
    /// My part of numbered round `round`.
    Gather { round: u64, remaining_ms: u64, info: ByteBuf },
    /// For another rank's mailbox.
    Relay { to: u32, topic: u32, bytes: ByteBuf },
    /// Are you there?
    Ping,
    /// I leave, having entered and completed this much.
    Leave { last_entered: Option<u64>, last_completed: Option<u64> },
    /// My data path saw this.
    Report { cause: Cause },
    /// My caller ends the communicator.
    Abort { reason: String },
    /// Operation `sequence` is late here.
    Diagnose { sequence: u64, waiting_for: Option<u32> },
    /// What my board shows, for question `question`.
    State { question: u64, state: Snapshot },
    /// I join communicator `branch` on this connection, as `rank` of `n`; `body` is what I say first.
    Begin { branch: u64, rank: u32, n: u32, body: ByteBuf },
    /// What I say in communicator `branch`.
    Branch { branch: u64, body: ByteBuf },
    /// What I say first, where the ranks meet at several roots and I know of all.
    Share { claim: Claim, first: ByteBuf },
    /// I am another root of those, and speak for the ranks that came to me.
    Represent { claim: Claim, process: Process },
}

/// What the root says to a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToMember {
    /// Joining failed.
    Refused(Refusal),
    /// Everybody is here: their infos by rank, the process that runs the root, and the ranks in it; the same
    /// of the head, if the root is a deputy.
    Table { infos: Infos, root: Process, hosts: Vec<u32>, head: Option<Host> },
    /// Round `round` is complete.
    Gathered { round: u64, infos: Infos },
    /// Round `round` will never be complete.
    GatherFailed { round: u64, refusal: Refusal },
    /// From another rank.
    Relay { from: u32, topic: u32, bytes: ByteBuf },
    /// I am.
    Pong,
    /// These ranks have left and will not be missed.
    Left { ranks: Vec<u32> },
    /// Your leave is known to everybody; goodbye.
    Farewell,
    /// The communicator has failed, and this is why.
    Failed(Cause),
    /// What does your board show?
    Ask { question: u64 },
    /// What I say in communicator `branch`.
    Branch { branch: u64, body: ByteBuf },
    /// The service goes no further, because a root of it ended after the ranks in its process had left.
    Ended { text: String },
    /// I am a deputy, and my connection to the head ended.
    HeadLost { why: Ending },
    /// I am a deputy, and the head does not answer me, or does so again.
    HeadSilent { silent: bool },
}

/// A process that runs a root, and the ranks of a communicator in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) process: Process,
    pub(crate) ranks: Vec<u32>,
}

/// Why joining or a round failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) fault: FaultCode,
    pub(crate) text: String,
}

/// Why a communicator failed, as the root elected it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Cause {
    pub(crate) kind: CauseKind,
    /// The rank that noticed, if one did before the root.
    pub(crate) origin: Option<u32>,
    /// The rank at fault.
    pub(crate) culprit: Option<u32>,
    pub(crate) fault: FaultCode,
    pub(crate) text: String,
    /// The verdict as JSON, if there was a diagnosis.
    pub(crate) verdict: Option<String>,
}

/// How a failure became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum CauseKind {
    /// A control connection ended without leave.
    Gone,
    /// A control connection is open, but nothing arrives any more.
    Unreachable,
    /// A caller aborted.
    Aborted,
    /// A data path failed.
    Reported,
    /// A late operation was diagnosed.
    Diagnosed,
    /// A rank broke the protocol.
    Broken,
}

/// [`Fault`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FaultCode {
    Usage,
    Remote(u32),
    Network,
    Device,
    System(Option<i32>),
    Plugin(String),
    Aborted,
    Timeout,
    Bug,
}

impl From<&Fault> for FaultCode {
    fn from(fault: &Fault) -> FaultCode {
        match fault {
            Fault::Usage => FaultCode::Usage,
            Fault::Remote { rank } => FaultCode::Remote(rank.0),
            Fault::Network => FaultCode::Network,
            Fault::Device => FaultCode::Device,
            Fault::System { errno } => FaultCode::System(*errno),
            Fault::Plugin { name } => FaultCode::Plugin(name.clone()),
            Fault::Aborted => FaultCode::Aborted,
            Fault::Timeout => FaultCode::Timeout,
            Fault::Bug => FaultCode::Bug,
        }
    }
}

impl From<FaultCode> for Fault {
    fn from(code: FaultCode) -> Fault {
        match code {
            FaultCode::Usage => Fault::Usage,
            FaultCode::Remote(rank) => Fault::Remote { rank: ccl_plan::Rank(rank) },
            FaultCode::Network => Fault::Network,
            FaultCode::Device => Fault::Device,
            FaultCode::System(errno) => Fault::System { errno },
            FaultCode::Plugin(name) => Fault::Plugin { name },
            FaultCode::Aborted => Fault::Aborted,
            FaultCode::Timeout => Fault::Timeout,
            FaultCode::Bug => Fault::Bug,
        }
    }
}

/// A frame ready to be sent, shared by its receivers.
pub(crate) type Frame = Arc<[u8]>;

/// The frame around `body`.
pub(crate) fn frame(body: &[u8]) -> Frame {
    let length = (body.len() as u32).to_le_bytes();
    [&length[..], body].concat().into()
}

/// The frame of `message`.
pub(crate) fn encode<M: Serialize>(message: &M) -> Frame {
    // Messages are plain structures without maps or unsized sequences: encoding cannot fail.
    frame(&postcard::to_stdvec(message).unwrap_or_default())
}

/// The message in `body`, if it is one and nothing follows it.
pub(crate) fn decode<M: DeserializeOwned>(body: &[u8]) -> Option<M> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// The frame of `message` in a communicator: as it is in that which the connection was made for, which has
/// number 0.
pub(crate) fn encode_in(branch: u64, message: &ToRoot) -> Frame {
    match branch {
        0 => encode(message),
        _ => encode(&ToRoot::Branch { branch, body: body(message).into() }),
    }
}

/// What is in a frame.
pub(crate) fn body_of(frame: &[u8]) -> &[u8] {
    frame.get(LENGTH_BYTES..).unwrap_or_default()
}

/// What is in the frame of `message`.
pub(crate) fn body<M: Serialize>(message: &M) -> Vec<u8> {
    // As in `encode`.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// The frame of what the root says in communicator `branch`, from its frame there.
pub(crate) fn in_branch(branch: u64, frame: &[u8]) -> Frame {
    let body = blob(body_of(frame));
    encode(&ToMember::Branch { branch, body })
}

/// A message that is of a branch, if it is one.
pub(crate) fn of_branch(body: &[u8]) -> Option<ToRoot> {
    // Variants travel as their numbers; all others need not be read twice.
    let may_be = body.first().is_some_and(|variant| OF_BRANCHES.contains(variant));
    may_be.then(|| decode(body)).flatten()
}

/// The same of what the root says.
pub(crate) fn of_branch_of_root(body: &[u8]) -> Option<ToMember> {
    (body.first() == Some(&BRANCH_OF_ROOT)).then(|| decode(body)).flatten()
}

/// Whether the root speaks of the head, to all communicators on the connection.
pub(crate) fn is_about_head(body: &[u8]) -> bool {
    body.first().is_some_and(|variant| ABOUT_HEAD.contains(variant))
}

/// Whether this can be said only where there are several roots.
pub(crate) fn is_of_several(body: &[u8]) -> bool {
    body.first().is_some_and(|variant| OF_SEVERAL.contains(variant))
}

/// What a deputy has to know of what a member says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ping,
    /// For another rank of the communicator that the connection was made for.
    Relay,
    /// The rank leaves that communicator.
    Leave,
    /// A part of something that all ranks, or those of a branch, say at about the same time.
    Round,
    /// Why is an operation late?
    Question,
    Other,
}

impl Kind {
    pub(crate) fn of(body: &[u8]) -> Kind {
        match (body.first(), of_branch(body)) {
            (_, Some(ToRoot::Begin { .. })) => Kind::Round,
            (_, Some(ToRoot::Branch { body, .. })) => match body.first() {
                Some(&GATHER) => Kind::Round,
                Some(&DIAGNOSE) => Kind::Question,
                _ => Kind::Other,
            },
            (Some(&GATHER), _) => Kind::Round,
            (Some(&RELAY), _) => Kind::Relay,
            (Some(&PING), _) => Kind::Ping,
            (Some(&LEAVE), _) => Kind::Leave,
            (Some(&DIAGNOSE), _) => Kind::Question,
            _ => Kind::Other,
        }
    }
}

/// What a deputy has to know of what the head says to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    Refused,
    Table,
    /// What does your board show? In any communicator.
    Ask,
    Other,
}

impl Word {
    pub(crate) fn of(body: &[u8]) -> Word {
        match body.first() {
            Some(&REFUSED) => Word::Refused,
            Some(&TABLE) => Word::Table,
            Some(&ASK) => Word::Ask,
            Some(&BRANCH_OF_ROOT) => match of_branch_of_root(body) {
                Some(ToMember::Branch { body, .. }) if body.first() == Some(&ASK) => Word::Ask,
                _ => Word::Other,
            },
            _ => Word::Other,
        }
    }
}

/// `bytes` as they are sent.
pub(crate) fn blob(bytes: &[u8]) -> ByteBuf {
    ByteBuf::from(bytes)
}

/// `text` cut to what a message may carry of it.
pub(crate) fn bounded(text: &str) -> String {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    limit_bytes: usize,
}

/// A frame longer than its sender may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong {
    pub(crate) size_bytes: usize,
    pub(crate) limit_bytes: usize,
}

impl Decoder {
    /// A decoder of frames of at most `limit_bytes`.
    pub(crate) fn new(limit_bytes: usize) -> Decoder {
        Decoder { buffer: Vec::new(), start: 0, limit_bytes }
    }

    /// From now on frames may have `limit_bytes`.
    pub(crate) fn allow(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Takes in what arrived. The caller takes all frames out before it pushes more.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame's body.
    pub(crate) fn pop(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let rest = &self.buffer[self.start..];
        let Some((length, body)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let size_bytes = u32::from_le_bytes(*length) as usize;
        if size_bytes > self.limit_bytes {
            return Err(TooLong { size_bytes, limit_bytes: self.limit_bytes });
        }
        let Some(body) = body.get(..size_bytes) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.start += 4 + size_bytes;
        if self.start == self.buffer.len() {
            (self.buffer, self.start) = (Vec::new(), 0);
        }
        Ok(Some(body))
    }
}

const LENGTH_BYTES: usize = 4;
/// The numbers of variants of [`ToRoot`].
const GATHER: u8 = 2;
const RELAY: u8 = 3;
const PING: u8 = 4;
const LEAVE: u8 = 5;
const DIAGNOSE: u8 = 8;
/// The numbers of variants of [`ToMember`].
const REFUSED: u8 = 0;
const TABLE: u8 = 1;
const ASK: u8 = 9;
/// The numbers of [`ToRoot::Begin`] and [`ToRoot::Branch`].
const OF_BRANCHES: std::ops::RangeInclusive<u8> = 10..=11;
/// The numbers of [`ToRoot::Share`] and [`ToRoot::Represent`].
const OF_SEVERAL: std::ops::RangeInclusive<u8> = 12..=13;
/// The numbers of [`ToMember::HeadLost`] and [`ToMember::HeadSilent`].
const ABOUT_HEAD: std::ops::RangeInclusive<u8> = 12..=13;
/// The number of [`ToMember::Branch`].
const BRANCH_OF_ROOT: u8 = 10;
/// The longest frame before the handshake is over.
pub(crate) const STRANGER_BYTES: usize = 128;
/// The longest frame after it.
pub(crate) const MEMBER_BYTES: usize = 64 << 20;
/// The longest info, and the longest message between ranks.
pub(crate) const INFO_BYTES: usize = 1 << 20;
/// The longest reason.
const TEXT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_frames(decoder: &mut Decoder) -> Result<Vec<Vec<u8>>, TooLong> {
        std::iter::from_fn(|| decoder.pop().transpose()).collect()
    }

    fn messages() -> Vec<ToRoot> {
        let process = Process { pid: 3, host_id: 9, host: "h".into() };
        vec![
            ToRoot::Join { process, remaining_ms: 5000, info: blob(b"info") },
            ToRoot::Relay { to: 1, topic: 2, bytes: blob(&[0; 300]) },
            ToRoot::Ping,
            ToRoot::State { question: 1, state: Snapshot::default() },
        ]
    }

    #[test]
    fn a_long_frame_is_refused_at_its_length() {
        let mut decoder = Decoder::new(STRANGER_BYTES);
        decoder.push(&frame(&[0; STRANGER_BYTES]));
        assert_eq!(decoder.pop().unwrap().unwrap().len(), STRANGER_BYTES);
        decoder.push(&u32::MAX.to_le_bytes());
        assert_eq!(decoder.pop().unwrap_err().limit_bytes, STRANGER_BYTES);
    }

    #[test]
    fn messages_of_branches_are_told_from_others() {
        assert!(messages().iter().all(|message| of_branch(&body(message)).is_none()));
        let begin = ToRoot::Begin { branch: 7, rank: 1, n: 2, body: blob(b"b") };
        assert_eq!(body(&begin)[0], *OF_BRANCHES.start());
        assert_eq!(of_branch(&body(&begin)), Some(begin));
        let frame = encode_in(7, &ToRoot::Ping);
        let wrapped = ToRoot::Branch { branch: 7, body: body(&ToRoot::Ping).into() };
        assert_eq!(of_branch(&frame[4..]), Some(wrapped));
        assert_eq!(encode_in(0, &ToRoot::Ping), encode(&ToRoot::Ping));
        let inner = encode(&ToMember::Pong);
        let Some(ToMember::Branch { branch: 9, body }) = of_branch_of_root(&in_branch(9, &inner)[4..]) else {
            panic!("it is the root's word in branch 9");
        };
        assert!(of_branch_of_root(&inner[4..]).is_none() && !is_about_head(&inner[4..]));
        let lost = ToMember::HeadLost { why: Ending::Closed };
        assert!(is_about_head(&super::body(&lost)));
        assert!(is_about_head(&super::body(&ToMember::HeadSilent { silent: true })));
        assert!(!is_about_head(&super::body(&ToMember::Ended { text: String::new() })));
        assert_eq!(decode::<ToMember>(&body), Some(ToMember::Pong));
    }

    #[test]
    fn deputies_know_what_passes_by() {
        let gather = ToRoot::Gather { round: 1, remaining_ms: 2, info: blob(b"i") };
        let diagnose = ToRoot::Diagnose { sequence: 1, waiting_for: None };
        let leave = ToRoot::Leave { last_entered: None, last_completed: None };
        let abort = ToRoot::Abort { reason: "r".into() };
        let begin = ToRoot::Begin { branch: 1, rank: 0, n: 1, body: blob(b"b") };
        let kind = |message: &ToRoot| Kind::of(&super::body(message));
        let in_branch_kind = |message: &ToRoot| Kind::of(body_of(&encode_in(3, message)));
        assert_eq!([kind(&gather), kind(&begin), in_branch_kind(&gather)], [Kind::Round; 3]);
        assert_eq!([kind(&diagnose), in_branch_kind(&diagnose)], [Kind::Question; 2]);
        assert_eq!(
            (kind(&ToRoot::Ping), kind(&messages()[1]), kind(&leave)),
            (Kind::Ping, Kind::Relay, Kind::Leave)
        );
        assert_eq!([kind(&abort), in_branch_kind(&abort), in_branch_kind(&leave)], [Kind::Other; 3]);
        let refusal = Refusal { fault: FaultCode::Usage, text: "t".into() };
        let process = Process { pid: 3, host_id: 9, host: "h".into() };
        let table = ToMember::Table { infos: Infos::default(), root: process, hosts: Vec::new(), head: None };
        let ask = ToMember::Ask { question: 3 };
        let word = |message: &ToMember| Word::of(&super::body(message));
        let in_branch_word = |message: &ToMember| Word::of(body_of(&in_branch(4, &encode(message))));
        assert_eq!([word(&ask), in_branch_word(&ask)], [Word::Ask; 2]);
        assert_eq!((word(&ToMember::Refused(refusal)), word(&table)), (Word::Refused, Word::Table));
        assert_eq!([word(&ToMember::Pong), in_branch_word(&table)], [Word::Other; 2]);
    }

    #[test]
    fn texts_are_cut_at_characters() {
        let text = "ü".repeat(TEXT_BYTES);
        assert_eq!(bounded(&text).len(), TEXT_BYTES);
        assert_eq!(bounded(&format!("x{text}")).len(), TEXT_BYTES - 1);
        assert_eq!(bounded("short"), "short");
    }

    proptest! {
        #[test]
        fn frames_survive_any_splitting(cuts in proptest::collection::vec(1usize..40, 1..400)) {
            let stream: Vec<u8> = messages().iter().flat_map(|message| encode(message).to_vec()).collect();
            let (mut decoder, mut found, mut rest) = (Decoder::new(1000), Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                let (head, tail) = rest.split_at(*cut.min(&rest.len()));
                decoder.push(head);
                found.extend(all_frames(&mut decoder).unwrap());
                rest = tail;
                if rest.is_empty() { break; }
            }
            let found: Vec<ToRoot> = found.iter().map(|body| decode(body).unwrap()).collect();
            prop_assert_eq!(found, messages());
        }

        #[test]
        fn any_stream_is_survived_within_bounds(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..64)) {
            let mut decoder = Decoder::new(STRANGER_BYTES);
            for piece in pieces {
                decoder.push(&piece);
                if all_frames(&mut decoder).is_err() { break; }
                prop_assert!(decoder.buffer.capacity() <= 4 * (STRANGER_BYTES + 64));
            }
        }

        #[test]
        fn any_body_is_survived(body in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = (decode::<ToRoot>(&body), decode::<ToMember>(&body));
        }

        #[test]
        fn damaged_and_cut_messages_are_survived(which in 0usize..4, at: prop::sample::Index, flip: u8, keep: prop::sample::Index) {
            let mut body = encode(&messages()[which])[4..].to_vec();
            let (at, keep) = (at.index(body.len()), keep.index(body.len()));
            body[at] ^= flip;
            let _ = (decode::<ToRoot>(&body), decode::<ToMember>(&body));
            let _ = (decode::<ToRoot>(&body[..keep]), decode::<ToMember>(&body[..keep]));
        }
    }
}
