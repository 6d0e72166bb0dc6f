//! Relays for tests, and fabrics joined through them.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ccl::transport::{EdgeIndex, Fabric, Relay, TransportInfo, TransportSettings, Waiter};
use ccl::{Rank, Result};
use ccl_plan::Channel;

pub const SECRET: [u8; 32] = [7; 32];

/// Ranks as threads: everything through one table.
pub struct ThreadRelay {
    me: Rank,
    shared: Arc<Shared>,
}

struct Shared {
    barrier: Barrier,
    gathered: Mutex<Vec<Bytes>>,
    mail: Mutex<HashMap<(Rank, Rank, u32), Messages>>,
}

type Messages = VecDeque<Vec<u8>>;

impl ThreadRelay {
    pub fn all(n: u32) -> Vec<Arc<dyn Relay>> {
        let shared = Arc::new(Shared {
            barrier: Barrier::new(n as usize),
            gathered: Mutex::new(vec![Bytes::new(); n as usize]),
            mail: Mutex::default(),
        });
        let relay =
            |me| Arc::new(ThreadRelay { me: Rank(me), shared: Arc::clone(&shared) }) as Arc<dyn Relay>;
        (0..n).map(relay).collect()
    }
}

impl Relay for ThreadRelay {
    fn send(&self, to: Rank, topic: u32, bytes: Vec<u8>) -> Result<()> {
        self.shared.mail.lock().unwrap().entry((self.me, to, topic)).or_default().push_back(bytes);
        Ok(())
    }

    fn try_take(&self, from: Rank, topic: u32) -> Option<Vec<u8>> {
        self.shared.mail.lock().unwrap().get_mut(&(from, self.me, topic))?.pop_front()
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Bytes>> {
        self.shared.gathered.lock().unwrap()[self.me.index()] = bytes.into();
        self.shared.barrier.wait();
        let all = self.shared.gathered.lock().unwrap().clone();
        self.shared.barrier.wait();
        Ok(all)
    }
}

/// Ranks as processes: everything through files of one directory.
pub struct FileRelay {
    me: Rank,
    n: u32,
    directory: PathBuf,
    round: AtomicU64,
    sent: Mutex<HashMap<(Rank, u32), u64>>,
    taken: Mutex<HashMap<(Rank, u32), u64>>,
}

impl FileRelay {
    pub fn new(directory: PathBuf, me: Rank, n: u32) -> FileRelay {
        FileRelay {
            me,
            n,
            directory,
            round: AtomicU64::new(0),
            sent: Mutex::default(),
            taken: Mutex::default(),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let draft = self.directory.join(format!("draft-{}-{name}", self.me));
        std::fs::write(&draft, bytes).unwrap();
        std::fs::rename(draft, self.directory.join(name)).unwrap();
    }
}

impl Relay for FileRelay {
    fn send(&self, to: Rank, topic: u32, bytes: Vec<u8>) -> Result<()> {
        let mut sent = self.sent.lock().unwrap();
        let sequence = sent.entry((to, topic)).or_default();
        self.write(&format!("mail-{}-{to}-{topic}-{sequence}", self.me), &bytes);
        *sequence += 1;
        Ok(())
    }

