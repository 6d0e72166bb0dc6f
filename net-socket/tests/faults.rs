//! Strangers, deaths, closing early, aborting: nothing blocks, nobody crashes, errors name the peer.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ccl_plugin_host::{Handle, NetError};
use common::*;

/// The address in a socket handle, as the wire format has it: what a port scanner would find.
fn address(handle: &Handle) -> SocketAddr {
    let port = u16::from_le_bytes([handle.0[28], handle.0[29]]);
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn strangers_do_not_keep_a_friend_out() {
    let context = context(linked(), &[("handshake_timeout_ms", "1500")]);
    let (handle, mut listener) = context.listen(0).unwrap();
    let dial = || TcpStream::connect(address(&handle)).unwrap();
    let silent = dial();
    let (mut noisy, mut trickling) = (dial(), dial());
    noisy.write_all(&pattern(1, 5000)).unwrap();
    trickling.write_all(b"ccl").unwrap();
    drop(dial());
    for _ in 0..3 {
        // Its poll never takes longer than its system calls.
        let start = Instant::now();
        assert!(listener.poll().unwrap().is_none());
        assert!(start.elapsed() < Duration::from_millis(1400));
    }
    let connecting = context.connect(0, handle).unwrap();
    let (mut send, mut recv) = join(connecting, || listener.poll());
    exchange(&mut send, &mut recv, &[Message { tag: 0, bytes: 9, room: 9 }], &[0], 1);
    // After their deadline all strangers are closed.
    thread::sleep(Duration::from_millis(1520));
    assert!(listener.poll().unwrap().is_none());
    for mut stranger in [silent, trickling, noisy] {
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(!matches!(stranger.read(&mut [0; 16]), Ok(1..)), "a stranger got an answer");
    }
}

#[test]
fn a_flood_of_strangers_is_bounded() {
    let context = context(linked(), &[]);
    let (handle, mut listener) = context.listen(0).unwrap();
    let flood: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address(&handle)).unwrap()).collect();
    let connecting = context.connect(0, handle).unwrap();
    join(connecting, || listener.poll());
    let closed = flood
        .iter()
        .filter(|stranger| {
            stranger.set_nonblocking(true).unwrap();
            matches!((&**stranger).read(&mut [0]), Ok(0))
        })
        .count();
    assert!(closed >= 300 - 128, "only {closed} of 300 strangers were dropped");
}

#[test]
fn a_wrong_key_is_refused() {
    let context = context(linked(), &[]);
    let (mut handle, mut listener) = context.listen(0).unwrap();
    handle.0[50] ^= 1;
    let mut connecting = context.connect(0, handle).unwrap();
    let error = wait("the refusal", || {
        assert!(listener.poll().unwrap().is_none());
        connecting.poll().err()
    });
    assert!(matches!(error, NetError::Remote(_)), "{error:?}");
    assert!(error.to_string().contains(&address(&handle).to_string()), "{error}");
}

#[test]
fn a_handle_of_something_else_is_a_usage_error() {
    let context = context(linked(), &[]);
    let error = context.connect(0, Handle([7; 128])).unwrap_err();
    assert!(matches!(error, NetError::Usage(_)), "{error:?}");
    assert!(matches!(context.connect(9, Handle([7; 128])), Err(NetError::NoDevice(_))));
}

#[test]
fn a_listener_that_is_gone_is_an_error_not_a_hang() {
    let context = context(linked(), &[]);
    let (handle, listener) = context.listen(0).unwrap();
    let mut early = context.connect(0, handle).unwrap();
    assert!(early.poll().unwrap().is_none());
    drop(listener);
    let error = wait("the end of the early one", || early.poll().err());
    assert_eq!(error.detail().peer, Some(address(&handle).to_string()), "{error:?}");
    let late = match context.connect(0, handle) {
        Ok(mut late) => wait("the end of the late one", || late.poll().err()),
        Err(error) => error,
    };
    assert!(matches!(late, NetError::Remote(_)), "{late:?}");
}

#[test]
fn who_accepts_late_is_waited_for() {
    let context = context(linked(), &[("connect_timeout_ms", "100")]);
    let (handle, mut listener) = context.listen(0).unwrap();
    let mut connecting = context.connect(0, handle).unwrap();
    // The system answers at once; that the peer looks at its listener takes longer than the limit.
    let late = Instant::now() + Duration::from_millis(400);
    while Instant::now() < late {
        assert!(connecting.poll().unwrap().is_none());
    }
    join(connecting, || listener.poll());
}

#[test]
fn nobody_answering_ends_at_the_deadline() {
    let context = context(linked(), &[("connect_timeout_ms", "300")]);
    let (mut handle, _listener) = context.listen(0).unwrap();
    // A listener that takes no more connections: the system drops what comes, as a firewall does.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let at = full.local_addr().unwrap().as_socket().unwrap();
    let _queued: Vec<_> =
        (0..4).map(|_| TcpStream::connect_timeout(&at, Duration::from_millis(50))).collect();
    handle.0[28..30].copy_from_slice(&at.port().to_le_bytes());
    let mut connecting = context.connect(0, handle).unwrap();
    let error = wait("the deadline", || connecting.poll().err());
    assert!(matches!(error, NetError::Timeout(_)), "{error:?}");
    assert!(error.to_string().contains("it did not answer at all in time"), "{error}");
}

