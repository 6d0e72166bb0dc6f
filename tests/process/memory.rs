//! A communicator takes what was predicted: to the byte, and to the socket.

use std::collections::BTreeSet;
use std::sync::Barrier;

use ccl::memory::Footprint;
use ccl::{Communicator, Config, Rank, Request, Result};

use crate::pool::Worker;
use crate::worker::say;

#[test]
fn communicators_take_what_was_predicted() {
    let mut workers: Vec<Worker> = (0..8).map(|_| Worker::start()).collect();
    for n in [1, 2, 4, 8] {
        for (locals, shared) in [(n, "shared"), (n, "apart"), (n / 2, "shared")] {
            if locals > 0 {
                footprints(&mut workers[..1], n, locals, shared);
                footprints(&mut workers[..n], n, locals, shared);
            }
        }
    }
    workers.iter_mut().for_each(Worker::expect_nothing_left);
}

/// Ranks dealt evenly to the workers check their own footprint.
fn footprints(workers: &mut [Worker], n: usize, locals: usize, shared: &str) {
    let id = if n == 1 { "none".to_owned() } else { workers[0].make_id("20s") };
    let each = n / workers.len();
    for (index, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("memory {} {each} {n} {locals} {shared} {id}", index * each));
    }
    for worker in workers.iter_mut() {
        let (_, outcome) = worker.result();
        assert_eq!(outcome, Ok(()), "{n} ranks, {locals} on a host, {shared}");
    }
}

/// The worker's side: `memory <first rank> <ranks> <n> <ranks of a host> <shared or apart> <id>`; its
/// ranks are threads. Answers `ok`, or `error` with what was not as predicted.
pub(crate) fn serve(words: &[&str]) {
    let numbers: Vec<u32> = words[..4].iter().map(|word| word.parse().unwrap()).collect();
    let [first, ranks, n, locals] = numbers[..] else { unreachable!() };
    let before = Held::now();
    let (reached, goes_on) = (Barrier::new(ranks as usize + 1), Barrier::new(ranks as usize + 1));
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        let start = |rank| {
            let (reached, goes_on) = (&reached, &goes_on);
            scope.spawn(move || {
                let config = config(rank / locals, words[4] == "apart");
                let comm = match words[5] {
                    "none" => Communicator::alone(&config).unwrap(),
                    id => Communicator::init_rank(&id.parse().unwrap(), Rank(rank), n, &config).unwrap(),
                };
                let mut wrong = compare(&comm, Footprint::before_use(n, locals, &config).unwrap());
                reached.wait();
                goes_on.wait();
                use_edges(&comm).unwrap();
                wrong.extend(compare(&comm, with_used_edges(n, locals, &config).unwrap()));
                reached.wait();
                goes_on.wait();
                // Nobody leaves before all have looked.
                comm.barrier().unwrap();
                wrong
            })
        };
        let threads: Vec<_> = (first..first + ranks).map(start).collect();
        for predict in [Footprint::before_use, with_used_edges] {
            reached.wait();
            let rank = predict(n, locals, &config(0, words[4] == "apart")).unwrap();
            // A process maps the memory of a host once for all of its ranks.
            let hosts =
                if words[4] == "apart" { ranks } else { (first + ranks).div_ceil(locals) - first / locals };
            wrong.extend(check_process(&before, &rank, (first, ranks, n), hosts));
            goes_on.wait();
        }
        wrong.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap()));
    });
    match wrong.is_empty() {
        true => say("ok"),
        false => say(&format!("error {}", wrong.join("; "))),
    }
}

fn compare(comm: &Communicator, predicted: Footprint) -> Vec<String> {
    let found = comm.memory().unwrap();
    let differs = found != predicted;
    differs
        .then(|| format!("rank {}: predicted {predicted:?}, found {found:?}", comm.rank()))
        .into_iter()
        .collect()
}

