//! Messages: sizes, order, tags, groups, registrations.

use std::time::{Duration, Instant};

use ccl_plugin::Code;
use ccl_plugin::c::{MEMORY_CUDA, MEMORY_DMABUF};

use crate::breach::{Outcome, breach, expect};
use crate::clauses::net::buffer::Buffer;
use crate::clauses::net::pair::{Message, Pair, Sending, Stage, WINDOW};
use crate::clauses::net::raw::Pending;

pub(super) fn sizes(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let longest = stage.properties(&context)?.max_message_bytes.min(LONGEST);
    let around = |power: u32| [(1u64 << power) - 1, 1 << power, (1 << power) + 1];
    let mut sizes: Vec<u64> = (0..=LONGEST.ilog2()).flat_map(around).collect();
    sizes.retain(|bytes| *bytes <= longest);
    sizes.dedup();
    let mut pair = stage.pair_between(&context, &context)?;
    for (seed, bytes) in (1..).zip(&sizes) {
        let message = Message::new(seed, *bytes as usize, seed as u32 % 3);
        // Once in room of its own size, once in more.
        let roomier = Message { room: message.bytes + 100, seed: seed + 1000, ..message };
        stage.carry(&mut pair, &[message, roomier])?;
    }
    Ok(format!("{} sizes from 0 to {longest} bytes", sizes.len()))
}

pub(super) fn pending(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    let (first, second) = (Buffer::new(64), Buffer::new(64));
    let mut requests = Vec::new();
    for buffer in [first, second] {
        let mut posted = None;
        stage.wait("room for a receive", || {
            posted = pair.recv.post(&[(buffer, 3)])?;
            Ok(posted.is_some())
        })?;
        requests.extend(posted);
    }
    stay_pending(&mut pair, &mut requests, "when nothing was sent")?;
    let message = Buffer::message(1, 64);
    let mut sent = None;
    stage.wait("one message into one of two receives", || {
        match &mut sent {
            None => sent = pair.send.post(&message, 3)?,
            Some(request) => drop(pair.send.test(request)?),
        }
        Ok(pair.recv.test(&mut requests[0])?)
    })?;
    if let Some(words) = first.objection(1, 64) {
        return breach(words);
    }
    stay_pending(&mut pair, &mut requests[1..], "when the one message went to another")?;
    expect(second.is_untouched(), || {
        "expected a pending receive's buffer as it was, found bytes".to_owned()
    })?;
    Ok("one message, two receives".to_owned())
}

/// For a while, none of them is done.
fn stay_pending(pair: &mut Pair, requests: &mut [Pending], when: &str) -> Outcome<()> {
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE {
        for request in &mut *requests {
            expect(!pair.recv.test(request)?, || {
                format!("expected a receive to stay pending {when}, found it done")
            })?;
        }
    }
    Ok(())
}

pub(super) fn order(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    let size = |seed: u64| (seed * 7919 % 20_000) as usize;
    let messages: Vec<_> =
        (0..200).map(|seed| Message { room: 20_000, ..Message::new(seed, size(seed), 5) }).collect();
    stage.carry(&mut pair, &messages)?;
    Ok("200 messages of one tag".to_owned())
}

pub(super) fn tags(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    for round in 0..20 {
        // Equal sizes: only the tag tells them apart.
        let messages: Vec<_> =
            (0..4u32).map(|tag| vec![Message::new(round * 10 + u64::from(tag), 500, tag * 77)]).collect();
        let order = if round % 2 == 0 { [3, 1, 0, 2] } else { [2, 3, 1, 0] };
        stage.exchange(&mut pair, &order, &messages, WINDOW)?;
    }
    let extremes = [u32::MAX, 0, 1 << 31].map(|tag| Message::new(u64::from(tag), 40, tag));
    stage.carry(&mut pair, &extremes)?;
    Ok("20 rounds of four tags, sent in another order than posted".to_owned())
}

