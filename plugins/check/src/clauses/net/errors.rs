//! What goes wrong, and how it is told.

use std::time::{Duration, Instant};

use ccl_plugin::Code;

use crate::breach::{Failed, Outcome, breach, expect, skip};
use crate::clauses::net::buffer::Buffer;
use crate::clauses::net::pair::{Message, Pair, Sending, Stage, WINDOW};
use crate::clauses::net::raw::Pending;

pub(super) fn too_long(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    let (room, message) = (Buffer::new(1000), Buffer::message(1, 1234));
    let mut received = posted_receive(stage, &mut pair, room)?;
    let mut sent: Option<Pending> = None;
    let mut done = false;
    let failed = stage.wait_for_error("for a message of 1234 bytes in room of 1000", || {
        match &mut sent {
            // An error at the sender is all right as well, but the receiver must have one.
            None => sent = pair.send.post(&message, 0).unwrap_or(None),
            Some(request) => drop(pair.send.test(request)),
        }
        done |= pair.recv.test(&mut received)?;
        Ok(())
    });
    expect(!done, || {
        let sizes = &received.sizes;
        format!(
            "expected {} for a message of 1234 bytes in room of 1000, found {sizes:?} bytes received",
            Code::TOO_LONG
        )
    })?;
    let failed = failed?.expect_words()?;
    if let Some(words) = room.guard_objection() {
        return breach(format!("a message that is too long: {words}"));
    }
    if stage.is_made_for_nccl() {
        return Ok(failed.message);
    }
    let failed = failed.expect_code(Code::TOO_LONG, "for a message longer than its room")?;
    let digits = |number: &str| failed.message.replace([',', '_'], "").contains(number);
    expect(digits("1000") && digits("1234"), || {
        format!("expected both sizes, 1234 and 1000, in the words, found \"{}\"", failed.message)
    })?;
    Ok(failed.message)
}

pub(super) fn peer_gone(stage: &Stage) -> Outcome<String> {
    let mut pair = stage.pair()?;
    let mut request = posted_receive(stage, &mut pair, Buffer::new(100))?;
    let Pair { send, mut recv } = pair;
    drop(send);
    let failed = stage.wait_for_error("in test_recv after the sender closed", || {
        recv.test(&mut request).map(drop)?;
        match request.is_dead() {
            false => Ok(()),
            true => Err(Failed { call: "test_recv", message: "done".to_owned(), ..Failed::default() }),
        }
    })?;
    expect(failed.code != 0, || {
        "expected an error after the sender closed without sending, found the receive done".to_owned()
    })?;
    let at_receiver = names_the_peer(stage, failed, "after the sender closed")?;
    let Pair { mut send, recv } = stage.pair()?;
    drop(recv);
    let message = Buffer::message(1, 100_000);
    let mut pending: Option<Pending> = None;
    let failed = stage.wait_for_error("in isend or test_send after the receiver closed", || {
        match &mut pending {
            Some(request) if !request.is_dead() => drop(send.test(request)?),
            _ => pending = send.post(&message, 0)?,
        }
        Ok(())
    })?;
    names_the_peer(stage, failed, "after the receiver closed")?;
    Ok(at_receiver.to_string())
}

fn names_the_peer(stage: &Stage, failed: Failed, when: &str) -> Outcome<Failed> {
    let failed = failed.expect_words()?.expect_code(Code::REMOTE, when)?;
    expect(stage.is_made_for_nccl() || !failed.peer.is_empty(), || {
        format!("expected the peer's address in last_error {when}, found none in: {failed}")
    })?;
    Ok(failed)
}

pub(super) fn delivered(stage: &Stage) -> Outcome<String> {
    let Pair { mut send, mut recv } = stage.pair()?;
    let messages: Vec<_> = (0..5).map(|seed| Message::new(seed, 3000, 0)).collect();
    let mut sent = 0;
    let mut pending = None;
    let begun = Instant::now();
    while sent < messages.len() && begun.elapsed() < A_WHILE {
        let buffer = Buffer::message(messages[sent].seed, messages[sent].bytes);
        match &mut pending {
            None => pending = send.post(&buffer, 0)?,
            Some(request) => {
                if send.test(request)? {
                    sent += 1;
                    pending = None;
                }
            }
        }
    }
    drop(send);
    for message in &messages[..sent] {
        let buffer = Buffer::new(message.bytes);
        let mut request = None;
        stage.wait("a message that was reported sent before the sender closed", || {
            match &mut request {
                None => request = recv.post(&[(buffer, 0)])?,
                Some(request) => return Ok(recv.test(request)?),
            }
            Ok(false)
        })?;
        if let Some(words) = buffer.objection(message.seed, message.bytes) {
            return breach(format!("after the sender closed: {words}"));
        }
    }
    Ok(match sent {
        0 => "no send was done before its receive".to_owned(),
        sent => format!("{sent} messages, received after the sender closed"),
    })
}

