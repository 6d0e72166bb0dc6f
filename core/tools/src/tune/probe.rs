//! What a class of links costs, from four short measurements: 30 ms together.

use std::time::Duration;

use ccl::exec::{Reach, TunedLink};
use ccl::plan::cost::{Rates, cost};
use ccl::{Algorithm, Collective, Communicator, Dtype, Rank, ReduceOp, Result};

use crate::perf::call::{Call, Lane};
use crate::perf::check::{Check, Lengths};
use crate::perf::geometry::Amount;
use crate::perf::measure::{Pace, Stopwatch};
use crate::perf::operation::Operation;
use crate::perf::point::{Placement, Point};

/// What was measured, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Probes {
    /// One way of a message of 8 bytes between ranks 0 and 1, while the others wait.
    short: f64,
    /// Of one of [`LONG_BYTES`].
    long: f64,
    /// A reduce of as many bytes among all ranks, and a broadcast.
    reduce: f64,
    broadcast: f64,
    /// A barrier of all ranks.
    barrier: f64,
}

/// Measures with the other ranks of `comm`, whose farthest peer is reached so and who share so many cores. `known`
/// is what links cost as far as is known.
pub(super) fn link(comm: &Communicator, (reach, cores): (Reach, u32), known: &Rates) -> Result<TunedLink> {
    let mut lane = [Lane::default()];
    let mut time = |operation: Operation, bytes: u64| -> Result<f64> {
        let amount = Amount::of_bytes(operation, bytes, comm.size(), Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Sum, root: Rank(0), amount };
        let call = Call::new(comm, &point, Placement::OutOfPlace);
        let lengths = Lengths::new(&point, comm.size());
        let check = Check::new(&point, &lengths, (comm.rank(), comm.size()), call.sender());
        lane.iter_mut().for_each(|lane| check.fill(&call.layout, lane));
        let stopwatch = Stopwatch::new(comm, Pace::Time(LOOP), 1);
        let mut best = f64::INFINITY;
        for _ in 0..LOOPS {
            let timing = stopwatch.measure(&call, &mut lane)?;
            best = best.min(timing.map_or(f64::INFINITY, |timing| timing.time.as_secs_f64()));
        }
        Ok(best * 1e9 / operation.messages_per_call())
    };
    let probes = Probes {
        short: time(Operation::PingPong, 8)?,
        long: time(Operation::PingPong, LONG_BYTES)?,
        reduce: time(Operation::Collective(Collective::Reduce), LONG_BYTES)?,
        broadcast: time(Operation::Collective(Collective::Broadcast), LONG_BYTES)?,
        barrier: time(Operation::Collective(Collective::Barrier), 0)?,
    };
    Ok(fit(reach, (comm.size(), cores), known, &probes))
}

/// The rates by which the cost model gives what was measured. What the probes cannot tell apart keeps the
/// proportions of what is known: what of a short message is work, and what its arrival. Ranks that share cores
/// disturb each other's messages, and tell only what sharing costs.
fn fit(reach: Reach, (n, cores): (u32, u32), known: &Rates, probes: &Probes) -> TunedLink {
    let nothing = TunedLink {
        reach,
        alpha_ns: None,
        switch_ns: None,
        message_ns: None,
        move_ns: None,
        beta_ns_per_byte: None,
        gamma_ns_per_byte: None,
    };
    if cores > 0 && n > cores {
        // What the model lacks of a barrier is the taking of turns.
        let own = Rates { switch_ns: 0.0, ..*known };
        let rounds = f64::from(n.next_power_of_two().ilog2());
        let missing = probes.barrier - predicted(&own.on(n, cores), Collective::Barrier, n, 0);
        let switch_ns = missing.max(0.0) / rounds * f64::from(cores) / f64::from(n);
        return TunedLink { switch_ns: Some(switch_ns), ..nothing };
    }
    let scale = probes.short / predicted(&known.on(2, cores), Collective::Send, 2, 8);
    let far = |bytes: u64| 1.0 + known.far * bytes as f64 / (bytes as f64 + known.far_bytes.max(1.0));
    let per_byte = |ns: f64| ns.max(0.0) / (LONG_BYTES as f64 * far(LONG_BYTES));
    TunedLink {
        alpha_ns: Some(known.alpha_ns * scale),
        message_ns: Some(known.message_ns * scale),
        beta_ns_per_byte: Some(per_byte(probes.long - probes.short)),
        gamma_ns_per_byte: Some(per_byte(probes.reduce - probes.broadcast)),
        ..nothing
    }
}

fn predicted(rates: &Rates, collective: Collective, n: u32, bytes: u64) -> f64 {
    let algorithm = match collective {
        Collective::Barrier => Algorithm::Dissemination,
        _ => Algorithm::Direct,
    };
    rates.time_ns(&cost(collective, algorithm, n, bytes, rates, 1), 1).max(1.0)
}

const LONG_BYTES: u64 = 256 << 10;
/// Of a few short loops the fastest counts: whatever disturbs makes them slower.
const LOOP: Duration = Duration::from_millis(1);
const LOOPS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes that two cores of these rates would give.
    fn probes(rates: &Rates, n: u32) -> Probes {
        let (all, pair) = (rates.on(n, 2), rates.on(2, 2));
        let long = |collective| predicted(&all, collective, n, LONG_BYTES);
        Probes {
            short: predicted(&pair, Collective::Send, 2, 8),
            long: predicted(&pair, Collective::Send, 2, LONG_BYTES),
            reduce: long(Collective::Reduce),
            broadcast: long(Collective::Broadcast),
            barrier: predicted(&all, Collective::Barrier, n, 0),
        }
    }

    #[test]
    fn rates_are_found_again() {
        let known = Rates::LOOPBACK;
        let slow = Rates {
            alpha_ns: 2.0 * known.alpha_ns,
            message_ns: 2.0 * known.message_ns,
            switch_ns: 3.0 * known.switch_ns,
            beta_ns_per_byte: 0.5 * known.beta_ns_per_byte,
            channel_beta_ns_per_byte: 0.5 * known.beta_ns_per_byte,
            ..known
        };
        let near = |found: Option<f64>, expected: f64| {
            let found = found.unwrap();
            assert!((found - expected).abs() <= 0.1 * expected, "{found} {expected}");
        };
        let pair = fit(Reach::Loopback, (2, 2), &known, &probes(&slow, 2));
        near(pair.alpha_ns, slow.alpha_ns);
        near(pair.message_ns, slow.message_ns);
        near(pair.beta_ns_per_byte, slow.beta_ns_per_byte);
        assert_eq!(pair.switch_ns, None);
        let crowd = fit(Reach::Loopback, (8, 2), &slow, &probes(&slow, 8));
        near(crowd.switch_ns, slow.switch_ns);
        assert_eq!((crowd.alpha_ns, crowd.beta_ns_per_byte), (None, None));
    }
}
