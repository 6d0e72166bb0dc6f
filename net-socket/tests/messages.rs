//! The clauses of the contract about messages, over the linked table.

mod common;

use ccl_plugin_host::{NetError, RecvBuffer};
use common::*;
use proptest::prelude::*;

const SETTINGS: [&[(&str, &str)]; 3] = [
    &[],
    &[("sockets", "3"), ("stripe_min_bytes", "1000")],
    &[("send_buffer_bytes", "262144"), ("recv_buffer_bytes", "262144")],
];

fn exact(sizes: &[usize]) -> Vec<Message> {
    sizes.iter().map(|bytes| Message { tag: 5, bytes: *bytes, room: *bytes }).collect()
}

fn in_order(messages: &[Message]) -> Vec<usize> {
    (0..messages.len()).collect()
}

#[test]
fn odd_sizes_arrive_whole_and_in_order() {
    let sizes = [
        0,
        1,
        3,
        8,
        15,
        16,
        17,
        511,
        513,
        4095,
        4096,
        4097,
        32767,
        32768,
        32769,
        65537,
        131072,
        131073,
        262145,
        1 << 20,
        (1 << 20) + 3,
        0,
        1,
    ];
    for settings in SETTINGS {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let messages = exact(&sizes);
        for window in [1, 8] {
            exchange(&mut send, &mut recv, &messages, &in_order(&messages), window);
        }
    }
}

#[test]
fn many_small_messages_in_flight() {
    let (mut send, mut recv) = pair(&context(linked(), &[]));
    let messages = exact(&(0..3000).map(|i| i % 97).collect::<Vec<_>>());
    exchange(&mut send, &mut recv, &messages, &in_order(&messages), 200);
}

#[test]
fn messages_shorter_than_their_room_arrive_with_their_size() {
    for settings in SETTINGS {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let messages: Vec<Message> = (0..400)
            .map(|i| Message { tag: 0, bytes: (i * 37) % 2000, room: 2000 + (i % 5) * 40_000 })
            .collect();
        exchange(&mut send, &mut recv, &messages, &in_order(&messages), 16);
    }
}

#[test]
fn tags_match_in_any_order() {
    for settings in SETTINGS {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let messages: Vec<Message> =
            (0..64).map(|i| Message { tag: i % 8, bytes: 100 + 700 * i as usize, room: 50_000 }).collect();
        // Within a tag in order, as the contract asks; across tags reversed in each eight.
        let posted: Vec<usize> = (0..64).map(|i| i / 8 * 8 + 7 - i % 8).collect();
        exchange(&mut send, &mut recv, &messages, &posted, 8);
    }
}

#[test]
fn a_message_may_wait_for_the_next_but_not_longer() {
    for settings in SETTINGS {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let (source, mut room) = (pattern(4, 100_000), vec![0u8; 100_000]);
        let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut room));
        for (head, follows) in [(16, true), (16, false), (60_000, true), (0, true), (60_000, false)] {
            room.fill(0);
            // SAFETY: the buffers outlive the comms; what is posted is waited for.
            let (mut first, mut rest) = unsafe {
                (
                    recv.recv(room.as_mut_ptr(), head, 0, &room_mr).unwrap().unwrap(),
                    recv.recv(room.as_mut_ptr().add(head), 100_000 - head, 1, &room_mr).unwrap().unwrap(),
                )
            };
            // SAFETY: as above.
            let mut held = unsafe { send.send_more(source.as_ptr(), head, 0, &mr) }.unwrap().unwrap();
            if !follows {
                assert_eq!(wait("the held one alone", || send.test(&mut held).unwrap()), head);
            }
            // SAFETY: as above.
            let next = unsafe { send.send(source.as_ptr().add(head), 100_000 - head, 1, &mr) };
            let mut next = next.unwrap().unwrap();
            assert_eq!(wait("the first", || recv.test(&mut first).unwrap()), head);
            let arrived = wait("the rest", || {
                send.test(&mut next).ok();
                recv.test(&mut rest).unwrap()
            });
            assert!(arrived == 100_000 - head && room == source);
            if follows {
                assert_eq!(wait("its request", || send.test(&mut held).unwrap()), head);
            }
        }
    }
}

