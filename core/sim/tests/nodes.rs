//! The cost model of nodes against flows that share their links.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use ccl_plan::cost::{Nodes, Rates};
use ccl_plan::select::{Advice, Inputs, Level, Selection};
use ccl_plan::{Algorithm, Collective};
use ccl_sim::Scenario;

/// Between nodes, and in one.
const FAR: Rates = Rates {
    alpha_ns: 2500.0,
    move_ns: 0.0,
    beta_ns_per_byte: 0.04,
    channel_beta_ns_per_byte: 0.04,
    gamma_ns_per_byte: 1.0 / 80.0,
    ..Rates::RDMA
};
const NEAR: Rates =
    Rates { alpha_ns: 1000.0, beta_ns_per_byte: 0.005, channel_beta_ns_per_byte: 0.005, ..FAR };

/// The same as a scenario.
fn simulated(nodes: u32, per_node: u32, algorithm: Algorithm, bytes: u64) -> f64 {
    let text = format!(
        r#"
engine = "fluid"
collective = "all_reduce"
algorithms = ["{algorithm}"]
ranks = [{}]
bytes = [{bytes}]
channels = 4
[machine]
nodes = {nodes}
devices_per_node = {per_node}
nics_per_node = 1
local = {{ latency_us = 1.0, gb_per_s = 200.0 }}
network = {{ latency_us = 2.5, gb_per_s = 25.0 }}
fabric = {{ kind = "flat" }}
fold_gb_per_s = 80
"#,
        nodes * per_node
    );
    let scenario = Scenario::parse(&text).unwrap();
    scenario.questions()[0].answer().unwrap().time_us
}

/// Five machines, six sizes; what is chosen by the formulas, and what would be without nodes.
#[test]
fn what_is_chosen_is_about_the_fastest_that_is_simulated() {
    let mut most_saved = 0.0_f64;
    for (nodes, per_node) in [(2, 8), (4, 4), (8, 8), (6, 2), (5, 6)] {
        let inputs = Inputs {
            n: nodes * per_node,
            rates: FAR,
            nodes: Nodes::new(&vec![per_node; nodes as usize], NEAR),
            max_channels: 4,
            max_message_channels: 4,
            max_peers: 512,
            level: Level::Run,
            // The bound for it is wide.
            allow: "all_reduce:^swing".parse().unwrap(),
            user: Vec::new(),
            rules: Vec::new(),
            advice: Advice::default(),
        };
        let known = Selection::new(inputs.clone()).unwrap();
        let flat = Selection::new(Inputs { nodes: None, ..inputs }).unwrap();
        for bytes in [256, 16 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20] {
            let mut times: Vec<(Algorithm, f64)> = Vec::new();
            let candidates = known.explain(Collective::AllReduce, bytes);
            for candidate in &candidates {
                let (algorithm, predicted) = (candidate.algorithm, candidate.time_ns / 1e3);
                // The flows of what is far slower take the simulator longest.
                if candidate.time_ns > 4.0 * candidates[0].time_ns || algorithm == Algorithm::Swing {
                    continue;
                }
                let simulated = simulated(nodes, per_node, algorithm, bytes);
                let (least, most) = match algorithm {
                    Algorithm::TwoLevel | Algorithm::TwoLevelHalving => (0.9, 1.05),
                    Algorithm::Ring => (0.9, 1.25),
                    Algorithm::DoubleTree => (0.75, 1.4),
                    Algorithm::Binomial => (0.85, 1.75),
                    _ => (0.85, 1.35),
                };
                let text = format!(
                    "{algorithm} of {bytes} bytes, {nodes} x {per_node}: {predicted:.1} {simulated:.1}"
                );
                assert!((least..=most).contains(&(predicted / simulated)), "{text}");
                times.push((algorithm, simulated));
            }
            let best = times.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
            let (chosen, us) = times[0];
            let before = flat.choose(Collective::AllReduce, bytes).algorithm;
            let saved = simulated(nodes, per_node, before, bytes) / us;
            println!(
                "{nodes} x {per_node}, {bytes} bytes: {chosen} {us:.1} us, {:.2} of the best; {before} takes {saved:.2} times as long",
                us / best
            );
            assert!(us <= 1.1 * best, "{nodes} x {per_node}, {bytes} bytes: {chosen} {us} {times:?}");
            most_saved = most_saved.max(saved);
        }
    }
    assert!(most_saved > 3.0, "{most_saved}");
}
