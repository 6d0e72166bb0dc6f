//! Joining and control with several roots, over a fake network with a fake clock: random schedules, by seed.

mod net;

use std::collections::{BTreeMap, BTreeSet};

use net::{ARRIVALS, Happening, LONG, Net, PATIENCE};

use super::*;
use crate::bootstrap::roots::{share, share_of};
use crate::bootstrap::sim::report;
use crate::bootstrap::wire::ToRoot;
use crate::error::Fault;

#[test]
fn all_arrive_at_any_number_of_roots_over_a_lossy_network() {
    schedules(0..160, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        net.loss_percent = 20;
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_secs(3));
        net.expect_all_in();
        net.leave_all();
        assert!(net.roots.iter().all(|root| root.finished), "{}: all roots must end", net.name);
    });
}

/// The promise of several ids: what one root has to do does not grow with n, but with n/k.
#[test]
fn a_root_takes_the_messages_of_its_share_and_of_the_other_roots() {
    for (n, k) in [(1, 1), (64, 1), (64, 2), (256, 4), (509, 8), (96, 3), (8, 8)] {
        let mut net = Net::new(7, n, k);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS * 2);
        net.expect_all_in();
        let joining = net.counts();
        for (index, root) in joining.iter().enumerate() {
            let share = share(index as u32, n, k).len();
            let others = if k == 1 {
                0
            } else if index == net.head() {
                k as usize - 1
            } else {
                1
            };
            // From each rank the answer to the challenge, and its first word; to each the challenge, the
            // welcome, and the table.
            assert_eq!(root.connections, share, "{}: root {index}", net.name);
            assert_eq!(
                (root.from_ranks, root.to_ranks),
                (2 * share, 3 * share),
                "{}: root {index}",
                net.name
            );
            // Between roots: a handshake of three, who it is, the arrivals, and the table.
            let (up, down) = match index == net.head() {
                true => (3 * others, 3 * others),
                false => (3, 3),
            };
            let (got, sent) = if index == net.head() { (up, down) } else { (down, up) };
            let expected = if k == 1 { (0, 0) } else { (got, sent) };
            assert_eq!((root.from_roots, root.to_roots), expected, "{}: root {index}", net.name);
        }
        if n == 1 {
            continue;
        }
        net.reset_counts();
        for rank in 0..n {
            let gather = ToRoot::Gather { round: 0, remaining_ms: 4000, info: wire::blob(&[rank as u8]) };
            net.say(rank, &gather);
        }
        net.run_until(net.now + Duration::from_millis(100));
        for (index, root) in net.counts().iter().enumerate() {
            let share = share(index as u32, n, k).len();
            assert_eq!((root.from_ranks, root.to_ranks), (share, share), "{}: root {index}", net.name);
            // A round, and whether the head is there.
            let others = if k == 1 {
                0
            } else if index == net.head() {
                k as usize - 1
            } else {
                1
            };
            assert!(root.from_roots <= 4 * others && root.to_roots <= 4 * others, "{}: {root:?}", net.name);
        }
        assert!(net.ranks.iter().all(|rank| rank.rounds == [n as usize]), "{}", net.name);
    }
}

#[test]
fn missing_ranks_are_named_by_all_present_wherever_they_should_have_come() {
    schedules(200..320, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        let missing: BTreeSet<u32> = (0..net.dice.below(3) + 1).map(|_| net.dice.below(n)).collect();
        net.arrive_all(&missing.iter().copied().collect::<Vec<_>>());
        net.run();
        let named = format!("missing: {}; present: ", words::ranks(missing.iter().copied()));
        for rank in (0..n).filter(|rank| !missing.contains(rank)) {
            let error = net.error(rank);
            assert!(error.cause().contains(&named), "{}: rank {rank}: {error}", net.name);
            let first = Rank(*missing.first().unwrap());
            assert_eq!(error.fault(), &Fault::Remote { rank: first }, "{}", net.name);
            let late = net.ranks[rank as usize].over_at;
            assert!(late <= ARRIVALS + PATIENCE + Duration::from_millis(600), "{}: {late:?}", net.name);
        }
        net.expect_roots_end(&missing);
    });
}