pub(super) fn groups(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let most = stage.properties(&context)?.max_recvs.clamp(1, ccl_plugin::c::MAX_RECVS as u32) as usize;
    let mut pair = stage.pair_between(&context, &context)?;
    for n in 1..=most {
        let apart = |i: usize| Message { room: 900, ..Message::new(i as u64, 100 * i + n, i as u32) };
        let alike = |i: usize| Message { tag: 7, seed: 50 + i as u64, ..apart(i) };
        let groups = [(0..n).map(apart).collect(), (0..n).map(alike).collect::<Vec<_>>()];
        // The first group backwards; in the second the order decides.
        let order: Vec<_> = (0..n).rev().chain(n..2 * n).collect();
        stage.exchange(&mut pair, &order, &groups, WINDOW)?;
        incomplete(stage, &mut pair, n)?;
    }
    Ok(format!("groups of 1 to {most}, with tags apart and alike"))
}

/// A group of which all messages but the last were sent is not done.
fn incomplete(stage: &Stage, pair: &mut Pair, n: usize) -> Outcome<()> {
    let rooms: Vec<_> = (0..n as u32).map(|tag| (Buffer::new(100), tag)).collect();
    let mut posted = None;
    stage.wait("room for a group", || {
        posted = pair.recv.post(&rooms)?;
        Ok(posted.is_some())
    })?;
    let Some(mut request) = posted else { return breach("expected a request") };
    let messages = (0..n as u64).map(|seed| Message::new(seed, 100, seed as u32));
    let (mut early, mut late) =
        (Sending::new(messages.clone().take(n - 1)), Sending::new(messages.skip(n - 1)));
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE / 2 {
        early.step(&mut pair.send, WINDOW)?;
        expect(!pair.recv.test(&mut request)?, || {
            format!("expected a group of {n} to stay pending with a message missing, found it done")
        })?;
    }
    stage.wait("a group whose last message came late", || {
        early.step(&mut pair.send, WINDOW)?;
        if early.is_over() {
            late.step(&mut pair.send, WINDOW)?;
        }
        Ok(pair.recv.test(&mut request)? && late.is_over())
    })?;
    let objections = (0..).zip(&rooms).find_map(|(seed, (room, _))| room.objection(seed, 100));
    objections.map_or(Ok(()), breach)
}

pub(super) fn unexpected(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    let messages: Vec<_> = (0..6).map(|seed| Message::new(seed, 10_000, 1)).collect();
    let mut sending = Sending::new(messages.iter().copied());
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE {
        sending.step(&mut pair.send, WINDOW)?;
    }
    let early = sending.is_over();
    let buffers: Vec<_> = messages.iter().map(|message| Buffer::new(message.bytes)).collect();
    for (message, buffer) in messages.iter().zip(&buffers) {
        let mut request = None;
        stage.wait("a message that was sent before its receive", || {
            sending.step(&mut pair.send, WINDOW)?;
            match &mut request {
                None => request = pair.recv.post(&[(*buffer, message.tag)])?,
                Some(request) => return Ok(pair.recv.test(request)?),
            }
            Ok(false)
        })?;
        if let Some(words) = buffer.objection(message.seed, message.bytes) {
            return breach(words);
        }
    }
    stage.wait("the sends to be done", || {
        sending.step(&mut pair.send, WINDOW)?;
        Ok(sending.is_over())
    })?;
    let when = if early { "before" } else { "when" };
    Ok(format!("six messages, whose sends were done {when} there were receives"))
}

