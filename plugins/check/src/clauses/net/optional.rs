//! Entries that a plugin may lack.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use ccl_plugin::Code;
use ccl_plugin::c::{CclWatchV1, FLAG_ONE_SIDED};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::breach::{Outcome, breach, expect, skip};
use crate::clauses::net::buffer::Buffer;
use crate::clauses::net::pair::{Message, Pair, Stage, WINDOW};
use crate::clauses::net::raw::{Pending, SendEnd};

pub(super) fn test_many(stage: &Stage) -> Outcome<String> {
    let entries = stage.table.entries;
    if entries.test_sends.is_none() && entries.test_recvs.is_none() {
        return skip("has neither test_sends nor test_recvs");
    }
    let mut pair = stage.pair()?;
    let messages: Vec<_> = (0..WINDOW as u64).map(|seed| (seed, Buffer::message(seed, 700))).collect();
    let rooms: Vec<_> = messages.iter().map(|_| Buffer::new(800)).collect();
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    stage.wait("messages that are tested many at a time", || {
        if let Some(room) = rooms.get(recvs.len()) {
            recvs.extend(pair.recv.post(&[(*room, 0)])?);
        }
        if let Some((_, message)) = messages.get(sends.len()) {
            sends.extend(pair.send.post(message, 0)?);
        }
        match entries.test_sends {
            Some(_) => pair.send.test_all(&mut sends)?,
            None => sends.iter_mut().try_for_each(|request| pair.send.test(request).map(drop))?,
        }
        match entries.test_recvs {
            Some(_) => pair.recv.test_all(&mut recvs)?,
            None => recvs.iter_mut().try_for_each(|request| pair.recv.test(request).map(drop))?,
        }
        let done = |requests: &[Pending]| requests.len() == WINDOW && requests.iter().all(Pending::is_dead);
        Ok(done(&sends) && done(&recvs))
    })?;
    for ((request, room), (seed, _)) in recvs.iter().zip(&rooms).zip(&messages) {
        expect(request.sizes == [700], || {
            format!("expected 700 bytes received, found {:?} reported by test_recvs", request.sizes)
        })?;
        if let Some(words) = room.objection(*seed, 700) {
            return breach(words);
        }
    }
    Ok(format!("{WINDOW} sends and receives"))
}

pub(super) fn isend_more(stage: &Stage) -> Outcome<String> {
    if stage.table.entries.isend_more.is_none() {
        return skip("has no isend_more");
    }
    let mut pair = stage.pair()?;
    for followed in [true, false] {
        let messages: Vec<_> = (0..2).map(|seed| Buffer::message(seed, 300)).collect();
        let count = if followed { 2 } else { 1 };
        let rooms: Vec<_> = (0..count).map(|_| Buffer::new(300)).collect();
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        stage.wait("a message that was held, with the next or after a test", || {
            if let Some(room) = rooms.get(recvs.len()) {
                recvs.extend(pair.recv.post(&[(*room, 0)])?);
            }
            match sends.len() {
                0 => sends.extend(pair.send.post_more(&messages[0], 0)?),
                sent if sent < count => sends.extend(pair.send.post(&messages[1], 0)?),
                _ => sends.iter_mut().try_for_each(|request| pair.send.test(request).map(drop))?,
            }
            recvs.iter_mut().try_for_each(|request| pair.recv.test(request).map(drop))?;
            let done =
                |requests: &[Pending]| requests.len() == count && requests.iter().all(Pending::is_dead);
            Ok(done(&sends) && done(&recvs))
        })?;
        for (seed, room) in (0..).zip(&rooms) {
            if let Some(words) = room.objection(seed, 300) {
                return breach(words);
            }
        }
    }
    Ok("followed by another message, and by a test alone".to_owned())
}

