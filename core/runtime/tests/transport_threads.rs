//! Edges between ranks that are threads of one process.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::Duration;

use ccl::memory::Backing;
use ccl::transport::{PathKind, SharedMemory, TransportSettings, Waiter};
use ccl_plan::{Channel, Rank};
use support::{SIZES, all_to_all, on_threads, on_threads_with, receive, send, settings};

#[test]
fn all_pairs_exchange_odd_sizes_around_the_ring_of_slots() {
    for slots in [1, 2, 8] {
        let settings = TransportSettings { slots, channels: 2, tags: 2, ..settings() };
        on_threads(4, &settings, |me, mut fabric| {
            all_to_all(me, 4, &mut fabric, 2, 2, 3 * SIZES.len());
            assert!((0..4).all(|peer| fabric.path(Rank(peer)).unwrap().kind == PathKind::Loopback));
        });
    }
}

#[test]
fn one_rank_sends_to_itself() {
    for shared_memory in [SharedMemory::Use, SharedMemory::Avoid] {
        let settings = TransportSettings { shared_memory, ..settings() };
        on_threads(1, &settings, |me, mut fabric| all_to_all(me, 1, &mut fabric, 1, 1, 20));
    }
}

#[test]
fn many_ranks_on_few_cores() {
    on_threads(32, &settings(), |me, mut fabric| all_to_all(me, 32, &mut fabric, 1, 1, 3));
}

#[test]
fn an_unlinked_file_serves_as_memory() {
    let settings = TransportSettings { backing: Backing::UnlinkedFile, ..settings() };
    on_threads(2, &settings, |me, mut fabric| all_to_all(me, 2, &mut fabric, 1, 1, 20));
}

#[test]
fn a_million_small_messages_arrive_in_order() {
    // Many slots: where ranks share a core, each change of rank moves that many messages.
    let settings = TransportSettings { slots: 512, ..settings() };
    on_threads(2, &settings, |me, mut fabric| {
        let mut waiter = Waiter::new(fabric.wait().unwrap());
        for message in 0..1_000_000u64 {
            if me == Rank(0) {
                let edge = fabric.send_edge(Rank(1), Channel(0), 0).unwrap();
                send(&mut fabric, edge, &mut waiter, &message.to_le_bytes(), message as u32).unwrap();
            } else {
                let edge = fabric.receive_edge(Rank(0), Channel(0), 0).unwrap();
                let (payload, tag) = receive(&mut fabric, edge, &mut waiter).unwrap();
                assert_eq!((&payload[..], tag), (&message.to_le_bytes()[..], message as u32));
            }
        }
    });
}

#[test]
fn credits_end_and_come_back() {
    /// Longer than what lies beside a message's line.
    const LONG: usize = 8192;
    let settings = TransportSettings { slots: 2, slot_bytes: LONG, ..settings() };
    on_threads(1, &settings, |me, mut fabric| {
        let out = fabric.send_edge(me, Channel(0), 0).unwrap();
        let back = fabric.receive_edge(me, Channel(0), 0).unwrap();
        assert!(fabric.receiver(back).peek().unwrap().is_none());
        for round in 0..5 {
            for tag in [2 * round, 2 * round + 1] {
                let first = fabric.sender(out).acquire(LONG).unwrap();
                assert!(first.is_some());
                assert_eq!(first, fabric.sender(out).acquire(LONG).unwrap(), "the same until posted");
                fabric.sender(out).post(LONG, tag).unwrap();
            }
            assert!(fabric.sender(out).acquire(LONG).unwrap().is_none(), "no credit");
            for tag in [2 * round, 2 * round + 1] {
                assert_eq!(fabric.receiver(back).peek().unwrap().unwrap().tag, tag);
                assert_eq!(
                    fabric.receiver(back).peek().unwrap().unwrap().tag,
                    tag,
                    "the same until released"
                );
                fabric.receiver(back).release().unwrap();
            }
        }
    });
}

#[test]
fn a_short_post_of_a_long_slot_keeps_its_bytes() {
    on_threads(1, &settings(), |me, mut fabric| {
        let out = fabric.send_edge(me, Channel(0), 0).unwrap();
        let back = fabric.receive_edge(me, Channel(0), 0).unwrap();
        // Twice around the slots: the second time the payload area holds the first time's bytes.
        for _ in 0..fabric.slots() {
            fabric.sender(out).try_send(&[5; 1000], 0).unwrap();
            fabric.receiver(back).try_receive(&mut Vec::new()).unwrap();
        }
        fabric.sender(out).acquire(1000).unwrap();
        fabric.sender(out).post(3, 0).unwrap();
        let mut payload = Vec::new();
        fabric.receiver(back).try_receive(&mut payload).unwrap();
        assert_eq!(payload, [5, 5, 5]);
    });
}

#[test]
fn misuse_is_an_error() {
    on_threads(2, &settings(), |me, mut fabric| {
        let edge = fabric.send_edge(me, Channel(0), 0).unwrap();
        assert!(fabric.sender(edge).post(0, 0).is_err(), "nothing acquired");
        assert!(fabric.sender(edge).acquire(4097).is_err(), "more than a slot");
        fabric.sender(edge).acquire(8).unwrap();
        assert!(fabric.sender(edge).post(9, 0).is_err(), "more than acquired");
        for (peer, channel, tag) in [(2, 0, 0), (0, 1, 0), (0, 0, 1)] {
            assert!(fabric.send_edge(Rank(peer), Channel(channel), tag).is_err());
            assert!(fabric.receive_edge(Rank(peer), Channel(channel), tag).is_err());
        }
    });
}

#[test]
fn paths_say_why_memory_is_not_used() {
    let other = |me: Rank| match me.0 {
        0 => settings(),
        1 => TransportSettings { shared_memory: SharedMemory::Avoid, ..settings() },
        _ => TransportSettings { host: Some("elsewhere".into()), ..settings() },
    };
    let reasons = on_threads_with(3, other, |_, fabric| {
        (0..3).map(|peer| fabric.path(Rank(peer)).unwrap().to_string()).collect::<Vec<_>>()
    });
    assert!(reasons[0][1].contains("net") && reasons[0][1].contains("the peer shares no memory"));
    assert!(reasons[1][0].contains("this rank shares no memory: CCL_SHM_DISABLE"));
    assert!(reasons[0][2].contains("another host"));
    assert!(reasons[2][2].contains("loopback"));
}

#[test]
fn a_sleeper_is_woken_by_a_message() {
    on_threads(2, &settings(), |me, mut fabric| {
        let mut waiter = Waiter::new(fabric.wait().unwrap());
        let bell = fabric.bell().unwrap().clone();
        if me == Rank(0) {
            std::thread::sleep(Duration::from_millis(30));
            let edge = fabric.send_edge(Rank(1), Channel(0), 0).unwrap();
            send(&mut fabric, edge, &mut waiter, b"wake", 0).unwrap();
        } else {
            let edge = fabric.receive_edge(Rank(0), Channel(0), 0).unwrap();
            let heard = bell.arm();
            while fabric.receiver(edge).peek().unwrap().is_none() {
                let start = std::time::Instant::now();
                bell.sleep(heard, Duration::from_secs(10));
                assert!(start.elapsed() < Duration::from_secs(5), "not woken");
            }
            bell.disarm();
        }
    });
}
