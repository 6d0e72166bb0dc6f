//! One rank's process: it takes commands from standard input, one a line, and answers each in one.
//!
//! Answers begin with [`MARK`], because the test harness also writes to standard output.

use std::io::{BufRead, Write};

use ccl::discover::launcher::Job;
use ccl::{Collective, Communicator, Config, Dtype, Rank, ReduceOp, Result, UniqueId};
use ccl_tests::exercise::{self, Placement};

use crate::{fork, idle, mapped, memory, pool, roots, split};

/// Serves until standard input ends: `make <init timeout>` answers `id` with a new unique id, whose root
/// lives here; `resources` answers what this process holds; for `join` see [`join`], for `idle`
/// [`idle::serve`], for `memory` [`memory::serve`], for `job` [`job`].
pub(crate) fn serve() {
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "make" => say(&format!("id {}", UniqueId::generate_local(&config(words[1])).unwrap().to_hex())),
            "join" => join(&words[1..]),
            "job" => job(&words[1..]),
            "idle" => idle::serve(&words[1..]),
            "memory" => memory::serve(&words[1..]),
            "resources" => say(&format!("resources {}", resources())),
            other => panic!("no command {other}"),
        }
    }
}

/// `join <id>,... <rank> <n> <init timeout> <work>`: work is the number of calls to make, `endless`, `check`, or
/// one of [`crate::fork`], [`crate::mapped`], [`crate::roots`] and [`crate::split`]; answers are `joining`, `in`, `leaving`, and at last `ok` or `error` with a text.
fn join(words: &[&str]) {
    let ids: Vec<UniqueId> = words[0].split(',').map(|id| id.parse().unwrap()).collect();
    let (rank, n): (u32, u32) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    say("joining");
    let done = Communicator::init_rank_scalable(&ids, Rank(rank), n, &config(words[3])).and_then(|comm| {
        say("in");
        let wrong = work(&comm, words[4])?;
        say("leaving");
        Ok(wrong)
    });
    finish(done);
}

/// `job <addresses> <rank> <n> <init timeout> <work>`: as `join`, with what a launcher says by settings.
fn job(words: &[&str]) {
    let own = settings();
    let vars = [
        ("CCL_COMM_ID", words[0]),
        ("CCL_RANK", words[1]),
        ("CCL_NRANKS", words[2]),
        ("CCL_LOCAL_RANK", words[1]),
        ("CCL_LOCAL_NRANKS", words[2]),
        ("CCL_INIT_TIMEOUT", words[3]),
        ("CCL_TIMEOUT", "30s"),
        ("CCL_DEBUG", "NONE"),
    ];
    let config = Config::from_vars(vars.into_iter().chain(pairs(&own))).unwrap();
    let joined = Job::discover(&config).and_then(|job| Communicator::from_job(&job, &config));
    finish(joined.and_then(|comm| work(&comm, words[4])));
}

fn finish(done: Result<Vec<String>>) {
    match done {
        Ok(wrong) if wrong.is_empty() => say("ok"),
        Ok(wrong) => say(&format!("error wrong: {}", wrong.join("; "))),
        Err(error) => say(&format!("error {error}")),
    }
}

/// What came out wrong.
fn work(comm: &Communicator, work: &str) -> Result<Vec<String>> {
    match work {
        "check" => return check(comm),
        "windows" => return mapped::sweep(comm),
        "cycles" => return mapped::cycles(comm, resources),
        "endless-mapped" => return mapped::endless(comm),
        "abort" => return roots::abort(comm),
        "fork" => return fork::work(comm),
        "split" => return split::work(comm),
        "split-death" => return split::death(comm),
        _ => {}
    }
    let calls = if work == "endless" { usize::MAX } else { work.parse().unwrap() };
    let mut values = vec![1f32; 20_000];
    for call in 0..calls {
        // Small and large calls take different paths.
        let count = if call % 2 == 0 { 8 } else { values.len() };
        values.fill(1.0);
        comm.all_reduce_in_place(&mut values[..count], ReduceOp::Sum)?;
        if values[count - 1] != comm.size() as f32 {
            return Ok(vec![format!("call {call}: {}", values[count - 1])]);
        }
    }
    Ok(Vec::new())
}

fn check(comm: &Communicator) -> Result<Vec<String>> {
    let n = comm.size();
    let mut wrong = Vec::new();
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
        let what = (collective, Dtype::I32, ReduceOp::Sum);
        let counts = exercise::uneven_counts(collective, n, 1031);
        let case = exercise::case(what, (n, Rank(0)), 1031, &counts);
        wrong.extend(exercise::run(comm, &case, Placement::OutOfPlace, 7)?);
    }
    comm.barrier()?;
    Ok(wrong)
}

pub(crate) fn config(init_timeout: &str) -> Config {
    // Strangers are refused by the hundred, each with a warning.
    let vars = [("CCL_INIT_TIMEOUT", init_timeout), ("CCL_TIMEOUT", "30s"), ("CCL_DEBUG", "NONE")];
    Config::from_vars(vars.into_iter().chain(pairs(&settings()))).unwrap()
}

/// The settings that this process was started with.
fn settings() -> String {
    std::env::var(pool::SETTINGS).unwrap_or_default()
}

fn pairs(settings: &str) -> impl Iterator<Item = (&str, &str)> {
    settings.split(',').filter_map(|pair| pair.split_once('='))
}

/// Descriptors, mappings of anonymous shared files, and threads of this process.
fn resources() -> String {
    let count = |directory: &str| std::fs::read_dir(directory).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|line| line.contains("memfd:")).count();
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    format!("{descriptors} descriptors, {maps} mappings, {threads} threads")
}

pub(crate) fn say(answer: &str) {
    let answer = answer.replace('\n', " | ");
    let mut out = std::io::stdout().lock();
    // The parent may be gone, which ends this process soon.
    let _ = out.write_all(format!("\n{MARK}{answer}\n").as_bytes()).and_then(|()| out.flush());
}

/// How an answer begins.
pub(crate) const MARK: &str = "@ccl ";
