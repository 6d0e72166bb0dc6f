//! A rank is killed at a random moment; the others return soon, name it, and start again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use ccl_tests::Stolen;

use crate::pool::{self, Worker};

#[test]
fn survivors_of_a_killed_rank_name_it_and_start_again() {
    let trials = number("CCL_TRIALS", 40);
    run_all(0..trials, "");
}

#[test]
fn survivors_of_a_rank_killed_while_infos_travel_out_of_band_name_it_and_start_again() {
    let trials = number("CCL_TRIALS", 40) / 4;
    let [_, linked, plugin] = pool::bands();
    for (settings, trials) in [(linked, 0..trials / 2), (plugin, trials / 2..trials)] {
        // Every third dies while ranks join.
        run_all(trials.map(|number| 3 * number), &settings);
    }
}

fn run_all(numbers: impl Iterator<Item = u64>, settings: &str) {
    let seed = number("CCL_SEED", u64::from(std::process::id()));
    println!("CCL_SEED={seed}, settings {settings:?}");
    let files = pool::shared_memory_files();
    let start = || Worker::start_with(settings);
    let mut workers: Vec<Worker> = (0..RANKS).map(|_| start()).collect();
    let (mut trials, mut slowest, mut untouched) = (0, Duration::ZERO, 0);
    for number in numbers {
        trials += 1;
        let trial = Trial::new(seed, number);
        let (took, complete) = run(&mut workers, &trial);
        slowest = slowest.max(took);
        untouched += complete;
        start_again(&mut workers, &trial);
        assert_eq!(pool::shared_memory_files(), files, "{trial:?}: files in /dev/shm");
        workers[trial.dead] = start();
    }
    println!("{trials} trials, slowest survivor {slowest:?}, complete before they noticed {untouched}");
}

/// During what the rank is killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Init,
    Collective,
    Destroy,
}

#[derive(Debug)]
struct Trial {
    number: u64,
    phase: Phase,
    dead: usize,
    pause: Duration,
}

impl Trial {
    fn new(seed: u64, number: u64) -> Trial {
        let phase = [Phase::Init, Phase::Collective, Phase::Destroy][(number % 3) as usize];
        // Rank 0 hosts the root, so it dies more often than chance would have it.
        let dead =
            if draw(seed, number, 0).is_multiple_of(4) { 0 } else { draw(seed, number, 1) as usize % RANKS };
        let longest_us = match phase {
            Phase::Init => 15_000,
            Phase::Collective => 100_000,
            Phase::Destroy if number.is_multiple_of(2) => 30_000,
            Phase::Destroy => 500,
        };
        let pause = Duration::from_micros(draw(seed, number, 2) % longest_us);
        Trial { number, phase, dead, pause }
    }
}

/// Runs the killed communicator; how long after the kill its last survivor returned, and how many
/// survivors had completed everything.
fn run(workers: &mut [Worker], trial: &Trial) -> (Duration, usize) {
    // A rank that dies before it reached the root was never seen: the deadline of joining names it.
    let (init_timeout, work, moment) = match trial.phase {
        Phase::Init => ("1s", "endless", "joining"),
        Phase::Collective => ("30s", "endless", "in"),
        // The last calls end, and ranks leave, around the time of the kill.
        Phase::Destroy => ("30s", "20", if trial.number.is_multiple_of(2) { "in" } else { "leaving" }),
    };
    pool::join(&mut workers.iter_mut().collect::<Vec<_>>(), init_timeout, work);
    let reached = workers[trial.dead].until(moment);
    reached.unwrap_or_else(|answer| panic!("{trial:?}: before the kill: {answer}"));
    std::thread::sleep(trial.pause);
    let stolen = Stolen::watch();
    let killed = workers[trial.dead].kill();
    let survivors = || workers.iter().enumerate().filter(|(rank, _)| *rank != trial.dead);
    let returned: Vec<_> =
        survivors().map(|(rank, worker)| judge(trial, rank, worker, (killed, &stolen))).collect();
    let complete = returned.iter().filter(|(_, result)| result.is_ok()).count();
    (returned.iter().map(|(took, _)| *took).max().unwrap_or_default(), complete)
}

fn judge(
    trial: &Trial,
    rank: usize,
    worker: &Worker,
    (killed, stolen): (Instant, &Stolen),
) -> (Duration, Result<(), String>) {
    let (at, result) = worker.result();
    let took = at.saturating_duration_since(killed);
    assert!(took <= LIMIT + stolen.so_far(), "{trial:?}: rank {rank} returned after {took:?}: {result:?}");
    match &result {
        // It needs nobody any more: complete before it could notice.
        Ok(()) => assert_eq!(trial.phase, Phase::Destroy, "rank {rank} noticed nothing: {trial:?}"),
        Err(text) => assert!(names(text, trial.dead), "{trial:?}: rank {rank}: {text}"),
    }
    (took, result)
}

/// The survivors hold nothing, and make a communicator that works and leaves nothing either.
fn start_again(workers: &mut [Worker], trial: &Trial) {
    let survivors = workers.iter_mut().enumerate().filter(|(rank, _)| *rank != trial.dead);
    let mut survivors: Vec<&mut Worker> = survivors.map(|(_, worker)| worker).collect();
    survivors.iter_mut().for_each(|worker| worker.expect_nothing_left());
    pool::join(&mut survivors, "30s", "check");
    for worker in &survivors {
        assert_eq!(worker.result().1, Ok(()), "{trial:?}");
    }
    survivors.iter_mut().for_each(|worker| worker.expect_nothing_left());
}

/// Whether `text` speaks of exactly this rank, other than as the one that says so.
pub(crate) fn names(text: &str, rank: usize) -> bool {
    // An error begins with "rank 3: ", the rank that noticed.
    let text = text.split_once(": ").map_or(text, |(_, text)| text);
    let after = |(at, found): (usize, &str)| text[at + found.len()..].chars().next();
    let name = format!("rank {rank}");
    text.match_indices(&name).any(|found| after(found).is_none_or(|next| !next.is_ascii_digit()))
}

fn draw(seed: u64, trial: u64, what: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, trial, what).hash(&mut hasher);
    hasher.finish()
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

const RANKS: usize = 8;
const LIMIT: Duration = Duration::from_secs(2);
