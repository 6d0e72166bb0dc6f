//! Joining over real sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;

use super::*;
use crate::error::Fault;

fn settings(deadline_ms: u64) -> BootstrapSettings {
    BootstrapSettings {
        deadline: Duration::from_millis(deadline_ms),
        bind: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ..BootstrapSettings::default()
    }
}

/// Ranks `present` of `n` join as threads.
fn join_all(
    id: &UniqueId,
    present: &[u32],
    n: u32,
    settings: &BootstrapSettings,
) -> Vec<Result<(Control, Vec<Bytes>)>> {
    thread::scope(|scope| {
        let one = |rank: &u32| {
            let rank = *rank;
            scope.spawn(move || join(id, Rank(rank), n, format!("info {rank}").into_bytes(), settings))
        };
        let threads: Vec<_> = present.iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_get_all_infos() {
    for n in [2, 3, 8, 64] {
        let settings = settings(30_000);
        let (id, root) = Root::start(&settings).unwrap();
        let started = Instant::now();
        let controls = join_all(&id, &(0..n).collect::<Vec<_>>(), n, &settings);
        let took = started.elapsed();
        let expected: Vec<_> = (0..n).map(|rank| format!("info {rank}").into_bytes()).collect();
        for joined in controls {
            assert_eq!(joined.unwrap().1, expected);
        }
        assert!(took < SECONDS, "{n} ranks took {took:?}");
        until(|| root.is_over());
    }
}

/// More would keep the processors from other tests, which have deadlines; `tests/scale` has a thousand.
#[test]
fn hundreds_of_ranks() {
    let settings = settings(60_000);
    let (id, _root) = Root::start(&settings).unwrap();
    let started = Instant::now();
    let controls = join_all(&id, &(0..256).collect::<Vec<_>>(), 256, &settings);
    println!("256 ranks joined in {:?}", started.elapsed());
    assert!(controls.iter().all(Result::is_ok));
}

#[test]
fn a_missing_rank_is_named() {
    let settings = settings(1500);
    let (id, _root) = Root::start(&settings).unwrap();
    let started = Instant::now();
    for result in join_all(&id, &[0, 1, 3], 4, &settings) {
        let error = result.unwrap_err();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) });
        let text = error.cause();
        assert!(
            text.starts_with(
                "3 of 4 ranks joined within 1.5 s; missing: rank 2; present: rank 0 at 127.0.0.1:"
            ),
            "{text}"
        );
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    }
    assert!(started.elapsed() < SECONDS);
    let late = join(&id, Rank(2), 4, Vec::new(), &settings).unwrap_err();
    assert!(late.cause().contains("before this rank came: 3 of 4 ranks joined"), "{late}");
}

#[test]
fn a_failing_rank_fails_all_with_its_reason() {
    let settings = settings(30_000);
    let (id, root) = Root::start(&settings).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn({
                    let (id, settings) = (&id, &settings);
                    move || join(id, Rank(rank), 3, Vec::new(), settings).unwrap_err()
                })
            })
            .collect();
        fail(&id, Rank(2), 3, "out of memory", &settings).unwrap();
        for rank in ranks {
            let error = rank.join().unwrap();
            assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) });
            assert!(
                error.cause().contains("rank 2 at 127.0.0.1:") && error.cause().contains("out of memory"),
                "{error}"
            );
        }
    });
    until(|| root.is_over());
}

#[test]
fn another_secret_is_refused() {
    let settings = settings(30_000);
    let (id, root) = Root::start(&settings).unwrap();
    let other = UniqueId::new(id.addresses().to_vec()).unwrap();
    let error = join(&other, Rank(1), 2, Vec::new(), &settings).unwrap_err();
    assert_eq!(error.fault(), &Fault::Usage);
    assert!(error.cause().contains("did not accept the secret of rank 1"), "{error}");
    assert!(join_all(&id, &[0, 1], 2, &settings).iter().all(Result::is_ok));
    until(|| root.is_over());
}

#[test]
fn strangers_neither_delay_nor_end_joining() {
    let settings =
        BootstrapSettings { strangers: 8, stranger_deadline: Duration::from_secs(2), ..settings(30_000) };
    let (id, root) = Root::start(&settings).unwrap();
    let address = id.addresses()[0];
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for seed in 0..20_u8 {
        let mut noisy = TcpStream::connect(address).unwrap();
        let noise: Vec<u8> =
            (0..4000_u32).map(|at| (at.wrapping_mul(2654435761) >> 9) as u8 ^ seed).collect();
        let _ = noisy.write_all(&noise);
    }
    let started = Instant::now();
    let joined = join_all(&id, &[0, 1, 2], 3, &settings);
    assert!(joined.iter().all(Result::is_ok));
    assert!(started.elapsed() < SECONDS);
    // Every stranger is let go, also those that never say a word.
    for mut stream in silent {
        stream.set_read_timeout(Some(SECONDS)).unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
    }
    drop(joined);
    until(|| root.is_over());
}

