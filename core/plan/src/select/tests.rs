use alloc::format;
use alloc::string::String;

use super::*;
use crate::verify::Depth;

fn inputs(n: u32, rates: Rates) -> Inputs {
    let (allow, user) = (Allow::default(), Vec::new());
    Inputs { n, rates, max_channels: 8, max_peers: 128, level: Level::Run, allow, user }
}

fn shown(selection: &Selection, collective: Collective) -> String {
    let line = |(bound, choice): &(u64, Choice)| match *bound {
        u64::MAX => format!("else {} x{}", choice.algorithm, choice.channels),
        bound => format!("<= {bound} {} x{}; ", choice.algorithm, choice.channels),
    };
    selection.table(collective).iter().map(line).collect()
}

#[test]
fn golden_tables() {
    let table = |n, rates, collective| shown(&Selection::new(inputs(n, rates)).unwrap(), collective);
    let golden = [
        (2, Rates::SHARED_MEMORY, Collective::AllReduce, "<= 65536 one_shot x1; else two_shot x1"),
        (
            8,
            Rates::SHARED_MEMORY,
            Collective::AllReduce,
            "<= 4096 one_shot x1; <= 8192 recursive_doubling x1; <= 4194304 two_shot x1; else ring x1",
        ),
        (
            8,
            Rates::SHARED_MEMORY,
            Collective::Broadcast,
            "<= 4096 direct x1; <= 262144 binomial x1; else ring x1",
        ),
        (8, Rates::SHARED_MEMORY_DIRECT, Collective::Broadcast, "else direct x1"),
        (2, Rates::SHARED_MEMORY_DIRECT, Collective::AllReduce, "<= 65536 one_shot x1; else two_shot x1"),
        (
            64,
            Rates::SOCKET,
            Collective::AllReduce,
            "<= 512 recursive_doubling x1; <= 32768 recursive_doubling x2; <= 524288 rabenseifner x2; \
             <= 8388608 rabenseifner x4; <= 16777216 two_shot x2; <= 33554432 two_shot x4; <= 134217728 two_shot x2; else ring x2",
        ),
        (
            1024,
            Rates::RDMA,
            Collective::AllReduce,
            "<= 1024 recursive_doubling x1; <= 8192 recursive_doubling x2; <= 65536 recursive_doubling x4; \
             <= 131072 rabenseifner x2; <= 536870912 rabenseifner x4; \
             <= 34359738368 double_tree x4; else ring x4",
        ),
        (
            16,
            Rates::RDMA,
            Collective::ReduceScatter,
            "<= 4096 direct x1; <= 32768 direct x2; <= 268435456 direct x4; else ring x4",
        ),
        (16, Rates::RDMA, Collective::Barrier, "else dissemination x1"),
    ];
    for (n, rates, collective, expected) in golden {
        assert_eq!(table(n, rates, collective), expected, "{collective} n={n}");
    }
}

#[test]
fn bounds_are_inclusive_and_cover_everything() {
    let selection = Selection::new(inputs(8, Rates::SHARED_MEMORY)).unwrap();
    let table = selection.table(Collective::AllReduce);
    assert!(table.len() > 1);
    assert!(table.is_sorted_by_key(|(bound, _)| *bound));
    for pair in table.windows(2) {
        let ((bound, below), (_, above)) = (pair[0], pair[1]);
        assert_eq!(selection.choose(Collective::AllReduce, bound), below);
        assert_eq!(selection.choose(Collective::AllReduce, bound + 1), above);
    }
    for collective in Collective::ALL {
        for bytes in [0, 1, u64::MAX] {
            let choice = selection.choose(collective, bytes);
            assert!(algorithms(collective).contains(&choice.algorithm));
        }
    }
}

#[test]
fn wishes_are_obeyed_or_refused() {
    let with = |text: &str| {
        Selection::new(Inputs { allow: text.parse().unwrap(), ..inputs(8, Rates::SHARED_MEMORY) })
    };
    let algorithm = |text, collective| with(text).unwrap().choose(collective, 64).algorithm;
    assert_eq!(algorithm("ring", Collective::AllReduce), Algorithm::Ring);
    assert_eq!(algorithm("ring", Collective::Barrier), Algorithm::Dissemination);
    assert_eq!(
        algorithm("AllReduce:^OneShot,OneShotTree,ring,RecursiveDoubling,binomial", Collective::AllReduce),
        Algorithm::TwoShot
    );
    assert_eq!(algorithm("all_reduce:two_level", Collective::AllReduce), Algorithm::TwoLevel);
    assert_eq!(algorithm("all_reduce:one_shot_tree", Collective::AllReduce), Algorithm::OneShotTree);
    assert_eq!(algorithm("ring; allreduce:two_shot", Collective::AllReduce), Algorithm::TwoShot);
    let collective = Collective::Broadcast;
    assert_eq!(with("broadcast:two_shot").unwrap_err(), NothingAllowed { collective });
    let unknown = "ring,bush".parse::<Allow>().unwrap_err();
    assert_eq!(format!("{unknown}"), "expected an algorithm, found `bush`");
}