pub(super) fn close_pending(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let mut pair = stage.pair_between(&context, &context)?;
    let rooms: Vec<_> = (0..3).map(|_| Buffer::new(1 << 20)).collect();
    for room in &rooms {
        posted_receive(stage, &mut pair, *room)?;
    }
    // The first message is on its way when the receiver closes.
    let mut sending = Sending::new((0..3).map(|seed| Message::new(seed, 1 << 20, 0)));
    for _ in 0..3 {
        sending.step(&mut pair.send, WINDOW)?;
    }
    let Pair { mut send, recv } = pair;
    let begun = Instant::now();
    drop(recv);
    let took = begun.elapsed();
    let left: Vec<_> = rooms.iter().map(Buffer::read).collect();
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE {
        // The peer is gone, which is its to say.
        if sending.step(&mut send, WINDOW).is_err() {
            break;
        }
    }
    std::thread::sleep(A_WHILE.saturating_sub(begun.elapsed()));
    expect(rooms.iter().zip(&left).all(|(room, left)| room.read() == *left), || {
        "expected no buffer touched after close_recv returned, found one written".to_owned()
    })?;
    drop(send);
    expect(took < stage.patience() / 2, || format!("expected close_recv at once, found {took:.0?}"))?;
    pending_send(stage, &context)?;
    let mut after = stage.pair_between(&context, &context)?;
    stage.carry(&mut after, &[Message::new(9, 1000, 0)])?;
    Ok("three receives and a send were pending".to_owned())
}

/// A send that is pending when its comm closes: its bytes are the host's again.
fn pending_send(stage: &Stage, context: &crate::clauses::net::raw::Context) -> Outcome<()> {
    let Pair { mut send, mut recv } = stage.pair_between(context, context)?;
    let message = Buffer::message(4, 1 << 20);
    let mut pending = None;
    for _ in 0..10 {
        match &mut pending {
            None => pending = send.post(&message, 0)?,
            Some(request) => drop(send.test(request)?),
        }
    }
    let was_done = pending.as_ref().is_some_and(Pending::is_dead);
    drop(send);
    message.write(0, &vec![0; message.bytes()]);
    let room = Buffer::new(message.bytes());
    let mut request = None;
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE || was_done && begun.elapsed() < stage.patience() {
        let tested = match &mut request {
            None => recv.post(&[(room, 0)]).map(|posted| {
                request = posted;
                false
            }),
            Some(request) => recv.test(request),
        };
        match tested {
            Ok(true) => {
                return match room.objection(4, message.bytes()) {
                    None => Ok(()),
                    Some(words) => breach(format!(
                        "expected no byte read from a message's buffer after close_send, found what it held later: {words}"
                    )),
                };
            }
            Ok(false) => std::thread::yield_now(),
            // Nothing of it arrived, as it should if it was not reported sent.
            Err(_) if !was_done => return Ok(()),
            Err(failed) => {
                return breach(format!(
                    "expected a message that was reported sent to arrive, found {failed}"
                ));
            }
        }
    }
    Ok(())
}

pub(super) fn abort(stage: &Stage) -> Outcome<String> {
    if stage.table.entries.abort.is_none() {
        return skip("has no abort");
    }
    let (context, other) = (stage.context()?, stage.context()?);
    let mut bystander = stage.pair_between(&other, &other)?;
    let (_, mut listener) = context.listen(stage.device)?;
    let mut pair = stage.pair_between(&context, &context)?;
    let mut request = posted_receive(stage, &mut pair, Buffer::new(100))?;
    let Pair { mut send, mut recv } = pair;
    let failed = std::thread::scope(|scope| {
        let aborted = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            context.abort()
        });
        let failed = stage.wait_for_error("in test_recv after abort", || recv.test(&mut request).map(drop));
        match aborted.join() {
            Ok(outcome) => outcome.and(failed),
            Err(_) => breach("expected abort to return, found a panic"),
        }
    })?;
    let aborted = |failed: Option<Failed>, call: &str| match failed {
        Some(failed) => failed.expect_words()?.expect_code(Code::ABORTED, "after abort").map(drop),
        None => breach(format!("expected {} from {call} after abort, found success", Code::ABORTED)),
    };
    aborted(Some(failed), "test_recv")?;
    aborted(send.post(&Buffer::message(0, 100), 0).err(), "isend")?;
    aborted(recv.post(&[(Buffer::new(100), 0)]).err(), "irecv")?;
    aborted(listener.accept().err(), "accept")?;
    context.abort()?;
    stage.carry(&mut bystander, &[Message::new(1, 1000, 0)])?;
    Ok("from another thread, during test_recv; another context went on".to_owned())
}

/// A receive of tag 0 that is pending.
fn posted_receive(stage: &Stage, pair: &mut Pair, room: Buffer) -> Outcome<Pending> {
    let mut posted = None;
    stage.wait("room for a receive", || {
        posted = pair.recv.post(&[(room, 0)])?;
        Ok(posted.is_some())
    })?;
    posted.map_or_else(|| breach("expected a request"), Ok)
}

/// In which what must not happen is given every chance.
const A_WHILE: Duration = Duration::from_millis(150);
