//! Edges over the network that is linked in, and wrappers over every path.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ccl::transport::{
    Checksum, Fabric, FaultRule, NetSettings, PathKind, Relay, SharedMemory, TraceEvent, TraceLog,
    TransportSettings, WaitSettings, Waiter,
};
use ccl::{Error, Fault, Rank, Result};
use ccl_plan::Channel;
use ccl_plugin_host::{Handle, LogFn, NetPlugin};
use support::{ThreadRelay, all_to_all, join, on_threads, on_threads_with, receive, send, settings};

/// Both paths that two threads can have.
fn paths() -> [TransportSettings; 2] {
    [settings(), TransportSettings { shared_memory: SharedMemory::Avoid, ..settings() }]
}

fn over_net() -> TransportSettings {
    TransportSettings { shared_memory: SharedMemory::Avoid, ..settings() }
}

/// Over a network whose connections serve one direction only.
fn over_one_way_net() -> TransportSettings {
    static PLUGIN: OnceLock<NetPlugin> = OnceLock::new();
    let plugin = PLUGIN.get_or_init(|| {
        let mut table = *ccl_net_socket::table();
        table.turn = None;
        NetPlugin::linked(Box::leak(Box::new(table))).unwrap()
    });
    assert!(!plugin.turns());
    TransportSettings { net: NetSettings { plugin: Some(*plugin), ..NetSettings::default() }, ..over_net() }
}

#[test]
fn all_pairs_exchange_odd_sizes_over_the_network() {
    for (slots, net) in [(1, over_net()), (2, over_one_way_net()), (2, over_net()), (8, over_net())] {
        let settings = TransportSettings { slots, channels: 2, ..net };
        on_threads(3, &settings, |me, mut fabric| {
            all_to_all(me, 3, &mut fabric, 2, 1, 26);
            let paths = (0..3).map(|peer| fabric.path(Rank(peer)).unwrap().kind);
            let net = paths.filter(|kind| *kind == PathKind::Net).count();
            assert_eq!(net, 2, "itself is reached through memory");
        });
    }
}

#[test]
fn an_edge_opens_though_the_one_back_is_not_used_yet() {
    for settings in [over_net(), over_one_way_net()] {
        for first in [Rank(0), Rank(1)] {
            on_threads(2, &settings, |me, mut fabric| {
                let peer = Rank(1 - me.0);
                let mut waiter = Waiter::new(fabric.wait().unwrap());
                for turn in 0..2 {
                    if (me == first) == (turn == 0) {
                        let edge = fabric.send_edge(peer, Channel(0), 0).unwrap();
                        send(&mut fabric, edge, &mut waiter, &[turn as u8; 33], turn).unwrap();
                        support::drain(&mut fabric, &mut waiter);
                    } else {
                        let edge = fabric.receive_edge(peer, Channel(0), 0).unwrap();
                        let received = receive(&mut fabric, edge, &mut waiter).unwrap();
                        assert_eq!(received, (vec![turn as u8; 33], turn));
                    }
                }
            });
        }
    }
}

