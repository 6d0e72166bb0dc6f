//! Connections that carry messages both ways: each direction is as good as a connection of its own.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use ccl_plugin_host::{NetContext, NetError, RecvComm, SendComm};
use common::*;
use proptest::prelude::*;

const SETTINGS: [&[(&str, &str)]; 2] = [&[], &[("sockets", "3"), ("stripe_min_bytes", "1000")]];

/// Both directions of a connection: who connected, then who accepted.
fn two_way(context: &NetContext) -> [(SendComm, RecvComm); 2] {
    let (mut send, mut recv) = pair(context);
    let (back, answer) = (send.turn().unwrap(), recv.turn().unwrap());
    [(send, back), (answer, recv)]
}

fn exact(sizes: &[usize]) -> Vec<Message> {
    sizes.iter().map(|bytes| Message { tag: 5, bytes: *bytes, room: *bytes }).collect()
}

fn carries(send: &mut SendComm, recv: &mut RecvComm, sizes: &[usize]) {
    exchange(send, recv, &exact(sizes), &(0..sizes.len()).collect::<Vec<_>>(), 4);
}

/// Both directions at once, from a thread each.
fn carry_both(ends: &mut [(SendComm, RecvComm); 2], there: &[Message], back: &[Message]) {
    let [(send, heard), (answer, recv)] = ends;
    let order = |messages: &[Message]| (0..messages.len()).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(send, recv, there, &order(there), 8));
        exchange(answer, heard, back, &order(back), 8);
    });
}

#[test]
fn both_directions_carry_at_once() {
    for settings in SETTINGS {
        let mut ends = two_way(&context(linked(), settings));
        let messages = exact(&[0, 1, 17, 4096, 32769, 131073, (1 << 20) + 3, 0, 5, 300_000, 8]);
        for _ in 0..3 {
            carry_both(&mut ends, &messages, &messages);
        }
    }
}

#[test]
fn a_connection_is_turned_once_at_each_end() {
    let context = context(linked(), &[]);
    let [(mut send, mut heard), (mut answer, mut recv)] = two_way(&context);
    for error in [send.turn().unwrap_err(), answer.turn().unwrap_err()] {
        assert!(matches!(error, NetError::Usage(_)), "{error:?}");
    }
    for error in [heard.turn().unwrap_err(), recv.turn().unwrap_err()] {
        assert!(matches!(error, NetError::Usage(_)), "{error:?}");
    }
    carries(&mut send, &mut recv, &[9]);
    carries(&mut answer, &mut heard, &[9]);
}

#[test]
fn it_may_be_turned_after_messages_and_at_one_end_only() {
    let context = context(linked(), &[]);
    let (mut send, mut recv) = pair(&context);
    carries(&mut send, &mut recv, &[100]);
    let mut answer = recv.turn().unwrap();
    carries(&mut send, &mut recv, &[200_000]);
    let mut heard = send.turn().unwrap();
    carries(&mut answer, &mut heard, &[70_000]);
    let (mut send, mut recv) = pair(&context);
    let unused = send.turn().unwrap();
    carries(&mut send, &mut recv, &[33]);
    drop(unused);
    carries(&mut send, &mut recv, &[34]);
}

#[test]
fn a_sender_that_closes_ends_its_direction_alone() {
    for settings in SETTINGS {
        let [(mut send, mut heard), (mut answer, mut recv)] = two_way(&context(linked(), settings));
        let (source, mut room) = (pattern(1, 50_000), vec![0u8; 50_000]);
        let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut room));
        // SAFETY: the buffers outlive the comms.
        let mut sent = unsafe { send.send(source.as_ptr(), 50_000, 0, &mr) }.unwrap().unwrap();
        wait("the send", || send.test(&mut sent).unwrap());
        drop(send);
        // SAFETY: as above.
        let mut post = || unsafe { recv.recv(room.as_mut_ptr(), 50_000, 0, &room_mr) }.unwrap().unwrap();
        let (mut whole, mut never) = (post(), post());
        assert_eq!(wait("what was sent", || recv.test(&mut whole).unwrap()), 50_000);
        let error = wait("the end", || recv.test(&mut never).err());
        assert!(matches!(error, NetError::Remote(_)), "{error:?}");
        assert!(error.to_string().contains("peer 127.0.0.1:"), "{error}");
        carries(&mut answer, &mut heard, &[10, 100_000]);
        drop(recv);
        carries(&mut answer, &mut heard, &[11]);
        // Nobody is left to hear what is sent now.
        drop(heard);
        assert_broken(&mut answer);
    }
}

