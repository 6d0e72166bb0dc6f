use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::*;
use crate::cost::{Make, Multicast};
use crate::verify::Depth;

fn inputs(n: u32, rates: Rates) -> Inputs {
    let (allow, user, rules, advice) = (Allow::default(), Vec::new(), Vec::new(), Advice::default());
    Inputs {
        n,
        rates,
        nodes: None,
        max_channels: 8,
        max_message_channels: 8,
        max_peers: 128,
        level: Level::Run,
        allow,
        user,
        rules,
        advice,
    }
}

/// Nodes of so many ranks, with so many links each to the others.
fn among(sizes: &[u32], links: u32, rates: Rates, near: Rates) -> Inputs {
    let nodes = Nodes::new(sizes, near).map(|nodes| nodes.with_links(links));
    Inputs { nodes, ..inputs(sizes.iter().sum(), rates) }
}

/// Links of 200 GB/s between the devices of a node, in place of host memory.
const LINKED: Rates =
    Rates { alpha_ns: 1000.0, beta_ns_per_byte: 0.005, channel_beta_ns_per_byte: 0.02, ..Rates::RDMA };

fn shown(selection: &Selection, collective: Collective) -> String {
    let line = |(bound, choice): &(u64, Choice)| match *bound {
        u64::MAX => format!("else {} x{}", choice.algorithm, choice.channels),
        bound => format!("<= {bound} {} x{}; ", choice.algorithm, choice.channels),
    };
    selection.table(collective).iter().map(line).collect()
}