/// With sleeps that are much longer than the test may take, it ends only because news wake whoever sleeps: what he
/// waits to receive, and room for what he sends.
#[test]
fn news_from_the_network_end_a_sleep() {
    const MESSAGES: u32 = 2000;
    let forever = Duration::from_secs(3600);
    let wait = WaitSettings {
        spin: Duration::ZERO,
        yielding: Duration::ZERO,
        alone: Duration::ZERO,
        first_sleep: forever,
        longest_sleep: forever,
    };
    for net in [over_net(), over_one_way_net()] {
        on_threads(2, &TransportSettings { wait, ..net }, |me, mut fabric| {
            let bell = fabric.bell().unwrap().clone();
            let mut waiter = Waiter::new(fabric.wait().unwrap());
            let (payload, mut arrived) = (vec![7; 4096], Vec::new());
            let (first, peer) = (me == Rank(0), Rank(1 - me.0));
            for sends in [first, !first] {
                if sends {
                    let edge = fabric.send_edge(peer, Channel(0), 0).unwrap();
                    for tag in 0..MESSAGES {
                        while !fabric.sender(edge).try_send(&payload, tag).unwrap() {
                            fabric.progress().unwrap();
                            waiter.pause(Some(&bell));
                        }
                        waiter.reset();
                    }
                    while !fabric.is_flushed() {
                        fabric.progress().unwrap();
                        waiter.pause(Some(&bell));
                    }
                } else {
                    let edge = fabric.receive_edge(peer, Channel(0), 0).unwrap();
                    // So that the sender meets a connection that is full.
                    std::thread::sleep(Duration::from_millis(50));
                    for tag in 0..MESSAGES {
                        arrived.clear();
                        let received = loop {
                            if let Some(tag) = fabric.receiver(edge).try_receive(&mut arrived).unwrap() {
                                break tag;
                            }
                            fabric.progress().unwrap();
                            waiter.pause(Some(&bell));
                        };
                        assert_eq!((received, &arrived), (tag, &payload));
                        waiter.reset();
                    }
                }
            }
        });
    }
}

#[test]
fn memory_and_network_mix_in_one_fabric() {
    let host = |me: Rank| TransportSettings { host: Some(format!("host {}", me.0 / 2)), ..settings() };
    on_threads_with(4, host, |me, mut fabric| {
        all_to_all(me, 4, &mut fabric, 1, 1, 13);
        for peer in (0..4).map(Rank) {
            let expected = if peer.0 / 2 == me.0 / 2 { PathKind::Loopback } else { PathKind::Net };
            assert_eq!(fabric.path(peer).unwrap().kind, expected);
        }
    });
}

#[test]
fn checksums_pass_whole_messages() {
    for path in paths() {
        let settings = TransportSettings { checksum: Checksum::Crc32, slots: 2, ..path };
        on_threads(2, &settings, |me, mut fabric| all_to_all(me, 2, &mut fabric, 1, 1, 26));
    }
}

/// Sends `messages` from rank 0 to rank 1; how each rank's part ended.
fn one_way(settings: &TransportSettings, messages: u32) -> Vec<Result<()>> {
    on_threads(2, settings, |me, mut fabric: Fabric| {
        let mut waiter = Waiter::new(fabric.wait().unwrap());
        let result = (0..messages).try_for_each(|message| {
            if me == Rank(0) {
                let edge = fabric.send_edge(Rank(1), Channel(0), 0)?;
                send(&mut fabric, edge, &mut waiter, &[9; 100], message)
            } else {
                let edge = fabric.receive_edge(Rank(0), Channel(0), 0)?;
                let (payload, tag) = receive(&mut fabric, edge, &mut waiter)?;
                assert_eq!(tag, message);
                match payload == [9; 100] {
                    true => Ok(()),
                    false => Err(Error::bug(format!("message {message} was damaged unnoticed"))),
                }
            }
        });
        if me == Rank(0) {
            support::drain(&mut fabric, &mut waiter);
            // The peer may still have to read.
            std::thread::sleep(Duration::from_millis(20));
        }
        result
    })
}

#[test]
fn a_flipped_bit_is_noticed_by_the_checksum_alone() {
    for path in paths() {
        for seed in 0..5 {
            let faults = FaultRule::parse(&format!("flip:from=0,to=1,after=3,seed={seed}")).unwrap();
            let settings = TransportSettings { faults, slots: 16, ..path.clone() };
            let damaged = one_way(&settings, 6).remove(1).unwrap_err();
            assert!(damaged.cause().contains("message 3 was damaged unnoticed"), "{damaged}");
            let settings = TransportSettings { checksum: Checksum::Crc32, ..settings };
            let noticed = one_way(&settings, 6).remove(1).unwrap_err();
            assert_eq!((noticed.fault(), noticed.peer()), (&Fault::Network, Some(Rank(0))));
            assert!(noticed.cause().contains("chunk 3 of the edge from rank 0 to rank 1"), "{noticed}");
        }
    }
}