pub(super) fn in_flight(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let promised = stage.properties(&context)?.max_requests.min(MOST_IN_FLIGHT) as usize;
    let mut pair = stage.pair_between(&context, &context)?;
    let messages: Vec<_> = (0..promised as u64).map(|seed| Message::new(seed, 64, 0)).collect();
    let mut requests: Vec<(_, Buffer)> = Vec::new();
    stage.wait(&format!("{promised} receives in flight, as max_requests says,"), || {
        let buffer = Buffer::new(64);
        requests.extend(pair.recv.post(&[(buffer, 0)])?.map(|request| (request, buffer)));
        Ok(requests.len() == promised)
    })?;
    let mut sending = Sending::new(messages.iter().copied());
    stage.wait("as many messages as receives", || {
        sending.step(&mut pair.send, promised)?;
        let mut done = sending.is_over();
        for (request, _) in &mut requests {
            done &= pair.recv.test(request)?;
        }
        Ok(done)
    })?;
    for ((_, buffer), message) in requests.iter().zip(&messages) {
        if let Some(words) = buffer.objection(message.seed, 64) {
            return breach(format!("message {} of {promised}: {words}", message.seed));
        }
    }
    // A message that was posted although the answer was `not now` would arrive once more.
    let (mut one_more, begun) = (None, Instant::now());
    while begun.elapsed() < A_WHILE / 4 {
        match &mut one_more {
            None => one_more = pair.recv.post(&[(Buffer::new(64), 0)])?,
            Some(request) => expect(!pair.recv.test(request)?, || {
                format!("expected {promised} messages, found one more: `not now` posts nothing")
            })?,
        }
    }
    Ok(format!("{promised} receives in flight"))
}

pub(super) fn out_of_order(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    let buffers: Vec<_> = (0..WINDOW).map(|_| Buffer::new(2000)).collect();
    let mut requests = Vec::new();
    for (tag, buffer) in (0..).zip(&buffers) {
        stage.wait("room for a receive", || {
            let posted = pair.recv.post(&[(*buffer, tag)])?;
            let is_posted = posted.is_some();
            requests.extend(posted);
            Ok(is_posted)
        })?;
    }
    let mut sending = Sending::new((0..WINDOW as u64).map(|seed| Message::new(seed, 2000, seed as u32)));
    // The youngest is waited for first: nothing tests the older ones meanwhile.
    for place in (0..WINDOW).rev() {
        stage.wait("a receive that is tested before older ones", || {
            sending.step(&mut pair.send, WINDOW)?;
            Ok(pair.recv.test(&mut requests[place])?)
        })?;
        if let Some(words) = buffers[place].objection(place as u64, 2000) {
            return breach(words);
        }
    }
    Ok(format!("{WINDOW} receives, tested from the youngest"))
}

pub(super) fn registration(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let kinds = stage.properties(&context)?.memory_kinds;
    let mut pair = stage.pair_between(&context, &context)?;
    let buffer = Buffer::message(1, 100_000);
    let parts: Vec<_> = (0..64).map(|i| (i * 100)..(i * 100 + 5000)).collect();
    for parts in [vec![0..100_000, 0..100_000, 1..99_999], parts] {
        pair.send.register_parts(&buffer, &parts)?;
        pair.recv.register_parts(&buffer, &parts)?;
    }
    stage.carry(&mut pair, &[Message::new(2, 50_000, 0)])?;
    let mut refused = 0;
    for kind in [MEMORY_CUDA, MEMORY_DMABUF, 1 << 30] {
        if kinds & kind != 0 {
            continue;
        }
        // An error may break a comm: one for each.
        let mut other = stage.pair_between(&context, &context)?;
        match other.recv.register_kind(&buffer, kind) {
            Some(failed) => drop(failed.expect_words()?),
            None => {
                let words = format!("expected memory of kind {kind} refused, since memory_kinds is {kinds}");
                return breach(format!("{words}, found it registered ({})", Code::OK));
            }
        }
        refused += 1;
    }
    Ok(format!("67 parts at either end, {refused} kinds of memory refused"))
}

/// Longest message that is sent.
const LONGEST: u64 = 1 << 20;
const MOST_IN_FLIGHT: u32 = 64;
/// In which something that must not happen is given every chance.
const A_WHILE: Duration = Duration::from_millis(100);