#[test]
fn a_receiver_that_closes_ends_its_direction_alone() {
    let [(mut send, mut heard), (mut answer, recv)] = two_way(&context(linked(), &[]));
    drop(recv);
    carries(&mut answer, &mut heard, &[10, 100_000]);
    drop(answer);
    assert_broken(&mut send);
    drop((send, heard));
}

#[test]
fn a_direction_that_is_held_up_holds_up_nothing_else() {
    let [(mut send, mut heard), (mut answer, mut recv)] = two_way(&context(linked(), &[]));
    let (source, mut room) = (pattern(7, 64 << 20), vec![0u8; 64 << 20]);
    let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut room));
    // SAFETY: the buffers outlive the comms.
    let mut sent = unsafe { send.send(source.as_ptr(), source.len(), 0, &mr) }.unwrap().unwrap();
    carries(&mut answer, &mut heard, &[1, 2_000_000, 3]);
    assert!(send.test(&mut sent).unwrap().is_none());
    // SAFETY: as above.
    let mut posted = unsafe { recv.recv(room.as_mut_ptr(), room.len(), 0, &room_mr) }.unwrap().unwrap();
    let arrived = wait("the long one", || {
        send.test(&mut sent).ok();
        recv.test(&mut posted).unwrap()
    });
    assert!(arrived == source.len() && room == source);
}

#[test]
fn abort_ends_both_directions() {
    let context = context(linked(), &[]);
    let [(mut send, mut heard), _peer] = two_way(&context);
    let (source, mut room) = ([0u8; 8], [0u8; 8]);
    let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut heard, &mut room));
    context.abort().unwrap();
    let is_aborted = |error| matches!(error, NetError::Aborted(_));
    // SAFETY: the buffers outlive the comms' use of them.
    unsafe {
        assert!(send.send(source.as_ptr(), 8, 0, &mr).is_err_and(is_aborted));
        assert!(heard.recv(room.as_mut_ptr(), 8, 0, &room_mr).is_err_and(is_aborted));
    }
}

/// Sends end in an error that names the peer.
fn assert_broken(send: &mut SendComm) {
    let source = pattern(3, 1 << 20);
    let mr = register_send(send, &source);
    let start = Instant::now();
    let error = wait("the error", || {
        // SAFETY: `source` outlives the request, which ends with this error.
        match unsafe { send.send(source.as_ptr(), source.len(), 0, &mr) } {
            Ok(Some(mut request)) => send.test(&mut request).err(),
            Ok(None) => None,
            Err(error) => Some(error),
        }
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(matches!(error, NetError::Remote(_)) && error.detail().peer.is_some(), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn random_traffic_arrives_both_ways(
        there in proptest::collection::vec((0usize..70_000, 0usize..40_000), 1..40),
        back in proptest::collection::vec((0usize..70_000, 0usize..40_000), 1..40),
        lanes in 1usize..4,
    ) {
        let lanes = lanes.to_string();
        let settings = [("sockets", lanes.as_str()), ("stripe_min_bytes", "5000")];
        let mut ends = two_way(&context(linked(), &settings));
        let messages = |sizes: &[(usize, usize)]| -> Vec<Message> {
            sizes.iter().map(|(bytes, spare)| Message { tag: 1, bytes: *bytes, room: bytes + spare }).collect()
        };
        carry_both(&mut ends, &messages(&there), &messages(&back));
    }
}