/// Compares with what the system says of this process, some of whose ranks are here, on so many hosts.
fn check_process(
    before: &Held,
    rank: &Footprint,
    (first, ranks, n): (u32, u32, u32),
    hosts: u32,
) -> Vec<String> {
    let now = Held::now();
    if n == 1 {
        return (now != *before)
            .then(|| format!("one rank: {before:?} became {now:?}"))
            .into_iter()
            .collect();
    }
    // One for each rank, and the port, which stays a while for those who come too late.
    let roots = if first == 0 { n + 1 } else { 0 };
    let expected = (u64::from(hosts) * rank.mapped_bytes, u64::from(ranks) * rank.sockets + u64::from(roots));
    let found = (now.shared_bytes, now.sockets);
    let differs = found != expected;
    let text =
        || format!("ranks from {first}: expected {expected:?} bytes mapped and sockets, found {found:?}");
    differs.then(text).into_iter().collect()
}

/// What the system says a process holds.
#[derive(PartialEq, Eq, Debug)]
struct Held {
    /// Of all mappings of shared memory.
    shared_bytes: u64,
    sockets: u64,
    descriptors: BTreeSet<String>,
    shared_mappings: BTreeSet<String>,
}

impl Held {
    fn now() -> Held {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let shared = |line: &&str| line.split(' ').nth(1).is_some_and(|flags| flags.ends_with('s'));
        let bytes = |line: &str| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        };
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        // Standard input, output and error are the harness's; what cannot be read is the folder's own.
        let own = numbers.filter(|path| !matches!(path.file_name().unwrap().to_str(), Some("0" | "1" | "2")));
        let descriptors: BTreeSet<String> = own
            .filter_map(|path| Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned()))
            .collect();
        let ours = maps.lines().filter(|line| line.contains("memfd:ccl"));
        Held {
            shared_bytes: ours.map(bytes).sum(),
            sockets: descriptors.iter().filter(|name| name.starts_with("socket:")).count() as u64,
            shared_mappings: maps.lines().filter(shared).map(str::to_owned).collect(),
            descriptors,
        }
    }
}

/// The footprint once [`use_edges`] was called: of the three edges from one rank to another, that for
/// messages and one of the two for collectives are in use. All connections cost the same.
fn with_used_edges(n: u32, locals: u32, config: &Config) -> Result<Footprint> {
    let before_use = Footprint::before_use(n, locals, config)?;
    let at_most = Footprint::at_most(n, locals, config)?;
    assert_eq!(at_most.connections % 3, 0);
    Ok(Footprint {
        private_bytes: if n == 1 { before_use.private_bytes } else { at_most.private_bytes / 3 * 2 },
        connections: at_most.connections / 3 * 2,
        sockets: before_use.sockets + (at_most.sockets - before_use.sockets) / 3 * 2,
        ..before_use
    })
}

/// A collective and messages between every two ranks.
fn use_edges(comm: &Communicator) -> Result<()> {
    let n = comm.size() as usize;
    let (send, mut recv) = (vec![1u8; 64 * n], vec![0u8; 64 * n]);
    comm.all_to_all(&send, &mut recv)?;
    assert_eq!(send, recv);
    let mut slots = vec![[0u8; 8]; n];
    ccl::group(|group| {
        for (peer, slot) in slots.iter_mut().enumerate().filter(|(peer, _)| *peer != comm.rank().index()) {
            let peer = Rank(peer as u32);
            group.add(comm, Request::send(&[7u8; 8], peer));
            group.add(comm, Request::recv(slot, peer));
        }
        Ok(())
    })
}

fn config(host: u32, apart: bool) -> Config {
    let host = format!("host{host}");
    // The one all-to-all in which every rank sends to every other.
    let direct = ("CCL_ALGO", "alltoall:direct");
    let vars = [("CCL_TIMEOUT", "30s"), ("CCL_INIT_TIMEOUT", "20s"), ("CCL_HOSTID", &*host), direct];
    let apart = apart.then_some(("CCL_SHM_DISABLE", "1"));
    Config::from_vars(vars.into_iter().chain(apart)).unwrap()
}
