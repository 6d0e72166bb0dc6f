//! Whoever else connects to the root's port neither delays nor breaks an init.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ccl::{Communicator, Config, Rank, UniqueId};
use ccl_tests::Stolen;

use crate::pool::{self, Worker};

#[test]
fn strangers_neither_delay_nor_break_an_init() {
    let seconds = std::env::var("CCL_STRANGERS_S").map_or(5, |value| value.parse().unwrap());
    let target = Target::default();
    let [in_band, out_of_band, _] = pool::bands();
    let mut sets: [Vec<Worker>; 2] =
        [in_band, out_of_band].map(|settings| (0..4).map(|_| Worker::start_with(&settings)).collect());
    std::thread::scope(|scope| {
        let _over = Over(&target.over);
        for stranger in [random_bytes, half_open, slow, wrong_secret] {
            let target = &target;
            scope.spawn(move || stranger(target));
        }
        let (started, mut inits) = (Instant::now(), 0);
        while started.elapsed() < Duration::from_secs(seconds) {
            init(&mut sets[inits % 2], &target);
            inits += 1;
        }
        println!("{inits} inits among {} strangers", target.connected.load(Ordering::Relaxed));
    });
    assert!(target.connected.into_inner() > 20, "hardly a stranger reached the port");
    sets.iter_mut().flatten().for_each(Worker::expect_nothing_left);
}

/// Where strangers go now.
#[derive(Default)]
struct Target {
    id: Mutex<Option<UniqueId>>,
    over: AtomicBool,
    connected: AtomicU64,
}

/// Ends the strangers, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Target {
    /// Calls `visit` with every id until the test is over.
    fn each(&self, mut visit: impl FnMut(&UniqueId)) {
        while !self.over.load(Ordering::Relaxed) {
            let id = self.id.lock().unwrap().clone();
            if let Some(id) = id {
                visit(&id);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn connect(&self, address: SocketAddr) -> Option<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()?;
        self.connected.fetch_add(1, Ordering::Relaxed);
        Some(stream)
    }
}

fn init(workers: &mut [Worker], target: &Target) {
    let id = workers[0].make_id("30s");
    *target.id.lock().unwrap() = Some(id.parse().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    let (started, stolen) = (Instant::now(), Stolen::watch());
    pool::join_with(&mut workers.iter_mut().collect::<Vec<_>>(), &id, "30s", "check");
    for worker in &*workers {
        worker.until("in").unwrap_or_else(|answer| panic!("init among strangers: {answer}"));
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2) + stolen.so_far(), "init took {took:?}");
    for worker in &*workers {
        assert_eq!(worker.result().1, Ok(()));
    }
}

fn random_bytes(target: &Target) {
    let mut noise = blake3::Hasher::new().finalize_xof();
    target.each(|id| {
        let mut bytes = [0; 4096];
        noise.fill(&mut bytes);
        if let Some(mut stream) = target.connect(id.addresses()[0]) {
            // The root may hang up at any byte.
            let length = usize::from(bytes[0]) * 16 + 1;
            let _ = stream.write_all(&bytes[..length]);
        }
    });
}

fn half_open(target: &Target) {
    let mut held = std::collections::VecDeque::new();
    target.each(|id| {
        held.extend(target.connect(id.addresses()[0]));
        if held.len() > 200 {
            held.pop_front();
        }
    });
}

/// A byte now and then, of a beginning that the root itself might have sent.
fn slow(target: &Target) {
    target.each(|id| {
        let Some(mut stream) = target.connect(id.addresses()[0]) else { return };
        let mut echoed = [0; 64];
        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
        let length = stream.read(&mut echoed).unwrap_or(0).max(8);
        for byte in &echoed[..length] {
            if target.over.load(Ordering::Relaxed) || stream.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// A rank of another job that was given this job's address.
fn wrong_secret(target: &Target) {
    let config = Config::from_vars([("CCL_INIT_TIMEOUT", "1s")]).unwrap();
    target.each(|id| {
        let mut bytes = id.to_bytes();
        bytes[16] ^= 1;
        let check = blake3::hash(&bytes[..112]);
        bytes[112..].copy_from_slice(&check.as_bytes()[..16]);
        let wrong = UniqueId::from_bytes(&bytes).unwrap();
        Communicator::init_rank(&wrong, Rank(1), 4, &config).expect_err("the secret is wrong");
    });
}