#[test]
fn what_is_elsewhere_need_not_stay_there() {
    for settings in SETTINGS {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let shapes: Vec<(usize, usize)> =
            [(2, 1), (300, 24), (900, 0), (5000, 24), (40_000, 100), (3 << 20, 24), (70_000, 69_999)].into();
        let (mut declined, mut whole_in_kernel) = (0, 0);
        for (seed, (bytes, head)) in (0..).zip(shapes) {
            let (source, mut room) = (pattern(seed, bytes), vec![0u8; bytes]);
            let mut message = source[..head].to_vec();
            message.resize(bytes, 0xaa);
            let (mr, room_mr) = (register_send(&mut send, &message), register_recv(&mut recv, &mut room));
            let mut rest = source[head..].to_vec();
            let place = (message.as_mut_ptr(), bytes, 0);
            // SAFETY: the buffers outlive the requests, which are waited for.
            let sent = unsafe { send.send_from(place, &mr, (head, rest.as_ptr())) }.unwrap();
            let mut sent = match sent {
                Some(sent) => sent,
                None => {
                    declined += 1;
                    assert!(message[head..].iter().all(|byte| *byte == 0xaa), "nothing is written");
                    message[head..].copy_from_slice(&rest);
                    // SAFETY: as above.
                    unsafe { send.send(message.as_ptr(), bytes, 0, &mr) }.unwrap().unwrap()
                }
            };
            whole_in_kernel += usize::from(message[head..].iter().all(|byte| *byte == 0xaa));
            rest.fill(0);
            // SAFETY: as above.
            let mut arriving = unsafe { recv.recv(room.as_mut_ptr(), bytes, 0, &room_mr) }.unwrap().unwrap();
            let arrived = wait("the message", || {
                send.test(&mut sent).ok();
                recv.test(&mut arriving).unwrap()
            });
            assert!(arrived == bytes && room == source, "{bytes} bytes behind a head of {head}");
        }
        // Messages that are shared out among sockets are sent from where they belong.
        assert_eq!(declined > 0, settings.iter().any(|(key, _)| *key == "sockets"), "{settings:?}");
        assert!(whole_in_kernel >= 3, "short ones are not copied");
    }
}

#[test]
fn a_group_is_one_request() {
    let (mut send, mut recv) = pair(&context(linked(), &[]));
    let sources: Vec<Vec<u8>> = (0..3).map(|i| pattern(i, 10 + i)).collect();
    let mut rooms = [[0u8; 64]; 3];
    let whole = rooms.as_flattened_mut();
    let mr = register_recv(&mut recv, whole);
    let base = whole.as_mut_ptr();
    let buffers: Vec<RecvBuffer<'_>> = (0..3)
        .map(|i| RecvBuffer { data: base.wrapping_add(64 * i), bytes: 64, tag: i as u32, mr: &mr })
        .collect();
    // SAFETY: `rooms` outlives the request.
    let mut request = unsafe { recv.recv_group(&buffers) }.unwrap().unwrap();
    for tag in [2u32, 0, 1] {
        let source = &sources[tag as usize];
        let mr = register_send(&mut send, source);
        // SAFETY: `sources` outlives the request.
        let mut sent = unsafe { send.send(source.as_ptr(), source.len(), tag, &mr) }.unwrap().unwrap();
        wait("a send", || send.test(&mut sent).unwrap());
    }
    let mut sizes = [0; 3];
    wait("the group", || recv.test_group(&mut request, &mut sizes).unwrap().then_some(()));
    assert_eq!(sizes, [10, 11, 12]);
    for (room, source) in rooms.iter().zip(&sources) {
        assert_eq!(&room[..source.len()], source);
    }
}

#[test]
fn a_message_longer_than_its_room_is_an_error_with_both_sizes() {
    let (mut send, mut recv) = pair(&context(linked(), &[]));
    let (source, mut room) = (pattern(0, 4096), vec![0u8; 1024]);
    let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut room));
    // SAFETY: both buffers outlive the comms' use of them.
    let (_sent, mut posted) = unsafe {
        let posted = recv.recv(room.as_mut_ptr(), 1024, 7, &room_mr).unwrap().unwrap();
        (send.send(source.as_ptr(), 4096, 7, &mr).unwrap().unwrap(), posted)
    };
    let error = wait("the error", || recv.test(&mut posted).err());
    let text = error.to_string();
    assert!(matches!(error, NetError::TooLong(_)), "{error:?}");
    assert!(text.contains("4096") && text.contains("1024") && text.contains("tag 7"), "{text}");
    assert!(text.contains("127.0.0.1"), "{text}");
}