#[test]
fn a_failure_or_death_while_joining_reaches_all() {
    schedules(400..550, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        let victim = net.dice.below(n);
        let absent = (victim + 1) % n;
        match seed % 3 {
            0 => {
                net.arrive_all(&[victim]);
                net.ranks[victim as usize].purpose = Some("no memory");
                net.arrive(victim);
            }
            1 => {
                // One never comes, so that another can die while joining.
                net.arrive_all(&[absent]);
                net.at(ARRIVALS + Duration::from_millis(50), Happening::Die { rank: victim });
            }
            _ => {
                net.arrive_all(&[]);
                net.ranks[victim as usize].n = n + 1;
            }
        }
        // Ranks that have n wrong may leave a deputy waiting for others that will not come.
        net.run_until(if seed % 3 == 2 { LONG } else { ARRIVALS + Duration::from_secs(2) });
        let named = format!("rank {victim} at ");
        for rank in (0..n).filter(|rank| *rank != victim && (seed % 3 != 1 || *rank != absent)) {
            let error = net.error(rank);
            assert!(error.cause().contains(&named), "{}: rank {rank}: {error}", net.name);
        }
    });
}

#[test]
fn ids_in_another_order_or_other_ids_are_found_out() {
    schedules(600..700, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        if k < 2 {
            return;
        }
        let odd: BTreeSet<u32> = (0..net.dice.below(n) + 1).map(|_| net.dice.below(n)).collect();
        if odd.len() == n as usize {
            return;
        }
        let (from, to) = (net.dice.below(k) as usize, net.dice.below(k) as usize);
        for rank in &odd {
            net.ranks[*rank as usize].ids.swap(from, to);
        }
        net.arrive_all(&[]);
        net.run();
        for rank in 0..n {
            match from == to {
                true => assert!(net.ranks[rank as usize].infos.is_some(), "{}", net.name),
                false => {
                    let error = net.error(rank);
                    assert!(
                        error.cause().contains("the unique ids in another order than rank"),
                        "{}: {error}",
                        net.name
                    );
                    assert_eq!(error.fault(), &Fault::Usage, "{}", net.name);
                    let over_at = net.ranks[rank as usize].over_at;
                    assert!(over_at < ARRIVALS + Duration::from_secs(1), "{}: {over_at:?}", net.name);
                }
            }
        }
    });
}

#[test]
fn one_id_and_several_do_not_mix() {
    for seed in 0..20 {
        let mut net = Net::new(seed, 6, 3);
        let head = net.head();
        let lonely = net.dice.below(6) as usize;
        net.ranks[lonely].ids = vec![net.ids[head].clone()];
        net.arrive_all(&[]);
        net.run();
        for rank in 0..6 {
            let error = net.error(rank);
            let text = format!("rank {lonely} was given one unique id, rank ");
            assert!(
                error.cause().contains(&text) && error.cause().contains("was given 3"),
                "{}: {error}",
                net.name
            );
        }
    }
}

#[test]
fn a_root_that_comes_late_is_waited_for() {
    schedules(700..760, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        let late = net.dice.below(k) as usize;
        net.roots[late].listens_from = ARRIVALS + Duration::from_secs(2);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_secs(3));
        net.expect_all_in();
    });
}

#[test]
fn a_root_that_never_comes_is_named_by_the_deadline() {
    schedules(800..860, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        let absent = net.dice.below(k);
        net.roots[absent as usize].listens_from = LONG * 2;
        net.arrive_all(&[]);
        net.run();
        for rank in 0..n {
            let error = net.error(rank);
            let over_at = net.ranks[rank as usize].over_at;
            assert!(over_at <= ARRIVALS + PATIENCE + Duration::from_millis(600), "{}: {over_at:?}", net.name);
            let own = share_of(rank, n, k) == absent;
            let expected = match (own, absent as usize == net.head()) {
                (true, _) | (_, true) => "expected the root at 10.0.0.".to_owned(),
                (false, false) => format!("no word from the root of unique id {absent}"),
            };
            assert!(error.cause().contains(&expected), "{}: rank {rank}: {error}", net.name);
        }
    });
}

#[test]
fn a_root_that_dies_while_joining_fails_all() {
    schedules(900..980, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        let dead = net.dice.below(k) as usize;
        // Somebody is missing, so that joining goes on.
        let absent = net.dice.below(n);
        net.arrive_all(&[absent]);
        net.at(ARRIVALS + Duration::from_millis(300), Happening::KillRoot { root: dead });
        net.run();
        for rank in (0..n).filter(|rank| *rank != absent) {
            let error = net.error(rank);
            let over_at = net.ranks[rank as usize].over_at;
            assert!(over_at <= ARRIVALS + PATIENCE + Duration::from_millis(600), "{}: {over_at:?}", net.name);
            let own = share_of(rank, n, k) as usize == dead;
            let expected = ["ended while ranks were joining", "was lost while ranks were joining"];
            assert!(
                expected.iter().any(|text| error.cause().contains(text)),
                "{}: rank {rank}: {error}",
                net.name
            );
            assert!(!own || error.cause().contains(expected[0]), "{}: rank {rank}: {error}", net.name);
        }
    });
}