#[test]
fn ranks_may_come_before_the_root() {
    let settings = settings(30_000);
    let address = tcp::listen(&settings).unwrap().local_addr().unwrap();
    let id = UniqueId::agreed(vec![address], "sesame");
    thread::scope(|scope| {
        let ranks = scope.spawn(|| join_all(&id, &[0, 1], 2, &settings));
        thread::sleep(Duration::from_millis(100));
        let root = Root::start_for(&id, &settings).unwrap();
        assert!(ranks.join().unwrap().iter().all(Result::is_ok));
        until(|| root.is_over());
    });
}

#[test]
fn an_absent_root_is_named_with_the_reason() {
    let settings = settings(200);
    let address = tcp::listen(&settings).unwrap().local_addr().unwrap();
    let id = UniqueId::new(vec![address]).unwrap();
    let error = join(&id, Rank(1), 2, Vec::new(), &settings).unwrap_err();
    assert!(error.cause().contains(&address.to_string()) && error.cause().contains("refused"), "{error}");
}

#[test]
fn disagreement_names_both_sides() {
    let settings = settings(30_000);
    let (id, _root) = Root::start(&settings).unwrap();
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| join(&id, Rank(0), 4, Vec::new(), &settings).unwrap_err());
        thread::sleep(Duration::from_millis(50));
        let second = join(&id, Rank(1), 5, Vec::new(), &settings).unwrap_err();
        (first.join().unwrap(), second)
    });
    for error in [first, second] {
        let text = error.cause();
        assert!(
            text.contains("rank 0 at")
                && text.contains("says n = 4")
                && text.contains("rank 1 at")
                && text.contains("says n = 5"),
            "{text}"
        );
    }
}

#[test]
fn the_port_range_and_address_are_kept() {
    let free = tcp::listen(&settings(100)).unwrap().local_addr().unwrap().port();
    let settings = BootstrapSettings { port_range: Some(free..=free), ..settings(100) };
    let (id, root) = Root::start(&settings).unwrap();
    assert_eq!(id.addresses(), [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free)]);
    let error = Root::start(&settings).unwrap_err();
    assert!(error.to_string().contains(&free.to_string()), "{error}");
    root.stop();
    until(|| root.is_over());
}

#[test]
fn endless_times_are_survived() {
    let endless = Duration::MAX;
    let settings = BootstrapSettings {
        deadline: endless,
        round_deadline: Some(endless),
        heartbeat: endless,
        link_timeout: endless,
        stranger_deadline: endless,
        expiry: endless,
        ..settings(0)
    };
    let (id, root) = Root::start(&settings).unwrap();
    let joined = join_all(&id, &[0, 1], 2, &settings);
    thread::scope(|scope| {
        for (control, _) in joined.iter().flatten() {
            scope.spawn(|| control.barrier().unwrap());
        }
    });
    drop(joined);
    until(|| root.is_over());
}

#[test]
fn an_unused_root_expires() {
    let settings = BootstrapSettings { expiry: Duration::from_millis(30), ..settings(100) };
    let (_, root) = Root::start(&settings).unwrap();
    until(|| root.is_over());
}

#[test]
fn one_rank_needs_nothing() {
    let id = UniqueId::new(Vec::new()).unwrap();
    let (control, infos) = join(&id, Rank(0), 1, b"me".to_vec(), &settings(100)).unwrap();
    assert_eq!(infos, ["me"]);
    assert_eq!(control.all_gather(b"again".to_vec()).unwrap(), ["again"]);
    control.send(Rank(0), 5, b"mail".to_vec()).unwrap();
    assert_eq!(control.try_take(Rank(0), 5).unwrap(), b"mail");
    assert!(join(&id, Rank(3), 3, Vec::new(), &settings(100)).is_err());
}

/// Waits for `done`.
fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < SECONDS, "waited for {SECONDS:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Far longer than what needs no waiting takes, far shorter than the deadlines: on a busy machine a thread may
/// get no turn for a second.
const SECONDS: Duration = Duration::from_secs(8);