#[test]
fn the_explanation_names_every_loser() {
    let size = Inputs { level: Level::Size, max_peers: 4, ..inputs(8, Rates::SHARED_MEMORY) };
    // Too many peers are better than none.
    let few = Selection::new(size.clone()).unwrap();
    assert_eq!(few.choose(Collective::AllReduce, 1 << 30).algorithm, Algorithm::RecursiveDoubling);
    assert_eq!(few.choose(Collective::ReduceScatter, 64).algorithm, Algorithm::Direct);
    let selection = Selection::new(Inputs { max_peers: 7, ..size }).unwrap();
    let explained = selection.explain(Collective::AllReduce, 1 << 30);
    let standings: Vec<_> = explained.iter().map(|c| (c.algorithm, c.standing)).collect();
    let expected = [
        (Algorithm::TwoShot, Standing::Chosen),
        (Algorithm::Ring, Standing::NotReproducible),
        (Algorithm::TwoShotTree, Standing::TreeNotNeeded),
        (Algorithm::TwoLevel, Standing::NotReproducible),
        (Algorithm::Rabenseifner, Standing::NotReproducible),
        (Algorithm::DoubleTree, Standing::NotReproducible),
        (Algorithm::RecursiveDoubling, Standing::Slower),
        (Algorithm::Binomial, Standing::Slower),
        (Algorithm::OneShot, Standing::Slower),
        (Algorithm::OneShotTree, Standing::TreeNotNeeded),
    ];
    assert_eq!(standings, expected);
}

#[test]
fn a_level_leaves_what_reaches_it() {
    for n in [2, 3, 5, 8, 24, 64, 1000, 1 << 20] {
        for level in Level::ALL {
            let selection = Selection::new(Inputs { level, ..inputs(n, Rates::SHARED_MEMORY) }).unwrap();
            for collective in Collective::ALL {
                for (_, choice) in selection.table(collective) {
                    let reached = choice.algorithm.level(collective, n);
                    assert!(reached >= level, "{collective}.{} n={n} {level:?}", choice.algorithm);
                }
            }
        }
    }
    let chosen = |n, bytes| {
        let world = Inputs { level: Level::World, ..inputs(n, Rates::SHARED_MEMORY) };
        Selection::new(world).unwrap().choose(Collective::AllReduce, bytes).algorithm
    };
    assert_eq!(chosen(8, 64), Algorithm::OneShotTree);
    assert_eq!(chosen(8, 1 << 30), Algorithm::TwoShotTree);
    // Among so many ranks only trees and doublings have few peers.
    assert_eq!(chosen(1000, 1 << 20), Algorithm::Binomial);
}

/// One rank after the other adds its vector, the last tells all.
const CHAIN: &str = "
program all_reduce.chain
collective all_reduce
chunks 1
scratch 0
lane 0 of 1
  send pre                       in -> to [r+1]                 chunk 0 span min(1, -r+1)
  recv_reduce_send pre           from [r-1], in -> to [r+1]     chunk 0 span min(min(1, r), -r+n-1)
  recv_reduce_copy_send pre post from [r-1], in -> out, to [r+1]:1 chunk 0 span min(1, r-n+2)
  recv_copy_send                 from [r-1]:1 -> out, to [r+1]:1 chunk 0 span -r+n-2
  recv                           from [r-1]:1 -> out            chunk 0 span max(0, min(min(1, -r+n-1), r-n+3))
";

#[test]
fn a_program_of_the_users_competes_or_is_forced() {
    let user = UserAlgorithm::new(CHAIN, 4, Depth::Each).unwrap_or_else(|refusal| panic!("{refusal}"));
    // In the order of places, but not in the tree.
    assert_eq!(user.level(), Level::Size);
    let with = |allow: &str, level| {
        let (allow, user) = (allow.parse().unwrap(), [user.clone()].to_vec());
        Selection::new(Inputs { allow, user, level, ..inputs(4, Rates::SHARED_MEMORY) })
    };
    let choice = |allow, level| with(allow, level).unwrap().choose(Collective::AllReduce, 64).algorithm;
    // Six messages one after the other are no match for one.
    assert_eq!(choice("", Level::Run), Algorithm::OneShot);
    assert_eq!(choice("all_reduce:user", Level::Size), Algorithm::User);
    assert!(with("all_reduce:user", Level::World).is_err());
    let explained = with("", Level::World).unwrap().explain(Collective::AllReduce, 64);
    let standing = explained.iter().find(|c| c.algorithm == Algorithm::User).unwrap().standing;
    assert_eq!(standing, Standing::NotReproducible);
    let (plain, own) = (inputs(4, Rates::SHARED_MEMORY), [user.clone()].to_vec());
    assert_ne!(plain.fingerprint(), Inputs { user: own, ..plain.clone() }.fingerprint());
}

#[test]
fn every_input_is_in_the_fingerprint() {
    let base = inputs(8, Rates::SHARED_MEMORY);
    let variants = [
        inputs(9, Rates::SHARED_MEMORY),
        inputs(8, Rates::RDMA),
        inputs(8, Rates { gamma_ns_per_byte: 0.016, ..Rates::SHARED_MEMORY }),
        Inputs { max_channels: 4, ..base.clone() },
        Inputs { max_peers: 4, ..base.clone() },
        Inputs { level: Level::Size, ..base.clone() },
        Inputs { allow: "^ring".parse().unwrap(), ..base.clone() },
    ];
    for (index, variant) in variants.iter().enumerate() {
        assert_ne!(variant.fingerprint(), base.fingerprint(), "variant {index}");
    }
    assert_eq!(base.clone().fingerprint(), base.fingerprint());
}