#[test]
fn a_dropped_connection_is_an_error_at_both_ends() {
    for path in paths() {
        let faults = FaultRule::parse("drop:from=0,after=5").unwrap();
        for (rank, result) in one_way(&TransportSettings { faults, ..path }, 8).into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(error.cause().contains("after 5 messages"), "{error}");
            assert_eq!(error.peer(), Some(Rank(1 - rank as u32)));
        }
    }
}

#[test]
fn delays_keep_the_order_and_stalls_end_the_credits() {
    let faults = FaultRule::parse("delay:us=2000,jitter=1000,seed=3").unwrap();
    let start = Instant::now();
    let results = one_way(&TransportSettings { faults, ..settings() }, 10);
    assert!(results.iter().all(Result::is_ok) && start.elapsed() >= Duration::from_millis(20));
    let faults = FaultRule::parse("stall:after=2").unwrap();
    on_threads(1, &TransportSettings { faults, ..settings() }, |me, mut fabric| {
        let edge = fabric.send_edge(me, Channel(0), 0).unwrap();
        let sent = (0..5).filter(|_| fabric.sender(edge).try_send(&[1], 0).unwrap()).count();
        assert_eq!(sent, 2);
    });
}

#[test]
fn the_trace_has_every_message() {
    let log = Arc::new(TraceLog::new(3));
    let settings = TransportSettings { trace: Some(Arc::clone(&log)), ..settings() };
    on_threads(1, &settings, |me, mut fabric| {
        let out = fabric.send_edge(me, Channel(0), 0).unwrap();
        let back = fabric.receive_edge(me, Channel(0), 0).unwrap();
        for tag in 0..2 {
            fabric.sender(out).try_send(&[1; 5], tag).unwrap();
            fabric.receiver(back).try_receive(&mut Vec::new()).unwrap();
        }
    });
    let records = log.records();
    let seen: Vec<_> = records.iter().map(|record| (record.event, record.bytes, record.tag)).collect();
    // The first of four records made room.
    assert_eq!(
        seen,
        [(TraceEvent::Released, 5, 0), (TraceEvent::Posted, 5, 1), (TraceEvent::Released, 5, 1)]
    );
}

/// Lets a silent stranger connect before the sender learns the handle.
struct Betrayed {
    inner: Arc<dyn Relay>,
    intruders: AtomicUsize,
}