#[test]
fn one_port_serves_several_listeners_and_each_several_connections() {
    let context = context(linked(), &[("sockets", "2")]);
    let mut listeners: Vec<_> = (0..3).map(|_| context.listen(0).unwrap()).collect();
    assert_eq!(address(&listeners[0].0), address(&listeners[2].0));
    let mut connecting: Vec<_> =
        (0..12).map(|i| Some(context.connect(0, listeners[i % 3].0).unwrap())).collect();
    let (mut sends, mut accepted) = (0, [0; 3]);
    wait("twelve connections", || {
        for slot in &mut connecting {
            if slot.as_mut().is_some_and(|c| c.poll().unwrap().is_some()) {
                *slot = None;
                sends += 1;
            }
        }
        for (count, (_, listener)) in accepted.iter_mut().zip(&mut listeners) {
            *count += usize::from(listener.poll().unwrap().is_some());
        }
        (sends == 12 && accepted == [4; 3]).then_some(())
    });
}

#[test]
fn ports_come_from_the_range() {
    let context = context(linked(), &[("port_range", "47000-47999")]);
    let (handle, _listener) = context.listen(0).unwrap();
    assert!((47000..48000).contains(&address(&handle).port()));
    let port = address(&handle).port().to_string();
    let other = common::context(linked(), &[("port_range", &port)]);
    let error = other.listen(0).unwrap_err();
    assert!(matches!(error, NetError::System(_)), "{error:?}");
    assert!(error.to_string().contains(&port) && error.detail().os_error.is_some(), "{error}");
}

#[test]
fn a_peer_that_closes_is_named() {
    for settings in [&[][..], &[("sockets", "3"), ("stripe_min_bytes", "100")]] {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let (source, mut rooms) = (pattern(3, 100_000), vec![0u8; 200_000]);
        let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut rooms));
        let base = rooms.as_mut_ptr();
        // SAFETY: both buffers outlive the comms.
        let (mut sent, mut whole, mut never) = unsafe {
            (
                send.send(source.as_ptr(), source.len(), 0, &mr).unwrap().unwrap(),
                recv.recv(base, 100_000, 0, &room_mr).unwrap().unwrap(),
                recv.recv(base.add(100_000), 100_000, 0, &room_mr).unwrap().unwrap(),
            )
        };
        wait("the send", || {
            recv.test(&mut never).unwrap();
            send.test(&mut sent).unwrap()
        });
        drop(send);
        // What was sent before the end arrives; what was not is an error that names the peer.
        assert_eq!(wait("the whole one", || recv.test(&mut whole).unwrap()), 100_000);
        assert!(rooms[..100_000] == source[..]);
        let error = wait("the end", || recv.test(&mut never).err());
        assert!(matches!(error, NetError::Remote(_)), "{error:?}");
        assert!(error.to_string().contains("peer 127.0.0.1:"), "{error}");
    }
}

#[test]
fn a_receiver_that_dies_is_told_to_the_sender() {
    let (mut send, recv) = pair(&context(linked(), &[]));
    let source = pattern(3, 1 << 20);
    let mr = register_send(&mut send, &source);
    drop(recv);
    let error = wait("the error", || {
        // SAFETY: `source` outlives the comm.
        match unsafe { send.send(source.as_ptr(), source.len(), 0, &mr) } {
            Ok(Some(mut request)) => send.test(&mut request).err(),
            Ok(None) => None,
            Err(error) => Some(error),
        }
    });
    assert!(matches!(error, NetError::Remote(_)), "{error:?}");
    assert!(error.detail().peer.is_some() && error.detail().os_error.is_some(), "{error:?}");
}

#[test]
fn closing_with_requests_pending_returns_at_once_and_touches_no_buffer_after() {
    let (mut send, mut recv) = pair(&context(linked(), &[]));
    let (source, mut room) = (pattern(0, 64 << 20), vec![0u8; 1 << 20]);
    let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut room));
    // SAFETY: the buffers outlive the comms, which are dropped first.
    let (mut sent, mut posted) = unsafe {
        (
            send.send(source.as_ptr(), source.len(), 0, &mr).unwrap().unwrap(),
            recv.recv(room.as_mut_ptr(), room.len(), 1, &room_mr).unwrap().unwrap(),
        )
    };
    assert!(send.test(&mut sent).unwrap().is_none());
    assert!(recv.test(&mut posted).unwrap().is_none());
    let start = Instant::now();
    drop((send, recv));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn abort_ends_everything_at_once() {
    let context = context(linked(), &[]);
    let (mut send, mut recv) = pair(&context);
    let mut room = vec![0u8; 8];
    let (mr, source) = (register_recv(&mut recv, &mut room), [0u8; 8]);
    let send_mr = register_send(&mut send, &source);
    let (handle, mut listener) = context.listen(0).unwrap();
    let mut connecting = context.connect(0, handle).unwrap();
    // SAFETY: the buffers outlive the comms' use of them.
    let mut posted = unsafe { recv.recv(room.as_mut_ptr(), 8, 0, &mr) }.unwrap().unwrap();
    let other = context.clone();
    thread::spawn(move || other.abort()).join().unwrap().unwrap();
    context.abort().unwrap();
    let is_aborted = |error| matches!(error, NetError::Aborted(_));
    assert!(recv.test(&mut posted).is_err_and(is_aborted));
    // SAFETY: as above.
    assert!(unsafe { send.send(source.as_ptr(), 8, 0, &send_mr) }.is_err_and(is_aborted));
    assert!(listener.poll().is_err_and(is_aborted));
    assert!(connecting.poll().is_err_and(is_aborted));
    assert!(context.listen(0).is_err_and(is_aborted));
}
