//! The bytes that the algorithms' descriptions promise, counted.

use ccl_plan::machine::traffic::{Load, Traffic};
use ccl_plan::machine::{Buffers, Case, Stage, walk};
use ccl_plan::{Algorithm, Collective, Plan, Rank};

/// What each rank sends and receives when the vector, or a block, has `count` elements.
fn traffic(collective: Collective, algorithm: Algorithm, n: u32, count: usize) -> Vec<(Load, Load)> {
    let plan = Plan::new(collective, algorithm, n).expect("the algorithm suits");
    let case = Case {
        n,
        count,
        channels: 1,
        chunk_count: 1 << 20,
        grain_count: 1,
        slots: 2,
        root: Rank(0),
        buffers: Buffers::Apart,
        blocks: None,
    };
    let stage = Stage::new(&plan, &case).expect("the plan is sound");
    let traffic = walk(&stage, Traffic::new()).expect("the plan completes").domain;
    (0..n).map(|rank| (traffic.sent(Rank(rank)), traffic.received(Rank(rank)))).collect()
}

#[test]
fn bandwidth_optimal_algorithms_send_no_more_than_they_must() {
    for n in [2, 3, 7, 16] {
        let vector = 1680 * n as usize;
        let block = 1680;
        let least = (u64::from(n) - 1) * 1680;
        let least_of_all = [
            Algorithm::Ring,
            Algorithm::TwoShot,
            Algorithm::Rabenseifner,
            Algorithm::TwoLevel,
            Algorithm::TwoLevelHalving,
        ];
        let swing = u32::is_power_of_two(n).then_some(Algorithm::Swing);
        for algorithm in least_of_all.into_iter().chain(swing) {
            for (sent, received) in traffic(Collective::AllReduce, algorithm, n, vector) {
                assert_eq!((sent.elements, received.elements), (2 * least, 2 * least), "{algorithm} n={n}");
            }
        }
        let doubling = u32::is_power_of_two(n).then_some(Algorithm::RecursiveDoubling);
        let of_blocks = [Algorithm::Ring, Algorithm::Direct, Algorithm::Bruck, Algorithm::Pat];
        for algorithm in of_blocks.into_iter().chain(doubling) {
            for collective in [Collective::AllGather, Collective::ReduceScatter] {
                for (sent, received) in traffic(collective, algorithm, n, block) {
                    assert_eq!(
                        (sent.elements, received.elements),
                        (least, least),
                        "{collective}.{algorithm} n={n}"
                    );
                }
            }
        }
        for (sent, _) in traffic(Collective::AllToAll, Algorithm::Direct, n, block) {
            assert_eq!(sent, Load { messages: u64::from(n) - 1, elements: least });
        }
    }
}

#[test]
fn one_shot_sends_everything_to_everybody_once() {
    for (sent, _) in traffic(Collective::AllReduce, Algorithm::OneShot, 6, 100) {
        assert_eq!(sent, Load { messages: 5, elements: 500 });
    }
}

#[test]
fn chains_pass_the_vector_on_once() {
    let load = traffic(Collective::Broadcast, Algorithm::Ring, 5, 100);
    let sent: Vec<u64> = load.iter().map(|(sent, _)| sent.elements).collect();
    assert_eq!(sent, [100, 100, 100, 100, 0]);
    let load = traffic(Collective::Broadcast, Algorithm::Direct, 5, 100);
    let sent: Vec<u64> = load.iter().map(|(sent, _)| sent.elements).collect();
    assert_eq!(sent, [400, 0, 0, 0, 0]);
}

#[test]
fn trees_carry_the_vector_over_each_edge_once() {
    let load = traffic(Collective::Broadcast, Algorithm::Binomial, 7, 100);
    let sent: Vec<u64> = load.iter().map(|(sent, _)| sent.elements).collect();
    assert_eq!(sent, [300, 0, 100, 0, 200, 0, 0]);
    let load = traffic(Collective::Reduce, Algorithm::Binomial, 7, 100);
    let received: Vec<u64> = load.iter().map(|(_, received)| received.elements).collect();
    assert_eq!(received, [300, 0, 100, 0, 200, 0, 0]);
    for (rank, (sent, _)) in load.iter().enumerate() {
        assert_eq!(*sent, Load { messages: u64::from(rank > 0), elements: if rank > 0 { 100 } else { 0 } });
    }
}

#[test]
fn subtrees_travel_as_one() {
    let load = |messages, elements| Load { messages, elements };
    let gathered = traffic(Collective::Gather, Algorithm::Binomial, 7, 10);
    let sent: Vec<Load> = gathered.iter().map(|(sent, _)| *sent).collect();
    assert_eq!(sent, [(0, 0), (1, 10), (1, 20), (1, 10), (1, 30), (1, 10), (1, 10)].map(|(m, e)| load(m, e)));
    let scattered = traffic(Collective::Scatter, Algorithm::Binomial, 7, 10);
    let received: Vec<Load> = scattered.iter().map(|(_, received)| *received).collect();
    assert_eq!(received, sent);
}