#[test]
fn survivors_agree_on_the_first_cause_across_roots() {
    schedules(1000..1150, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(400));
        net.expect_all_in();
        for _ in 0..net.dice.below(3) + 1 {
            let (rank, other, what) = (net.dice.below(n), net.dice.below(n), net.dice.below(5));
            let at = net.now + net.dice.time(Duration::from_millis(300));
            let say = |message| Happening::Say { rank, message };
            let happening = match what {
                0 | 1 => Happening::Die { rank },
                2 => say(ToRoot::Abort { reason: "enough".into() }),
                3 => say(ToRoot::Report { cause: report(rank, other) }),
                _ => say(ToRoot::Diagnose { sequence: 3, waiting_for: Some(other) }),
            };
            net.at(at, happening);
        }
        net.run_until(net.now + Duration::from_secs(3));
        net.expect_one_cause();
        net.leave_all();
        assert!(net.roots.iter().all(|root| root.finished), "{}: all roots must end", net.name);
    });
}

#[test]
fn the_death_of_a_root_and_of_the_rank_beside_it_is_that_of_the_rank() {
    schedules(1200..1280, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(400));
        net.expect_all_in();
        let dead = net.dice.below(k);
        let host = share(dead, n, k).start;
        net.at(net.now, Happening::KillRoot { root: dead as usize });
        net.at(net.now, Happening::Die { rank: host });
        net.run_until(net.now + Duration::from_secs(1));
        net.expect_one_culprit(host);
        net.leave_all();
        assert!(net.roots.iter().all(|root| root.finished || root.dead), "{}: all roots must end", net.name);
    });
}

#[test]
fn a_root_that_ends_after_its_rank_has_left_is_nobodys_death() {
    schedules(1300..1360, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(400));
        let gone = net.dice.below(k);
        let host = share(gone, n, k).start;
        net.leave(host);
        net.run_until(net.now + Duration::from_millis(100));
        net.at(net.now, Happening::KillRoot { root: gone as usize });
        net.run_until(net.now + Duration::from_millis(500));
        let served = (0..n).any(|rank| rank != host && share_of(rank, n, k) == gone);
        for (rank, sim) in net.ranks.iter().enumerate().filter(|(rank, _)| *rank != host as usize) {
            assert!(sim.cause.is_none(), "{}: rank {rank}: {:?}", net.name, sim.cause);
            let orphaned = sim.orphaned.as_ref().map(|error| error.cause().contains("which had left"));
            let expected = (served || gone as usize == net.head()).then_some(true);
            assert_eq!(orphaned, expected, "{}: rank {rank}: {:?}", net.name, sim.orphaned);
        }
    });
}

#[test]
fn messages_between_ranks_arrive_within_and_across_shares() {
    schedules(1400..1440, |seed, n, k| {
        let mut net = Net::new(seed, n, k);
        net.arrive_all(&[]);
        net.run_until(ARRIVALS + Duration::from_millis(400));
        net.reset_counts();
        let mut expected: BTreeMap<u32, Vec<(u32, u8)>> = BTreeMap::new();
        for number in 0..40 {
            let (from, to) = (net.dice.below(n), net.dice.below(n));
            net.say(from, &ToRoot::Relay { to, topic: 1, bytes: wire::blob(&[number]) });
            expected.entry(to).or_default().push((from, number));
        }
        net.run_until(net.now + Duration::from_millis(100));
        for (to, mut sent) in expected {
            let mut mail = net.ranks[to as usize].mail.clone();
            for from in 0..n {
                let of = |mail: &[(u32, u8)]| {
                    mail.iter().filter(|(sender, _)| *sender == from).copied().collect::<Vec<_>>()
                };
                assert_eq!(of(&mail), of(&sent), "{}: from {from} to {to}", net.name);
            }
            mail.sort_unstable();
            sent.sort_unstable();
            assert_eq!(mail, sent, "{}", net.name);
        }
    });
}

/// Runs `check` for each seed with k from 1 to 8 and n up to some hundreds; large n seldom.
fn schedules(seeds: std::ops::Range<u64>, check: impl Fn(u64, u32, u32)) {
    for seed in seeds {
        let k = 1 + (seed % 8) as u32;
        let n = match seed / 8 % 8 {
            0 => 200,
            1 | 2 => 40,
            3 | 4 => 17,
            _ => 8,
        };
        check(seed, n.max(k), k);
    }
}