#[test]
fn requests_and_registrations_of_others_are_refused() {
    let context = context(linked(), &[]);
    let ((mut a, _ra), (mut b, _rb)) = (pair(&context), pair(&context));
    let bytes = pattern(0, 64);
    let mr = register_send(&mut a, &bytes);
    // SAFETY: `bytes` outlives both comms.
    unsafe {
        let mut request = a.send(bytes.as_ptr(), 64, 0, &mr).unwrap().unwrap();
        assert!(matches!(b.test(&mut request), Err(NetError::Usage(_))));
        assert!(matches!(b.send(bytes.as_ptr(), 64, 0, &mr), Err(NetError::Usage(_))));
        assert!(matches!(a.send(bytes.as_ptr(), 65, 0, &mr), Err(NetError::Usage(_))));
        assert!(matches!(a.send(bytes.as_ptr().wrapping_sub(1), 1, 0, &mr), Err(NetError::Usage(_))));
        wait("the send", || a.test(&mut request).unwrap());
        assert!(matches!(a.test(&mut request), Err(NetError::Usage(_))));
    }
    a.deregister(mr).unwrap();
}

/// The descriptors that a comm waits for, if it tells.
fn watched(watch: impl FnOnce(&mut dyn FnMut(i32, i16)) -> Result<bool, NetError>) -> Vec<(i32, i16)> {
    let mut found = Vec::new();
    let tells = watch(&mut |descriptor, events| found.push((descriptor, events)));
    assert_eq!(tells.ok(), Some(!found.is_empty()));
    found
}

/// Whether one of these is ready within so many milliseconds.
fn ready(watched: &[(i32, i16)], at_most_ms: i32) -> bool {
    let one = |(fd, events): &(i32, i16)| libc::pollfd { fd: *fd, events: *events, revents: 0 };
    let mut all: Vec<libc::pollfd> = watched.iter().map(one).collect();
    // SAFETY: an array of its length.
    unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, at_most_ms) > 0 }
}

#[test]
fn what_is_pending_says_where_news_of_it_come_from() {
    for settings in [&[][..], &[("sockets", "3"), ("stripe_min_bytes", "1000")]] {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        assert!(linked().is_watchable());
        assert!(watched(|at| recv.watch(at)).is_empty() && watched(|at| send.watch(at)).is_empty());
        let mut bytes = vec![0; 8 << 20];
        let (from, into) = (register_send(&mut send, &bytes), register_recv(&mut recv, &mut bytes));
        // A receive waits for its header.
        // SAFETY: memory that outlives the requests, which nobody else uses.
        let mut request = unsafe { recv.recv(bytes.as_mut_ptr(), 100, 0, &into) }.unwrap().unwrap();
        assert_eq!(recv.test(&mut request).unwrap(), None);
        let header = watched(|at| recv.watch(at));
        assert_eq!((header.len(), ready(&header, 0)), (1, false));
        // SAFETY: as above.
        let mut sent =
            unsafe { send.send(bytes.as_ptr().wrapping_add(1 << 20), 100, 0, &from) }.unwrap().unwrap();
        assert!(ready(&header, 10_000));
        wait("the message", || recv.test(&mut request).unwrap());
        wait("the send", || send.test(&mut sent).unwrap());
        assert!(watched(|at| recv.watch(at)).is_empty() && watched(|at| send.watch(at)).is_empty());
        // A send waits for room on each socket that is full, a receive for the rest of each share.
        let (mut full, mut pending) = (Vec::new(), Vec::new());
        while full.is_empty() {
            // SAFETY: as above.
            pending.push(unsafe { send.send(bytes.as_ptr(), 1 << 20, 0, &from) }.unwrap().unwrap());
            full = watched(|at| send.watch(at));
        }
        assert!(!ready(&full, 0) && full.iter().all(|(_, events)| *events == libc::POLLOUT));
        let rest = bytes.as_mut_ptr().wrapping_add(4 << 20);
        for _ in 0..pending.len() {
            // SAFETY: as above.
            let mut request = unsafe { recv.recv(rest, 1 << 20, 0, &into) }.unwrap().unwrap();
            wait("a long message", || {
                pending.retain_mut(|sent| send.test(sent).unwrap().is_none());
                recv.test(&mut request).unwrap()
            });
        }
        assert!(ready(&full, 10_000));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_traffic_arrives(
        sizes in proptest::collection::vec((0u32..4, 0usize..70_000, 0usize..40_000), 1..60),
        lanes in 1usize..5,
        window in 1usize..20,
        buffers in prop_oneof![Just("0"), Just("131072")],
    ) {
        let lanes = lanes.to_string();
        let settings = [("sockets", lanes.as_str()), ("stripe_min_bytes", "5000"),
            ("recv_buffer_bytes", buffers), ("send_buffer_bytes", buffers)];
        let (mut send, mut recv) = pair(&context(linked(), &settings));
        let messages: Vec<Message> = sizes
            .iter()
            .map(|(tag, bytes, spare)| Message { tag: *tag, bytes: *bytes, room: bytes + spare })
            .collect();
        exchange(&mut send, &mut recv, &messages, &in_order(&messages), window);
    }
}
