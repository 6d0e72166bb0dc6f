//! Engine S0: closed formulas.
//!
//! [`ccl_plan::cost`] has a formula for every algorithm of the library, on links that are all alike. What
//! is here is the model that NCCL chooses by, for machines of nodes, with its published constants; it is
//! what others compare with.
//!
//! Source: NCCL, `src/graph/tuning.cc` (version 2.23), which is under the Apache license 2.0 with LLVM
//! exceptions; the constants only.

use std::fmt;

use serde::Deserialize;

/// A way in which NCCL moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// A ring over all devices.
    Ring,
    /// Chains in the nodes, a double binary tree over the nodes.
    Tree,
    /// PAT, one device per node.
    Pat,
}

/// How NCCL marks data as ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A flag beside every 4 bytes.
    Ll,
    /// A flag in every 128 bytes.
    Ll128,
    /// A fence, then a flag.
    Simple,
}

/// NCCL's constants for one scheme and protocol, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constants {
    /// For a call.
    pub base_us: f64,
    /// For a hop inside of a node.
    pub local_us: f64,
    /// For a hop between nodes.
    pub network_us: f64,
}

impl Constants {
    /// NCCL's own.
    pub const fn nccl(scheme: Scheme, protocol: Protocol) -> Constants {
        let (base_us, local_us, network_us) = match (scheme, protocol) {
            // A step of a ring costs at least what the network's proxy needs, 1 µs, and three times that
            // with fences.
            (Scheme::Ring, Protocol::Ll) => (6.6, 1.0, 2.7),
            (Scheme::Ring, Protocol::Ll128) => (14.0, 1.9, 4.0),
            (Scheme::Ring, Protocol::Simple) => (8.4, 3.4, 14.0),
            (Scheme::Tree, Protocol::Ll) => (6.8, 0.6, 5.0),
            (Scheme::Tree, Protocol::Ll128) => (14.0, 1.25, 8.5),
            (Scheme::Tree, Protocol::Simple) => (8.4, 4.0, 14.0),
            // PAT's hops are taken at 1/3.5 of the 14 µs, and every rank adds its share of local work.
            (Scheme::Pat, _) => (8.0, 2.8, 4.0),
        };
        Constants { base_us, local_us, network_us }
    }

    /// The time of a small all-reduce, or all-gather for PAT, on `nodes` nodes of so many devices.
    pub fn latency_us(&self, scheme: Scheme, nodes: u32, devices_per_node: u32) -> f64 {
        let (nodes_f, local) = (f64::from(nodes), f64::from(devices_per_node));
        let Constants { base_us, local_us, network_us } = *self;
        let levels = f64::from(nodes.max(1).ilog2());
        base_us
            + match scheme {
                Scheme::Ring => {
                    let between = if nodes > 1 { 2.0 * (nodes_f - 1.0) } else { 0.0 };
                    let all = 2.0 * (nodes_f * local - 1.0);
                    (all - between) * local_us + between * network_us
                }
                Scheme::Tree => 2.0 * ((local - 1.0) * local_us + levels * network_us),
                Scheme::Pat => levels * network_us + nodes_f * local_us,
            }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scheme::Ring => "ring",
            Scheme::Tree => "tree",
            Scheme::Pat => "pat",
        })
    }
}

/// a and b of the straight line a + b·x that is nearest to the points, by the squares of the distances.
pub fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len().max(1) as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let along: f64 = points.iter().map(|p| (p.0 - x) * (p.0 - x)).sum();
    let slope =
        points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / if along > 0.0 { along } else { 1.0 };
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_latencies_on_summit() {
        let us = |scheme, protocol, devices: u32| {
            Constants::nccl(scheme, protocol).latency_us(scheme, devices / 6, 6)
        };
        let sizes = [96, 768, 6144, 24_576];
        let rows = [
            (Scheme::Ring, Protocol::Ll, [248.0, 1972.0, 15_771.0, 63_080.0]),
            (Scheme::Tree, Protocol::Ll, [53.0, 83.0, 113.0, 133.0]),
            (Scheme::Tree, Protocol::Simple, [160.0, 244.0, 328.0, 384.0]),
        ];
        for (scheme, protocol, published) in rows {
            for (devices, published) in sizes.into_iter().zip(published) {
                let found = us(scheme, protocol, devices);
                assert!((found - published).abs() < 1.0, "{scheme} {devices}: {found} {published}");
            }
        }
    }

    #[test]
    fn published_bars_of_pat() {
        for (n, published_us) in [(64, 211.0), (512, 1478.0), (4096, 11_500.0)] {
            let found = Constants::nccl(Scheme::Pat, Protocol::Simple).latency_us(Scheme::Pat, n, 1);
            assert!((found / published_us - 1.0).abs() < 0.003, "{n}: {found} {published_us}");
        }
    }

    #[test]
    fn a_line_through_points_on_a_line() {
        let points = [1.0, 2.0, 5.0].map(|x| (x, 3.0 + 0.5 * x));
        let (a, b) = fit(&points);
        assert!((a - 3.0).abs() < 1e-12 && (b - 0.5).abs() < 1e-12);
    }
}