// long: a row for each table
#[test]
fn golden_tables() {
    let table = |n, rates, collective| shown(&Selection::new(inputs(n, rates)).unwrap(), collective);
    let direct = Rates::SHARED_MEMORY_DIRECT;
    let memory_of_amd = Rates { make: Make::Amd, ..Rates::SHARED_MEMORY };
    let golden = [
        (2, Rates::SHARED_MEMORY, Collective::AllReduce, "<= 16384 one_shot x1; else two_shot x1"),
        (8, Rates::SHARED_MEMORY, Collective::AllReduce, "<= 512 one_shot x1; else two_shot x1"),
        (
            8,
            Rates::SHARED_MEMORY,
            Collective::Broadcast,
            "<= 1024 direct x1; <= 4096 binomial x1; <= 16777216 direct x1; else binomial x1",
        ),
        (
            8,
            direct,
            Collective::Broadcast,
            "<= 1024 direct x1; <= 4096 binomial x1; <= 16777216 direct x1; else binomial x1",
        ),
        (2, direct.on(2, 2), Collective::AllReduce, "<= 16384 one_shot x1; else two_shot x1"),
        (
            8,
            direct.on(8, 8),
            Collective::AllReduce,
            "<= 4096 recursive_doubling x1; <= 65536 rabenseifner x1; <= 4194304 two_shot x1; else ring x1",
        ),
        (
            8,
            direct.on(8, 2),
            Collective::AllReduce,
            "<= 2048 one_shot x1; <= 4096 recursive_doubling x1; <= 32768 two_shot x1; else binomial x1",
        ),
        (8, direct.on(8, 2), Collective::AllGather, "<= 4294967296 direct x1; else ring x1"),
        (8, direct.on(8, 2), Collective::AllToAll, "else direct x1"),
        (
            8,
            direct.on(8, 2),
            Collective::Broadcast,
            "<= 4096 binomial x1; <= 67108864 direct x1; else binomial x1",
        ),
        (8, direct.on(8, 2), Collective::Gather, "<= 8192 binomial x1; else direct x1"),
        // Blocks of 32 KiB and more are read directly.
        (8, direct.on(8, 2), Collective::ReduceScatter, "<= 262143 direct x1; else ring x1"),
        (
            4,
            Rates::LOOPBACK.on(4, 2),
            Collective::AllReduce,
            "<= 32768 recursive_doubling x1; <= 524288 double_tree x1; else ring x1",
        ),
        (8, Rates::LOOPBACK.on(8, 2), Collective::AllReduce, "<= 524288 binomial x1; else ring x1"),
        (8, Rates::LOOPBACK.on(8, 2), Collective::AllGather, "<= 262144 recursive_doubling x1; else ring x1"),
        (
            8,
            Rates::LOOPBACK.on(8, 2),
            Collective::ReduceScatter,
            "<= 524288 recursive_doubling x1; else ring x1",
        ),
        (
            4,
            Rates::LOOPBACK.on(4, 2),
            Collective::AllGather,
            "<= 65536 recursive_doubling x1; <= 524288 direct x1; else ring x1",
        ),
        (
            4,
            Rates::LOOPBACK.on(4, 2),
            Collective::ReduceScatter,
            "<= 262144 recursive_doubling x1; else direct x1",
        ),
        (8, Rates::LOOPBACK.on(8, 2), Collective::AllToAll, "<= 32768 bruck x1; else direct x1"),
        (8, Rates::LOOPBACK.on(8, 2), Collective::Reduce, "<= 4096 direct x1; else binomial x1"),
        // What goes to far cores is dearer there.
        (3, memory_of_amd.on(3, 2), Collective::AllReduce, "<= 8192 one_shot x1; else binomial x1"),
        (
            4,
            memory_of_amd.on(4, 2),
            Collective::AllReduce,
            "<= 4096 one_shot x1; <= 131072 recursive_doubling x1; else binomial x1",
        ),
        // Messages are dearer there, and bytes cheaper.
        (8, Rates::LOOPBACK_AMD.on(8, 2), Collective::AllToAll, "<= 65536 bruck x1; else direct x1"),
        (
            4,
            Rates::LOOPBACK_AMD.on(4, 2),
            Collective::AllGather,
            "<= 65536 recursive_doubling x1; <= 1048576 direct x1; else ring x1",
        ),
        (
            64,
            Rates::SOCKET,
            Collective::AllReduce,
            "<= 512 recursive_doubling x1; <= 32768 recursive_doubling x2; <= 524288 rabenseifner x2; <= 8388608 rabenseifner x4; <= 16777216 two_shot x2; <= 33554432 two_shot x4; <= 134217728 two_shot x2; else ring x2",
        ),
        (
            1024,
            Rates::RDMA,
            Collective::AllReduce,
            "<= 1024 recursive_doubling x1; <= 8192 recursive_doubling x2; <= 65536 recursive_doubling x4; <= 131072 rabenseifner x2; <= 536870912 rabenseifner x4; <= 34359738368 double_tree x4; else ring x4",
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

/// By nodes, their links, and what is between them and in them.
#[test]
// long: one table
fn golden_tables_of_nodes() {
    let memory = Rates::SHARED_MEMORY;
    let golden = [
        (
            &[8; 2][..],
            1,
            (Rates::RDMA, LINKED),
            Collective::AllReduce,
            "<= 1024 recursive_doubling x1; <= 4096 recursive_doubling x2; <= 32768 recursive_doubling x4; <= 65536 binomial x4; else two_level_halving x4",
        ),
        (
            &[8; 2],
            8,
            (Rates::RDMA, LINKED),
            Collective::AllReduce,
            "<= 512 recursive_doubling x1; <= 2048 recursive_doubling x2; <= 262144 recursive_doubling x4; else two_level_halving x4",
        ),
        (
            &[8; 16],
            1,
            (Rates::RDMA, LINKED),
            Collective::AllReduce,
            "<= 1024 recursive_doubling x1; <= 4096 recursive_doubling x2; <= 16384 recursive_doubling x4; <= 32768 double_tree x4; <= 65536 two_level_halving x2; <= 8388608 two_level_halving x4; else ring x4",
        ),
        (
            &[8; 16],
            8,
            (Rates::RDMA, LINKED),
            Collective::AllReduce,
            "<= 1024 recursive_doubling x1; <= 4096 recursive_doubling x2; <= 131072 recursive_doubling x4; else two_level_halving x4",
        ),
        (
            &[8; 16],
            8,
            (Rates::RDMA, LINKED),
            Collective::AllGather,
            "<= 8192 recursive_doubling x1; <= 2097152 recursive_doubling x2; <= 4194304 recursive_doubling x4; <= 8388608 recursive_doubling x2; <= 67108864 recursive_doubling x4; else direct x2",
        ),
        (
            &[8; 16],
            1,
            (Rates::RDMA, memory),
            Collective::AllReduce,
            "<= 8192 recursive_doubling x1; <= 524288 two_level_halving x1; <= 16777216 two_level_halving x2; else ring x2",
        ),
        (
            &[4; 128],
            4,
            (Rates::RDMA, LINKED),
            Collective::AllReduce,
            "<= 1024 recursive_doubling x1; <= 4096 recursive_doubling x2; <= 65536 recursive_doubling x4; else two_level_halving x4",
        ),
        (&[8; 16], 1, (Rates::RDMA, LINKED), Collective::AllToAll, "<= 131072 bruck x1; else direct x1"),
        (
            &[2; 4],
            1,
            (Rates::SOCKET, memory),
            Collective::AllReduce,
            "<= 16384 recursive_doubling x1; <= 131072 two_level_halving x1; else ring x2",
        ),
        (&[2; 4], 1, (Rates::SOCKET, memory), Collective::AllToAll, "else direct x1"),
        (
            &[2; 4],
            1,
            (Rates::SOCKET, memory),
            Collective::Broadcast,
            "<= 128 direct x1; <= 1024 direct x2; <= 524288 binomial x2; else ring x2",
        ),
        (
            &[4, 2],
            1,
            (Rates::SOCKET, memory),
            Collective::AllReduce,
            "<= 16384 recursive_doubling x1; <= 65536 two_level_halving x1; <= 262144 ring x2; <= 2097152 two_level_halving x1; <= 16777216 two_level_halving x2; else ring x2",
        ),
        (
            &[4; 16],
            1,
            (Rates::SOCKET, memory),
            Collective::AllReduce,
            "<= 4096 recursive_doubling x1; <= 524288 two_level_halving x1; <= 1048576 two_level_halving x2; else ring x2",
        ),
        (
            &[4; 16],
            1,
            (Rates::SOCKET, memory),
            Collective::ReduceScatter,
            "<= 16384 recursive_doubling x1; <= 65536 pat x1; <= 262144 pat x2; <= 8388608 ring x2; else ring x4",
        ),
    ];
    let mut wrong = String::new();
    for (sizes, links, (rates, near), collective, expected) in golden {
        let table = shown(&Selection::new(among(sizes, links, rates, near)).unwrap(), collective);
        if table != expected {
            wrong += &format!("{collective} {sizes:?} {links}: {table}\n");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn two_levels_compete_where_nodes_are_known() {
    let chosen = |inputs: Inputs, bytes| Selection::new(inputs).unwrap().choose(Collective::AllReduce, bytes);
    let both = [Algorithm::TwoLevel, Algorithm::TwoLevelHalving];
    let (rates, sizes) = (Rates::RDMA, [8; 64]);
    // One link for all ranks of a node: what is long is best sent by one of them, once around.
    for (links, bytes, algorithm) in [
        (1, 1 << 20, Algorithm::TwoLevelHalving),
        (1, 256 << 20, Algorithm::Ring),
        (8, 64 << 20, Algorithm::TwoLevelHalving),
        (8, 1 << 30, Algorithm::TwoLevelHalving),
    ] {
        let choice = chosen(among(&sizes, links, rates, LINKED), bytes);
        assert_eq!(choice.algorithm, algorithm, "{links} links, {bytes} bytes");
    }
    // Nodes that are none: one, or of one rank each, or of another communicator.
    for sizes in [&[512][..], &[1; 512]] {
        assert!(!both.contains(&chosen(among(sizes, 8, rates, LINKED), 64 << 20).algorithm));
        let flat = Selection::new(inputs(512, rates)).unwrap();
        let known = Selection::new(among(sizes, 8, rates, LINKED)).unwrap();
        Collective::ALL.into_iter().for_each(|c| assert_eq!(known.table(c), flat.table(c)));
    }
    let others = Inputs { n: 510, ..among(&sizes, 8, rates, LINKED) };
    assert!(!both.contains(&chosen(others, 64 << 20).algorithm));
    let standing = |inputs, algorithm| {
        let explained = Selection::new(inputs).unwrap().explain(Collective::AllReduce, 8);
        explained.iter().find(|candidate| candidate.algorithm == algorithm).unwrap().standing
    };
    let uneven = |count| {
        let mut sizes = vec![2; count];
        sizes[0] = 3;
        among(&sizes, 1, rates, LINKED)
    };
    for algorithm in both {
        assert_eq!(standing(inputs(8, rates), algorithm), Standing::NodesUnknown);
        assert_eq!(standing(among(&[8], 1, rates, LINKED), algorithm), Standing::NodesUnknown);
        assert_eq!(standing(uneven(256), algorithm), Standing::Slower);
        assert_eq!(standing(uneven(257), algorithm), Standing::TooManyNodes);
        assert_eq!(standing(among(&[2; 257], 1, rates, LINKED), algorithm), Standing::Slower);
        let size = Inputs { level: Level::Size, ..among(&sizes, 1, rates, LINKED) };
        assert_eq!(standing(size, algorithm), Standing::NotReproducible);
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
    assert_eq!(few.choose(Collective::AllReduce, 1 << 30).algorithm, Algorithm::Binomial);
    assert_eq!(few.choose(Collective::ReduceScatter, 64).algorithm, Algorithm::Direct);
    let selection = Selection::new(Inputs { max_peers: 7, ..size }).unwrap();
    let explained = selection.explain(Collective::AllReduce, 1 << 30);
    let standings: Vec<_> = explained.iter().map(|c| (c.algorithm, c.standing)).collect();
    let expected = [
        (Algorithm::TwoShot, Standing::Chosen),
        (Algorithm::TwoShotTree, Standing::TreeNotNeeded),
        (Algorithm::Ring, Standing::NotReproducible),
        (Algorithm::TwoLevelHalving, Standing::NotReproducible),
        (Algorithm::TwoLevel, Standing::NotReproducible),
        (Algorithm::Swing, Standing::NotReproducible),
        (Algorithm::Rabenseifner, Standing::NotReproducible),
        (Algorithm::DoubleTree, Standing::NotReproducible),
        (Algorithm::Binomial, Standing::OtherOrder),
        (Algorithm::RecursiveDoubling, Standing::OtherOrder),
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
    // At level `size` all sizes fold alike: in the order of ranks where that is possible.
    for n in [3, 5, 8, 24, 64, 600, 1000] {
        for cores in [0, 2] {
            let rates = Rates::SHARED_MEMORY_DIRECT.on(n, cores);
            let selection = Selection::new(Inputs { level: Level::Size, ..inputs(n, rates) }).unwrap();
            for collective in Collective::ALL.into_iter().filter(|collective| collective.reduces()) {
                let order = |choice: &Choice| match choice.algorithm {
                    algorithm if algorithm.level(collective, n) == Level::World => Level::World.name(),
                    Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct => "ranks",
                    algorithm => algorithm.name(),
                };
                let table = selection.table(collective);
                assert!(table.iter().all(|(_, choice)| order(choice) == order(&table[0].1)), "{table:?} {n}");
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

/// Devices whose switch copies what all are sent in calls of more than 2 MiB, where edges follow `simple`.
const COPYING: Rates = Rates { multicast: Multicast::from_bytes_on((2 << 20) + 1), ..Rates::DEVICES };

#[test]
fn golden_tables_of_devices() {
    let (plain, broadcast, all_gather) = (Rates::DEVICES, Collective::Broadcast, Collective::AllGather);
    let golden = [
        // One channel: what it stores once is less to move.
        (8, 1, plain, all_gather, "<= 1048576 direct x1; else ring x1"),
        (8, 1, COPYING, all_gather, "<= 1048576 direct x1; <= 2097152 ring x1; else direct x1"),
        (
            8,
            1,
            plain,
            Collective::AllReduce,
            "<= 2048 one_shot x1; <= 32768 recursive_doubling x1; <= 1048576 two_shot x1; else ring x1",
        ),
        (
            8,
            1,
            COPYING,
            Collective::AllReduce,
            "<= 2048 one_shot x1; <= 32768 recursive_doubling x1; <= 1048576 two_shot x1; <= 2097152 ring x1; else two_shot x1",
        ),
        // As many as there are by default: long calls have all, of which each has enough to do.
        (
            8,
            16,
            plain,
            Collective::AllReduce,
            "<= 2048 one_shot x1; <= 32768 recursive_doubling x1; <= 65536 two_shot x1; <= 131072 two_shot x2; <= 262144 two_shot x4; <= 524288 two_shot x8; <= 16777216 two_shot x16; else ring x16",
        ),
        (
            8,
            16,
            plain,
            Collective::AllToAll,
            "<= 65536 direct x1; <= 131072 direct x2; <= 262144 direct x4; <= 524288 direct x8; else direct x16",
        ),
        (8, 16, plain, Collective::Send, "<= 65536 direct x1; <= 131072 direct x2; else direct x4"),
        // Many: links decide, and only who sends more than it receives gains.
        (
            3,
            32,
            plain,
            all_gather,
            "<= 65536 direct x1; <= 131072 direct x2; <= 262144 direct x4; <= 524288 direct x8; <= 2097152 direct x16; <= 8388608 direct x32; else ring x32",
        ),
        (
            3,
            32,
            COPYING,
            all_gather,
            "<= 65536 direct x1; <= 131072 direct x2; <= 262144 direct x4; <= 524288 direct x8; <= 2097152 direct x16; <= 8388608 direct x32; else ring x32",
        ),
        (
            3,
            32,
            plain,
            broadcast,
            "<= 65536 binomial x1; <= 131072 binomial x2; <= 262144 binomial x4; <= 524288 binomial x8; <= 1048576 binomial x16; <= 4194304 ring x16; else ring x32",
        ),
        (
            3,
            32,
            COPYING,
            broadcast,
            "<= 65536 binomial x1; <= 131072 binomial x2; <= 262144 binomial x4; <= 524288 binomial x8; <= 1048576 binomial x16; <= 2097152 ring x16; <= 8388608 direct x32; else ring x32",
        ),
    ];
    for (n, max_channels, rates, collective, expected) in golden {
        let inputs = Inputs { max_channels, max_message_channels: max_channels.min(4), ..inputs(n, rates) };
        let selection = Selection::new(inputs).unwrap();
        assert_eq!(shown(&selection, collective), expected, "{collective} n={n} x{max_channels}");
    }
}

/// What is said to be stored once is what the cost counts so.
#[test]
fn an_explanation_says_what_a_switch_copies() {
    let selection = Selection::new(inputs(8, COPYING)).unwrap();
    let copied = |collective, bytes| {
        let all = selection.explain(collective, bytes);
        let those = all.iter().filter(|candidate| candidate.multicast);
        let mut names: Vec<&str> = those.map(|candidate| candidate.algorithm.name()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(copied(Collective::Broadcast, 4 << 20), ["direct"]);
    assert_eq!(copied(Collective::Broadcast, 2 << 20), [""; 0]);
    assert_eq!(
        copied(Collective::AllReduce, 4 << 20),
        ["one_shot", "one_shot_tree", "two_shot", "two_shot_tree"]
    );
    assert_eq!(copied(Collective::ReduceScatter, 4 << 20), [""; 0]);
    let of_host = Selection::new(inputs(8, Rates::SHARED_MEMORY)).unwrap();
    assert!(of_host.explain(Collective::Broadcast, 4 << 20).iter().all(|candidate| !candidate.multicast));
}

#[test]
fn every_input_is_in_the_fingerprint() {
    let base = inputs(8, Rates::SHARED_MEMORY);
    let variants = [
        inputs(9, Rates::SHARED_MEMORY),
        inputs(8, Rates::RDMA),
        inputs(8, Rates { gamma_ns_per_byte: 0.016, ..Rates::SHARED_MEMORY }),
        inputs(8, Rates { multicast: Multicast::from_bytes_on(0), ..Rates::SHARED_MEMORY }),
        inputs(8, Rates { multicast: Multicast::from_bytes_on(1), ..Rates::SHARED_MEMORY }),
        inputs(8, Rates { least_channel_bytes: 1, ..Rates::SHARED_MEMORY }),
        inputs(8, Rates { make: Make::Amd, ..Rates::SHARED_MEMORY }),
        Inputs { max_channels: 4, ..base.clone() },
        Inputs { max_message_channels: 4, ..base.clone() },
        Inputs { max_peers: 4, ..base.clone() },
        Inputs { level: Level::Size, ..base.clone() },
        Inputs { allow: "^ring".parse().unwrap(), ..base.clone() },
        among(&[4, 4], 1, base.rates, LINKED),
        among(&[4, 4], 2, base.rates, LINKED),
        among(&[5, 3], 1, base.rates, LINKED),
        among(&[4, 4], 1, base.rates, Rates::RDMA),
        Inputs { advice: advice(&[(8, 64, Algorithm::Ring)]), ..base.clone() },
        Inputs { advice: advice(&[(9, 64, Algorithm::Ring)]), ..base.clone() },
        Inputs { advice: advice(&[(8, 64, Algorithm::Rabenseifner)]), ..base.clone() },
    ];
    let mut seen: Vec<u64> = variants.iter().map(Inputs::fingerprint).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), variants.len());
    for (index, variant) in variants.iter().enumerate() {
        assert_ne!(variant.fingerprint(), base.fingerprint(), "variant {index}");
    }
    assert_eq!(base.clone().fingerprint(), base.fingerprint());
}

#[test]
fn rules_stand_above_the_model_where_they_fit() {
    let rule = |up_to, algorithm, channels| {
        let (collective, choice) = (Collective::AllReduce, Choice { algorithm, channels });
        Rule { collective, from: 0, up_to, choice }
    };
    let rules = vec![
        rule(100_000, Algorithm::Rabenseifner, 2),
        rule(1000, Algorithm::Ring, 64),
        rule(u64::MAX, Algorithm::Bruck, 1),
    ];
    let ruled = Inputs { rules, ..inputs(8, Rates::SHARED_MEMORY) };
    let selection = Selection::new(ruled.clone()).unwrap();
    let plain = Selection::new(inputs(8, Rates::SHARED_MEMORY)).unwrap();
    let choice = |bytes| selection.choose(Collective::AllReduce, bytes);
    assert_eq!(choice(8), Choice { algorithm: Algorithm::Ring, channels: 8 });
    assert_eq!(choice(1000).algorithm, Algorithm::Ring);
    assert_eq!(choice(1001), Choice { algorithm: Algorithm::Rabenseifner, channels: 2 });
    assert_eq!(choice(100_000).algorithm, Algorithm::Rabenseifner);
    // All-reduce has no Bruck's algorithm: the model decides, and so for other collectives.
    for bytes in [100_001, 1 << 20, 1 << 39, u64::MAX] {
        assert_eq!(choice(bytes), plain.choose(Collective::AllReduce, bytes));
    }
    assert_eq!(selection.table(Collective::Broadcast), plain.table(Collective::Broadcast));
    let explained = selection.explain(Collective::AllReduce, 1000);
    assert_eq!((explained[0].algorithm, explained[0].standing), (Algorithm::Ring, Standing::Chosen));
    let one_shot = explained.iter().find(|c| c.algorithm == Algorithm::OneShot).unwrap();
    assert_eq!(one_shot.standing, Standing::RuledOut);
    assert_ne!(selection.inputs().fingerprint(), plain.inputs().fingerprint());
    // What the caller excludes stays excluded, and what a level forbids.
    let wish = Inputs { allow: "^ring".parse().unwrap(), ..ruled.clone() };
    let wish = Selection::new(wish).unwrap();
    assert_eq!(wish.choose(Collective::AllReduce, 64), plain.choose(Collective::AllReduce, 64));
    let level = Selection::new(Inputs { level: Level::Size, ..ruled }).unwrap();
    assert_ne!(level.choose(Collective::AllReduce, 64).algorithm, Algorithm::Ring);
}

#[test]
fn a_rule_says_nothing_of_smaller_sizes_than_it_begins_with() {
    let choice = Choice { algorithm: Algorithm::Rabenseifner, channels: 1 };
    let rule = Rule { collective: Collective::AllReduce, from: 3000, up_to: 5000, choice };
    let ruled = Inputs { rules: vec![rule], ..inputs(8, Rates::SHARED_MEMORY) };
    let selection = Selection::new(ruled.clone()).unwrap();
    let plain = Selection::new(inputs(8, Rates::SHARED_MEMORY)).unwrap();
    for bytes in [3000, 4096, 5000] {
        assert_eq!(selection.choose(Collective::AllReduce, bytes), choice);
    }
    for bytes in [8, 2999, 5001, u64::MAX] {
        let of_model = plain.choose(Collective::AllReduce, bytes);
        assert!(of_model != choice && selection.choose(Collective::AllReduce, bytes) == of_model, "{bytes}");
    }
    let from_first = Inputs { rules: vec![Rule { from: 0, ..rule }], ..ruled.clone() };
    assert_ne!(from_first.fingerprint(), ruled.fingerprint());
}

/// Advice on all-reduce: sizes from, to, and the algorithm.
fn advice(given: &[(u64, u64, Algorithm)]) -> Advice {
    let advised = |&(from, up_to, algorithm): &(u64, u64, Algorithm)| {
        let choice = Choice { algorithm, channels: 3 };
        Advised { collective: Collective::AllReduce, from, up_to, choice, chunk_bytes: 4096 }
    };
    Advice { by: "mine".into(), given: given.iter().map(advised).collect() }
}

#[test]
fn advice_stands_above_rules_and_below_the_callers_wishes() {
    let ring = Choice { algorithm: Algorithm::Ring, channels: 1 };
    let rules = vec![Rule { collective: Collective::AllReduce, from: 0, up_to: 1 << 20, choice: ring }];
    let ruled = Selection::new(Inputs { rules, ..inputs(8, Rates::SHARED_MEMORY) }).unwrap();
    let (rabenseifner, bush) = (Algorithm::Rabenseifner, Algorithm::Bruck);
    let given = advice(&[(1000, 3000, rabenseifner), (4000, 5000, bush), (1 << 22, u64::MAX, rabenseifner)]);
    let advised = ruled.clone().advised(given.clone());
    let choice = |selection: &Selection, bytes| selection.choose(Collective::AllReduce, bytes);
    for bytes in [1000, 2048, 3000, 1 << 22, u64::MAX] {
        assert_eq!(choice(&advised, bytes), Choice { algorithm: rabenseifner, channels: 3 }, "{bytes}");
        assert_eq!(advised.advice_on(Collective::AllReduce, bytes).unwrap().chunk_bytes, 4096);
    }
    // Where it is silent, or names what all-reduce has not, the rule holds.
    for bytes in [8, 999, 3001, 4096, 1 << 20] {
        assert_eq!(choice(&advised, bytes), ring, "{bytes}");
        assert_eq!(advised.advice_on(Collective::AllReduce, bytes), None);
    }
    assert_eq!(advised.table(Collective::Broadcast), ruled.table(Collective::Broadcast));
    let explained = advised.explain(Collective::AllReduce, 2048);
    assert_eq!((explained[0].algorithm, explained[0].standing), (rabenseifner, Standing::Chosen));
    assert!(explained[1..].iter().any(|lost| lost.standing == Standing::AdvisedAgainst));
    let wish = Inputs { allow: "^rabenseifner".parse().unwrap(), ..ruled.inputs().clone() };
    let wish = Selection::new(wish).unwrap().advised(given);
    assert_eq!(choice(&wish, 2048), ring);
}

#[test]
fn a_tuner_may_choose_from_what_fits_and_sees_first_what_would_be_chosen() {
    let ring = Choice { algorithm: Algorithm::Ring, channels: 2 };
    let rules = vec![Rule { collective: Collective::AllReduce, from: 0, up_to: 1 << 20, choice: ring }];
    let wish = Inputs { rules, allow: "^one_shot".parse().unwrap(), ..inputs(8, Rates::SHARED_MEMORY) };
    let selection = Selection::new(wish).unwrap();
    let usable = selection.usable(Collective::AllReduce, &[8, 1 << 20, 1 << 22]);
    for (bytes, usable) in [8, 1 << 20, 1 << 22].into_iter().zip(&usable) {
        let chosen = selection.choose(Collective::AllReduce, bytes);
        assert_eq!((usable[0].algorithm, usable[0].standing), (chosen.algorithm, Standing::Chosen));
        assert!(usable.len() > 2 && usable[1..].iter().all(|one| one.standing == Standing::Slower));
        assert!(usable.iter().all(|one| one.algorithm != Algorithm::OneShot));
    }
    assert_eq!((usable[0][0].algorithm, usable[0][0].channels), (Algorithm::Ring, 2));
}
