//! What work takes on a host, from measurements of calls.

use super::{Host, time};
use crate::error::Result;
use crate::job::Job;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What was called.
    pub job: Job,
    /// Where, but for what work takes there.
    pub host: Host,
    /// The time of a call among many that followed each other.
    pub measured_ns: f64,
}

impl Sample {
    /// The host of the sample, where work takes what it takes on another.
    pub fn on(&self, other: &Host) -> Host {
        let mut host = self.host;
        for field in FIELDS {
            let mut other = *other;
            *field(&mut host) = *field(&mut other);
        }
        host
    }

    /// The simulated time of a call where work takes what it takes on `other`, in nanoseconds.
    ///
    /// Fails as [`time`] does.
    pub fn time_ns(&self, other: &Host) -> Result<f64> {
        Ok(time(&self.job, &self.on(other))?.finish_ns)
    }
}

/// What work takes, so that simulated times are near to the measured ones: by the sum of the distances of their
/// logarithms, of which what is beyond a factor e counts an eleventh.
///
/// It starts from `start`, or 100 ns where that has nothing, and tries each number some steps up and down, in turn,
/// with steps that become smaller; so it finds a place from which no single number leads further, the same for the
/// same input. Simulates all samples some hundred times, and returns then.
///
/// Fails as [`time`] does.
pub fn calibrate(samples: &[Sample], start: &Host) -> Result<Host> {
    let distance = |host: &Host| -> Result<f64> {
        let each = samples.iter().map(|sample| {
            let off = (sample.time_ns(host)?.max(1.0) / sample.measured_ns.max(1.0)).ln().abs();
            Ok(off.min(1.0) + off / 10.0)
        });
        each.sum()
    };
    let (mut best, mut strides) = (*start, [FIRST_STRIDE; FIELDS.len()]);
    for field in FIELDS {
        // Nothing multiplies to something.
        let value = field(&mut best);
        *value = if *value > 0.0 { *value } else { FIRST_NS };
    }
    let mut least = distance(&best)?;
    for _ in 0..ROUNDS {
        for (field, stride) in FIELDS.iter().zip(&mut strides) {
            let before = least;
            for factor in [*stride, 1.0 / *stride] {
                for _ in 0..TRIES {
                    let mut tried = best;
                    *field(&mut tried) *= factor;
                    let found = distance(&tried)?;
                    if found > least * ENOUGH {
                        break;
                    }
                    (best, least) = (tried, found);
                }
                if least < before {
                    break;
                }
            }
            if least == before {
                *stride = stride.sqrt();
            }
        }
    }
    Ok(best)
}

type Field = fn(&mut Host) -> &mut f64;

/// What is found out.
const FIELDS: [Field; 13] = [
    |host| &mut host.rates.beta_ns_per_byte,
    |host| &mut host.rates.switch_ns,
    |host| &mut host.rates.message_ns,
    |host| &mut host.rates.alpha_ns,
    |host| &mut host.rates.gamma_ns_per_byte,
    |host| &mut host.rates.far,
    |host| &mut host.rates.far_bytes,
    |host| &mut host.rates.move_ns,
    |host| &mut host.call_ns,
    |host| &mut host.read_ns,
    |host| &mut host.slot_ns_per_byte,
    |host| &mut host.first_ns,
    |host| &mut host.first_bytes,
];
const FIRST_NS: f64 = 100.0;
const FIRST_STRIDE: f64 = 2.0;
const ROUNDS: usize = 6;
/// Steps of a number, one after the other.
const TRIES: usize = 2;
/// A step must gain as much.
const ENOUGH: f64 = 0.9999;