pub(super) fn isend_from(stage: &Stage) -> Outcome<String> {
    if stage.table.entries.isend_from.is_none() {
        return skip("has no isend_from");
    }
    let mut pair = stage.pair()?;
    // The long ones are more than a network has room for at once.
    let shapes = [(300, 24), (300, 0), (300, 299), (5000, 24), (2 << 20, 24), (2 << 20, 1 << 20), (2, 1)];
    let wholes: Vec<_> = (0..).zip(shapes).map(|(seed, (bytes, _))| Buffer::message(seed, bytes)).collect();
    let rooms: Vec<_> = shapes.iter().map(|(bytes, _)| Buffer::new(*bytes)).collect();
    let messages: Vec<_> = shapes.iter().map(|(bytes, _)| Buffer::new(*bytes)).collect();
    for ((message, whole), (_, head)) in messages.iter().zip(&wholes).zip(shapes) {
        message.write(0, &whole.read()[..head]);
    }
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    stage.wait("messages of which most is elsewhere", || {
        if let Some(room) = rooms.get(recvs.len()) {
            recvs.extend(pair.recv.post(&[(*room, 0)])?);
        }
        if let Some((message, (_, head))) = messages.get(sends.len()).zip(shapes.get(sends.len())) {
            let before = message.read();
            let mut rest = wholes[sends.len()].read()[*head..].to_vec();
            match pair.send.post_from(message, 0, (*head, &rest))? {
                Some(request) => sends.push(request),
                None => expect(message.read() == before, || {
                    "expected nothing written by an isend_from that gave no request".to_owned()
                })?,
            }
            // Nobody needs it any more.
            rest.fill(0);
        }
        sends.iter_mut().try_for_each(|request| pair.send.test(request).map(drop))?;
        recvs.iter_mut().try_for_each(|request| pair.recv.test(request).map(drop))?;
        let done =
            |requests: &[Pending]| requests.len() == shapes.len() && requests.iter().all(Pending::is_dead);
        Ok(done(&sends) && done(&recvs))
    })?;
    for (seed, (room, (bytes, _))) in (0..).zip(rooms.iter().zip(shapes)) {
        if let Some(words) = room.objection(seed, bytes) {
            return breach(words);
        }
    }
    Ok(format!("{} messages, of up to 2 MiB", shapes.len()))
}

pub(super) fn turn(stage: &Stage) -> Outcome<String> {
    if stage.table.entries.turn.is_none() {
        return skip("has no turn");
    }
    let mut there = stage.pair()?;
    // Asked at both ends, the receiver's first.
    let (send, recv) = (there.recv.turn()?, there.send.turn()?);
    let mut back = Pair { send, recv };
    let messages = |seed: u64| (0..50).map(move |i| Message::new(seed + i, (i * 997) as usize, 2));
    for (seed, pair) in [(1, &mut there), (100, &mut back)] {
        stage.carry(pair, &messages(seed).collect::<Vec<_>>())?;
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| stage.carry(&mut back, &messages(200).collect::<Vec<_>>()));
        let one = stage.carry(&mut there, &messages(300).collect::<Vec<_>>());
        other.join().unwrap_or_else(|_| breach("expected a thread to return, found a panic")).and(one)
    })?;
    let Pair { send, mut recv } = there;
    drop(send);
    stage.carry(&mut back, &messages(400).collect::<Vec<_>>())?;
    let (mut request, room) = (None, Buffer::new(10));
    let failed = stage.wait_for_error("in the direction whose sender closed", || {
        match &mut request {
            None => request = recv.post(&[(room, 0)])?,
            Some(request) => drop(recv.test(request)?),
        }
        Ok(())
    })?;
    failed.expect_words()?.expect_code(Code::REMOTE, "after the sender of one direction closed")?;
    drop(recv);
    Ok("both directions at once, one closed before the other".to_owned())
}