    fn try_take(&self, from: Rank, topic: u32) -> Option<Vec<u8>> {
        let mut taken = self.taken.lock().unwrap();
        let sequence = taken.entry((from, topic)).or_default();
        let name = format!("mail-{from}-{}-{topic}-{sequence}", self.me);
        let bytes = std::fs::read(self.directory.join(name)).ok()?;
        *sequence += 1;
        Some(bytes)
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Bytes>> {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        self.write(&format!("round-{round}-{}", self.me), &bytes);
        let until = Instant::now() + Duration::from_secs(20);
        let read = |rank: u32| loop {
            match std::fs::read(self.directory.join(format!("round-{round}-{rank}"))) {
                Ok(bytes) => break bytes.into(),
                Err(error) if Instant::now() > until => panic!("rank {rank} never came: {error}"),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        };
        Ok((0..self.n).map(read).collect())
    }
}

pub fn settings() -> TransportSettings {
    TransportSettings { secret: SECRET, slot_bytes: 4096, ..TransportSettings::default() }
}

/// Opens and connects one rank's fabric.
pub fn join(settings: &TransportSettings, relay: &Arc<dyn Relay>, me: Rank, n: u32) -> Result<Fabric> {
    let (mut fabric, info) = Fabric::open(settings, me, n)?;
    let infos = relay.all_gather(serde_json::to_vec(&info).unwrap())?;
    let infos: Vec<TransportInfo> =
        infos.iter().map(|bytes| serde_json::from_slice(bytes).unwrap()).collect();
    fabric.connect(relay, infos, Instant::now() + Duration::from_secs(20))?;
    Ok(fabric)
}

/// Runs `body` on each of n ranks, in threads, each with its own settings and fabric.
pub fn on_threads_with<T: Send>(
    n: u32,
    settings: impl Fn(Rank) -> TransportSettings + Sync,
    body: impl Fn(Rank, Fabric) -> T + Sync,
) -> Vec<T> {
    let relays = ThreadRelay::all(n);
    std::thread::scope(|scope| {
        let spawn = |(rank, relay): (usize, Arc<dyn Relay>)| {
            let (settings, body, me) = (&settings, &body, Rank(rank as u32));
            scope.spawn(move || body(me, join(&settings(me), &relay, me, n).unwrap()))
        };
        let threads: Vec<_> = relays.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn on_threads<T: Send>(
    n: u32,
    settings: &TransportSettings,
    body: impl Fn(Rank, Fabric) -> T + Sync,
) -> Vec<T> {
    on_threads_with(n, |_| settings.clone(), body)
}

/// Sends one message, waiting for a credit. All edges make progress meanwhile: connections over a
/// network need both ends.
pub fn send(
    fabric: &mut Fabric,
    edge: EdgeIndex,
    waiter: &mut Waiter,
    payload: &[u8],
    tag: u32,
) -> Result<()> {
    while !fabric.sender(edge).try_send(payload, tag)? {
        fabric.progress()?;
        waiter.pause(None);
    }
    waiter.reset();
    Ok(())
}

/// Receives one message, waiting for it as `send` does.
pub fn receive(fabric: &mut Fabric, edge: EdgeIndex, waiter: &mut Waiter) -> Result<(Vec<u8>, u32)> {
    let mut payload = Vec::new();
    loop {
        if let Some(tag) = fabric.receiver(edge).try_receive(&mut payload)? {
            waiter.reset();
            return Ok((payload, tag));
        }
        fabric.progress()?;
        waiter.pause(None);
    }
}

/// Payloads around every boundary of a 4096-byte slot.
pub const SIZES: [usize; 12] = [0, 1, 7, 8, 47, 48, 49, 63, 64, 1000, 4095, 4096];

/// Every rank sends to every rank, itself included, on every channel and tag.
pub fn all_to_all(me: Rank, n: u32, fabric: &mut Fabric, channels: u16, tags: u8, rounds: usize) {
    let mut waiter = Waiter::new(fabric.wait().unwrap());
    for message in 0..rounds {
        for (channel, tag) in (0..channels).flat_map(|c| (0..tags).map(move |t| (Channel(c), t))) {
            let bytes = SIZES[(message + channel.index() * 5 + usize::from(tag)) % SIZES.len()];
            // Connecting takes both ends: make all edges before waiting for any.
            for peer in (0..n).map(Rank) {
                fabric.send_edge(peer, channel, tag).unwrap();
                fabric.receive_edge(peer, channel, tag).unwrap();
            }
            for to in (0..n).map(Rank) {
                let edge = fabric.send_edge(to, channel, tag).unwrap();
                send(fabric, edge, &mut waiter, &pattern(me, to, message, bytes), message as u32).unwrap();
            }
            for from in (0..n).map(Rank) {
                let edge = fabric.receive_edge(from, channel, tag).unwrap();
                let received = receive(fabric, edge, &mut waiter).unwrap();
                assert_eq!(received, (pattern(from, me, message, bytes), message as u32));
            }
        }
    }
    drain(fabric, &mut waiter);
}

/// Waits until all that was posted has left.
pub fn drain(fabric: &mut Fabric, waiter: &mut Waiter) {
    while !fabric.is_flushed() {
        fabric.progress().unwrap();
        waiter.pause(None);
    }
}

/// A payload that tells its edge, message and position.
pub fn pattern(from: Rank, to: Rank, message: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (from.index() * 83 + to.index() * 47 + message * 29 + i * 7) as u8).collect()
}
