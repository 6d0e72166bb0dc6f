//! `ccl perf all`: every operation on every dtype, with every reduce operation, in place and out of
//! place, over shared memory and over sockets, with ranks as processes and as threads.
//!
//! The tests here take a part of each axis. All of all axes is one more:
//!
//!     cargo test --release -p ccl-tests --test tool -- --ignored --nocapture

use std::time::Instant;

use ccl_plan::{Collective, algorithms};
use ccl_tests::{exercise, program};

#[test]
fn shared_memory_between_processes() {
    for n in [2, 3, 5] {
        Run { n, ranks_as: "processes", path: Path::Shm, options: SHORT }.check();
    }
    for n in [3, 4] {
        // On two CPUs four ranks are bound, two to each, and slots go from hand to hand between those.
        Run { n, ranks_as: "processes", path: Path::Shm, options: LONG }.check();
    }
    Run { n: 4, ranks_as: "processes", path: Path::Direct, options: SHORT }.check();
}

#[test]
fn shared_memory_between_threads() {
    for n in [2, 3, 5] {
        Run { n, ranks_as: "threads", path: Path::Shm, options: SHORT }.check();
    }
}

#[test]
fn sockets_between_processes() {
    for n in [2, 3, 5] {
        Run { n, ranks_as: "processes", path: Path::Sockets, options: SHORT }.check();
    }
    Run { n: 2, ranks_as: "processes", path: Path::Sockets, options: LONG }.check();
}

#[test]
fn sockets_between_threads() {
    for n in [2, 3, 5] {
        Run { n, ranks_as: "threads", path: Path::Sockets, options: SHORT }.check();
    }
}

#[test]
fn sixty_four_threads() {
    Run { n: 64, ranks_as: "threads", path: Path::Shm, options: "-d float --counts 0,1,67" }.check();
}

#[test]
#[ignore = "takes 20 minutes in release, hours in dev: a step of `scripts/test long`"]
fn full_matrix() {
    for path in [Path::Shm, Path::Sockets] {
        for ranks_as in ["processes", "threads"] {
            for n in [2, 3, 4, 5, 8] {
                Run { n, ranks_as, path, options: "-d all -o all -r all --counts 0,1,1031" }.check();
                Run { n, ranks_as, path, options: "-d all -o all --counts 1M+3" }.check();
            }
        }
    }
}

#[test]
#[ignore = "takes long: a step of `scripts/test long`"]
fn every_algorithm_between_processes() {
    let collectives: Vec<Collective> = exercise::collectives().collect();
    let most = collectives.iter().map(|collective| algorithms(*collective).len()).max().unwrap();
    for n in (2..=17).chain([33, 64]) {
        for path in [Path::Shm, Path::Sockets] {
            for turn in 0..most {
                let run = Run { n, ranks_as: "processes", path, options: "-d all -o all --counts 1,67" };
                run.check_with(&exercise::forced(&collectives, n, turn));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    Shm,
    /// Shared memory in which nothing is copied to a slot that can be read where it is.
    Direct,
    Sockets,
}

/// One run of `ccl perf all`.
#[derive(Debug)]
struct Run {
    n: u32,
    ranks_as: &'static str,
    path: Path,
    options: &'static str,
}

impl Run {
    /// Nothing is wrong, and there was something that could have been.
    #[track_caller]
    fn check(&self) {
        self.check_with("");
    }

    /// The same with these algorithms, as `CCL_ALGO` names them.
    #[track_caller]
    fn check_with(&self, algorithms: &str) {
        let (ccl, plugin) = (program::ccl(), program::socket_plugin());
        let _turn = super::turn();
        let mut command = program::command(LIMIT_S, ccl);
        command.args(["perf", "all", "-n", &self.n.to_string(), "--ranks-as", self.ranks_as]);
        command.args(["--placement", "both", "--iters", "0", "-w", "0"]).args(self.options.split(' '));
        if !algorithms.is_empty() {
            command.env("CCL_ALGO", algorithms);
        }
        if self.path == Path::Sockets {
            command.env("CCL_SHM_DISABLE", "1").env("CCL_NET_PLUGIN", &plugin).env("CCL_DEBUG", "INFO");
        }
        if self.path == Path::Direct {
            command.env("CCL_DIRECT_BYTES", "1");
        }
        let start = Instant::now();
        let output = program::succeeds(&mut command);
        let text = program::both(&output);
        let (points, results, wrong) =
            summary(&text).unwrap_or_else(|| panic!("{self:?}: no summary\n{text}"));
        println!("{self:?}: {points} points, {results} results, {wrong} wrong, {:?}", start.elapsed());
        if self.path == Path::Sockets {
            // Threads that load it at the same moment each say so, in any order.
            let chosen = |line: &str| {
                line.contains("libccl_net_socket.so (offers") && line.contains(": chosen, network socket")
            };
            assert!(text.lines().any(chosen), "{self:?}\n{text}");
        }
        assert_eq!(wrong, 0, "{self:?}\n{text}");
        // All 16 operations; most have a form in place.
        assert!(points >= 16 && results > points, "{self:?}: {points} points, {results} results");
        assert_eq!(text.matches(" OK\n").count(), 16, "{self:?}\n{text}");
    }
}

/// Points, results and wrong elements of all operations, from the last line of the tables.
fn summary(text: &str) -> Option<(u64, u64, u64)> {
    let line = text.lines().find(|line| line.starts_with("# All tests:"))?;
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next()?))
}

const SHORT: &str = "-d all -o all -r 1 --counts 0,1,1031";
/// More than any slot or chunk holds, and odd.
const LONG: &str = "-d float,uint8 -o sum --counts 1M+3";
const LIMIT_S: u64 = 3600;