impl Betrayed {
    fn intrude(self: &Arc<Betrayed>, handle: &[u8]) {
        let betrayed = Arc::clone(self);
        let handle = Handle(handle.try_into().unwrap());
        let plugin = NetPlugin::linked(ccl_net_socket::table()).unwrap();
        let mut connecting = plugin.init(&[], LogFn::none()).unwrap().connect(0, handle).unwrap();
        // Connected and introduced before the handle goes on; accepted when the fabric looks.
        let until = Instant::now() + Duration::from_millis(20);
        let mut accepted = None;
        while Instant::now() < until && accepted.is_none() {
            accepted = connecting.poll().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::spawn(move || {
            let comm = loop {
                match accepted.take() {
                    Some(comm) => break comm,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
                accepted = connecting.poll().unwrap();
            };
            betrayed.intruders.fetch_add(1, Ordering::Relaxed);
            // Connected for as long as the test.
            std::mem::forget(comm);
        });
    }
}

/// The relay that a fabric is given.
struct Betraying(Arc<Betrayed>);

impl Relay for Betraying {
    fn send(&self, to: Rank, topic: u32, bytes: Vec<u8>) -> Result<()> {
        self.0.intrude(&bytes);
        self.0.inner.send(to, topic, bytes)
    }

    fn try_take(&self, from: Rank, topic: u32) -> Option<Vec<u8>> {
        self.0.inner.try_take(from, topic)
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Bytes>> {
        self.0.inner.all_gather(bytes)
    }
}

#[test]
fn a_stranger_at_the_port_does_not_take_the_edge() {
    betray(&over_one_way_net(), &[Rank(0), Rank(1)]);
    // One port is enough for both directions: that of the higher rank.
    betray(&over_net(), &[Rank(1)]);
}

/// Ranks exchange messages while strangers connect to those that listen.
fn betray(settings: &TransportSettings, listening: &[Rank]) {
    std::thread::scope(|scope| {
        for (rank, inner) in ThreadRelay::all(2).into_iter().enumerate() {
            scope.spawn(move || {
                let me = Rank(rank as u32);
                let betrayed = Arc::new(Betrayed { inner, intruders: AtomicUsize::new(0) });
                let relay: Arc<dyn Relay> = Arc::new(Betraying(Arc::clone(&betrayed)));
                let mut fabric = join(settings, &relay, me, 2).unwrap();
                all_to_all(me, 2, &mut fabric, 1, 1, 5);
                relay.all_gather(Vec::new()).unwrap();
                let until = Instant::now() + Duration::from_secs(10);
                while listening.contains(&me) && betrayed.intruders.load(Ordering::Relaxed) == 0 {
                    assert!(Instant::now() < until, "the stranger was never accepted");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
}

#[test]
fn a_rank_without_the_secret_is_turned_away() {
    turn_away(&over_one_way_net(), &[Rank(0), Rank(1)]);
    turn_away(&over_net(), &[Rank(0)]);
}

/// Ranks with different secrets never hear each other; those that connect are told.
fn turn_away(settings: &TransportSettings, connecting: &[Rank]) {
    let secret = |me: Rank| TransportSettings { secret: [me.0 as u8; 32], ..settings.clone() };
    on_threads_with(2, secret, |me, mut fabric| {
        let mut waiter = Waiter::new(fabric.wait().unwrap());
        let peer = Rank(1 - me.0);
        let (out, back) = (
            fabric.send_edge(peer, Channel(0), 0).unwrap(),
            fabric.receive_edge(peer, Channel(0), 0).unwrap(),
        );
        let until = Instant::now() + Duration::from_secs(10);
        while connecting.contains(&me) {
            let heard = fabric.receiver(back).peek();
            match fabric.sender(out).try_send(&[1; 1000], 0).and(heard) {
                Ok(slot) => assert!(slot.is_none()),
                Err(error) => {
                    assert_eq!(error.fault(), &Fault::Remote { rank: peer });
                    break;
                }
            }
            waiter.pause(None);
            assert!(Instant::now() < until, "the connection was never closed");
        }
        // The peer needs this end's listener to be turned away too.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            fabric.progress().ok();
            assert!(!matches!(fabric.receiver(back).peek(), Ok(Some(_))));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn aborting_ends_network_edges_with_aborted() {
    on_threads(2, &over_net(), |me, mut fabric| {
        all_to_all(me, 2, &mut fabric, 1, 1, 2);
        fabric.abort();
        let edge = fabric.receive_edge(Rank(1 - me.0), Channel(0), 0).unwrap();
        let error = fabric.receiver(edge).peek().unwrap_err();
        assert!(matches!(error.fault(), Fault::Aborted | Fault::Remote { .. }), "{error:?}");
    });
}

#[test]
fn slots_that_no_network_takes_are_a_usage_error() {
    let unknown =
        TransportSettings { net: NetSettings { device: Some(99), ..Default::default() }, ..over_net() };
    on_threads(2, &unknown, |me, mut fabric| {
        let error = fabric.send_edge(Rank(1 - me.0), Channel(0), 0).unwrap_err();
        assert!(error.cause().contains("99"), "{error}");
    });
}
