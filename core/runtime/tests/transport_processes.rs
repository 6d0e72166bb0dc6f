//! Edges between ranks that are processes: this binary runs itself once for each rank.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl::Fault;
use ccl::transport::{Fabric, PathKind, Relay, SharedMemory, TransportInfo, TransportSettings, Waiter};
use ccl_plan::{Channel, Rank};
use support::{FileRelay, join, pattern, receive, send, settings};

/// Starts n ranks that run the named part of `rank_of_a_test`.
fn start(part: &str, n: u32, directory: &Path) -> Vec<Child> {
    let spawn = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_of_a_test", "--nocapture", "--test-threads=1"])
            .env("TRANSPORT_PART", part)
            .env("TRANSPORT_RANK", rank.to_string())
            .env("TRANSPORT_N", n.to_string())
            .env("TRANSPORT_DIRECTORY", directory)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    (0..n).map(spawn).collect()
}

fn finish(children: Vec<Child>) {
    for (rank, mut child) in children.into_iter().enumerate() {
        assert!(child.wait().unwrap().success(), "rank {rank} failed");
    }
}

/// The children's body; nothing in the parent.
#[test]
fn rank_of_a_test() {
    let Ok(part) = std::env::var("TRANSPORT_PART") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u32>().unwrap();
    let (me, n) = (Rank(number("TRANSPORT_RANK")), number("TRANSPORT_N"));
    let directory = std::env::var_os("TRANSPORT_DIRECTORY").unwrap().into();
    let relay: Arc<dyn Relay> = Arc::new(FileRelay::new(directory, me, n));
    match part.as_str() {
        "exchange" => exchange(me, n, &relay),
        "descriptors" => descriptors(me, n, &relay),
        "survive" => survive(me, n, &relay),
        "killed" => killed(me, n, &relay),
        other => panic!("no part {other}"),
    }
}

fn exchange(me: Rank, n: u32, relay: &Arc<dyn Relay>) {
    let settings = TransportSettings { slots: 2, ..settings() };
    let mut fabric = join(&settings, relay, me, n).unwrap();
    let mut waiter = Waiter::new(fabric.wait().unwrap());
    for (message, bytes) in [0, 1, 48, 49, 4096, 17, 1000].into_iter().cycle().take(50).enumerate() {
        for to in (0..n).map(Rank) {
            let edge = fabric.send_edge(to, Channel(0), 0).unwrap();
            send(&mut fabric, edge, &mut waiter, &pattern(me, to, message, bytes), message as u32).unwrap();
        }
        for from in (0..n).map(Rank) {
            let edge = fabric.receive_edge(from, Channel(0), 0).unwrap();
            let (payload, tag) = receive(&mut fabric, edge, &mut waiter).unwrap();
            assert_eq!((tag, payload), (message as u32, pattern(from, me, message, bytes)));
        }
    }
    for peer in (0..n).map(Rank).filter(|peer| *peer != me) {
        assert_eq!(fabric.path(peer).unwrap().kind, PathKind::Shm, "{}", fabric.path(peer).unwrap());
    }
    // Nobody leaves while a peer still reads.
    relay.all_gather(Vec::new()).unwrap();
}

fn descriptors(me: Rank, n: u32, relay: &Arc<dyn Relay>) {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:ccl").count();
    let before = open();
    let fabric = join(&settings(), relay, me, n).unwrap();
    assert_eq!(open(), before, "a connected fabric holds no descriptors");
    assert_eq!(maps(), n as usize);
    fabric.close();
    assert_eq!(maps(), 0);
}

/// Rank 1 is killed by itself; rank 0 must learn of it from the connection.
fn survive(me: Rank, n: u32, relay: &Arc<dyn Relay>) {
    let settings = TransportSettings { shared_memory: SharedMemory::Avoid, ..settings() };
    let mut fabric = join(&settings, relay, me, n).unwrap();
    let peer = Rank(1 - me.0);
    let (out, back) =
        (fabric.send_edge(peer, Channel(0), 0).unwrap(), fabric.receive_edge(peer, Channel(0), 0).unwrap());
    let mut waiter = Waiter::new(fabric.wait().unwrap());
    let started = Instant::now();
    let error = (0..).find_map(|message: u32| {
        if me == Rank(1) && message == 20 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        let sent = send(&mut fabric, out, &mut waiter, &[1; 100], message);
        sent.and_then(|()| receive(&mut fabric, back, &mut waiter)).err()
    });
    let error = error.unwrap();
    assert_eq!(error.fault(), &Fault::Remote { rank: peer }, "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

fn killed(me: Rank, n: u32, relay: &Arc<dyn Relay>) {
    let mut fabric: Fabric = join(&settings(), relay, me, n).unwrap();
    let peer = Rank(1 - me.0);
    let (out, back) =
        (fabric.send_edge(peer, Channel(0), 0).unwrap(), fabric.receive_edge(peer, Channel(0), 0).unwrap());
    let mut waiter = Waiter::new(fabric.wait().unwrap());
    loop {
        send(&mut fabric, out, &mut waiter, &[1; 100], 0).unwrap();
        receive(&mut fabric, back, &mut waiter).unwrap();
        relay.send(peer, 1, Vec::new()).unwrap();
    }
}

#[test]
fn processes_exchange_through_passed_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    finish(start("exchange", 4, directory.path()));
}

#[test]
fn no_descriptor_stays_open() {
    let directory = tempfile::tempdir().unwrap();
    finish(start("descriptors", 3, directory.path()));
}

#[test]
fn a_killed_peer_is_named_by_its_network_edges() {
    let directory = tempfile::tempdir().unwrap();
    let mut children = start("survive", 2, directory.path());
    assert!(!children.remove(1).wait().unwrap().success());
    assert!(children.remove(0).wait().unwrap().success());
}

#[test]
fn killed_ranks_leave_nothing_behind() {
    let names = || {
        let shm = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
        let mut names: Vec<_> = shm.collect();
        names.sort();
        names
    };
    let directory = tempfile::tempdir().unwrap();
    let before = names();
    let mut children = start("killed", 2, directory.path());
    let until = Instant::now() + Duration::from_secs(20);
    while !directory.path().join("mail-0-1-1-5").exists() {
        assert!(Instant::now() < until, "the ranks never exchanged anything");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(names(), before, "nothing in /dev/shm while running");
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(names(), before);
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    for rank in 0..2 {
        let info = std::fs::read(directory.path().join(format!("round-0-{rank}"))).unwrap();
        let info: TransportInfo = serde_json::from_slice(&info).unwrap();
        assert!(
            !sockets.contains(&info.seat.mailbox.unwrap().to_string()),
            "an abstract socket outlived its process"
        );
    }
}