pub(super) fn watch(stage: &Stage) -> Outcome<String> {
    if stage.table.entries.watch.is_none() {
        return skip("has no watch");
    }
    let mut pair = stage.pair()?;
    let mut misses = 0;
    for seed in 0..TRIES {
        let (room, message) = (Buffer::new(5000), Buffer::message(seed, 5000));
        let (mut received, mut sent) = (None, None);
        stage.wait("room for a receive", || {
            received = pair.recv.post(&[(room, 0)])?;
            Ok(received.is_some())
        })?;
        let Some(mut received) = received else { return breach("expected a request") };
        stage.wait("a message, told by the descriptors of watch", || {
            if pair.recv.test(&mut received)? {
                return Ok(true);
            }
            let Some(watched) = pair.recv.watch()? else {
                return skip("leaves it to the host when to wake up");
            };
            step(&mut pair.send, &message, &mut sent)?;
            let told = ready(&watched)?;
            let done = pair.recv.test(&mut received)?;
            misses += u64::from(done && !told);
            Ok(done)
        })?;
        if let Some(words) = room.objection(seed, 5000) {
            return breach(words);
        }
        stage.wait("the send to be done", || step(&mut pair.send, &message, &mut sent))?;
    }
    // Once may be chance: the message came just after the wait.
    expect(misses < 2, || {
        format!(
            "expected a descriptor of watch ready before a receive is done, found none ready for {misses} of {TRIES}"
        )
    })?;
    Ok(format!("{TRIES} receives"))
}

fn step(send: &mut SendEnd, message: &Buffer, sent: &mut Option<Pending>) -> Outcome<bool> {
    match sent {
        None => *sent = send.post(message, 0)?,
        Some(request) => return Ok(send.test(request)?),
    }
    Ok(false)
}

/// Waits until one of them has news, for half a second.
fn ready(watched: &[CclWatchV1]) -> Outcome<bool> {
    let descriptor = |watch: &CclWatchV1| {
        let flags = PollFlags::from_bits_truncate(watch.events.cast_unsigned());
        // SAFETY: a descriptor that the plugin has open while the comm is open.
        PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(watch.descriptor) }, flags)
    };
    let mut descriptors: Vec<_> = watched.iter().map(descriptor).collect();
    let half_a_second = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    match poll(&mut descriptors, Some(&half_a_second)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => breach(format!("expected descriptors that poll(2) takes, found {error}")),
    }
}

pub(super) fn one_sided(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    if stage.properties(&context)?.flags & FLAG_ONE_SIDED == 0 {
        return skip("does not say ONE_SIDED");
    }
    let mut pair = stage.pair_between(&context, &context)?;
    let (target, message) = (Buffer::new(4096), Buffer::message(3, 1000));
    target.write(0, &vec![0; 4096]);
    let key = pair.recv.export(&target)?;
    let begun = Instant::now();
    finish(stage, &mut pair.send, |send| send.put(&message, &key, 96))?;
    finish(stage, &mut pair.send, |send| send.signal(&key, 8, 5))?;
    finish(stage, &mut pair.send, |send| send.signal(&key, 8, 6))?;
    stage.wait("the sum of two signals", || Ok(target.read()[8..16] == 11u64.to_ne_bytes()))?;
    expect(target.read()[96..1096] == message.read(), || {
        "expected the bytes of a put before the signal that follows it, found others".to_owned()
    })?;
    let back = Buffer::new(1000);
    finish(stage, &mut pair.send, |send| send.get(&back, &key, 96))?;
    expect(back.read() == message.read(), || {
        "expected what was put to be what a get reads, found other bytes".to_owned()
    })?;
    match pair.send.put_beyond(&message, &key, 4096 - 999)? {
        Some(failed) => {
            drop(failed.expect_words()?.expect_code(Code::INVALID, "for a put past the memory's end")?)
        }
        None => {
            return breach(format!(
                "expected {} for a put past the memory's end, found success",
                Code::INVALID
            ));
        }
    }
    match target.guard_objection() {
        Some(words) => breach(words),
        None => Ok(format!("put, two signals, get and a put out of bounds in {:.0?}", begun.elapsed())),
    }
}

/// Posts and waits.
fn finish(
    stage: &Stage,
    send: &mut SendEnd,
    mut post: impl FnMut(&mut SendEnd) -> Outcome<Option<Pending>>,
) -> Outcome<()> {
    let mut request = None;
    stage.wait("a put, get or signal", || {
        match &mut request {
            None => request = post(send)?,
            Some(request) => return Ok(send.test(request)?),
        }
        Ok(false)
    })
}

const TRIES: u64 = 5;
