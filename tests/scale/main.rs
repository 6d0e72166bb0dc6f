//! As many ranks as one process may hold. Alone in its process: they keep all processors busy, and other
//! tests have deadlines.

#![allow(clippy::unwrap_used)]

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccl::{Config, ReduceOp, local};

/// What one rank of a communicator in one process opens: its control connection, the root's end of it,
/// its memory and its mailbox; a port and the ends of three connections while infos travel out of band; and some for
/// everything else.
const DESCRIPTORS_PER_RANK: u64 = 9;

/// A rank that failed to join must not keep the others for ever.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

#[test]
fn a_thousand_ranks_of_one_process_join_in_time_that_grows_with_their_number() {
    join_few_and_many(1024, "0");
}

#[test]
fn hundreds_of_ranks_join_out_of_band() {
    join_few_and_many(256, "1");
}

#[test]
#[ignore = "takes all there is for a while: a step of `scripts/test long`"]
fn a_thousand_ranks_join_out_of_band() {
    join_few_and_many(1024, "1");
}

fn join_few_and_many(most: u32, out_of_band: &'static str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let most = ranks_for(most);
    let config = Config::from_vars([("CCL_OOB_NET_ENABLE", out_of_band)]).unwrap();
    let few = join(most / 8, &config);
    let many = join(most, &config);
    println!("{} ranks joined in {few:?}, {most} in {many:?}, out of band: {out_of_band}", most / 8);
    // Eight times as many; what every rank hears of every other may add as much again. Were mappings or
    // texts made for every pair, it would be 64 times.
    let limit = 40 * few.max(Duration::from_millis(50));
    assert!(many < limit, "{most} ranks joined in {many:?}, more than {limit:?}");
}

/// How long `n` ranks take to join. Nobody calls before all have: what a call takes would be counted.
fn join(n: u32, config: &Config) -> Duration {
    let (left, all_joined) = (Mutex::new(n), Condvar::new());
    let start = Instant::now();
    let joined = local::run_with(config, n, |comm| {
        let joined = start.elapsed();
        let mut guard = left.lock().unwrap();
        *guard -= 1;
        if *guard == 0 {
            all_joined.notify_all();
        }
        drop(all_joined.wait_timeout_while(guard, LONGEST_WAIT, |left| *left > 0).unwrap());
        let mut sum = [1_u32];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [n]);
        Ok(joined)
    });
    joined.unwrap().into_iter().max().unwrap()
}

/// `n`, or as many as the process may have descriptors for, after it has asked for enough.
fn ranks_for(n: u32) -> u32 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::from(n) * DESCRIPTORS_PER_RANK;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return n;
    }
    let allowed = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }).unwrap();
    let ranks = u32::try_from(allowed / DESCRIPTORS_PER_RANK).unwrap().min(n);
    if ranks < n {
        println!(
            "SKIPPED in part: {ranks} ranks rather than {n}, since this process may open {allowed} files"
        );
    }
    ranks
}
