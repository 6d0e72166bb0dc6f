//! What can be measured: the collectives, and two patterns of messages.

use std::str::FromStr;

use ccl::Collective;

/// One thing that `ccl perf` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// A collective; never `Send` or `Recv` alone.
    Collective(Collective),
    /// Every rank sends to the next and receives from the one before.
    SendRecv,
    /// A message between ranks 0 and 1, there and back.
    PingPong,
}

impl Operation {
    /// Everything, in the order of the collectives.
    pub(crate) fn all() -> Vec<Operation> {
        let single = |c: &Collective| !c.is_message();
        let collectives = Collective::ALL.into_iter().filter(single).map(Operation::Collective);
        collectives.chain([Operation::SendRecv, Operation::PingPong]).collect()
    }

    /// Our name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Collective(collective) => collective.name(),
            Operation::SendRecv => "sendrecv",
            Operation::PingPong => "pingpong",
        }
    }

    /// The name that the drivers of other libraries use, as in the JSON lines.
    pub(crate) fn peer_name(self) -> &'static str {
        match self {
            Operation::Collective(Collective::AllReduce) => "allreduce",
            Operation::Collective(Collective::AllGather) => "allgather",
            Operation::Collective(Collective::AllToAll) => "alltoall",
            other => other.name(),
        }
    }

    /// Whether the size is that of n blocks, and the count that of one.
    pub(crate) fn in_blocks(self) -> bool {
        use Collective as C;
        let Operation::Collective(collective) = self else { return false };
        let even =
            matches!(collective, C::AllGather | C::ReduceScatter | C::AllToAll | C::Gather | C::Scatter);
        even || collective.uneven()
    }

    /// Whether contributions are combined.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Operation::Collective(collective) if collective.reduces())
    }

    /// Whether one rank is distinguished.
    pub(crate) fn rooted(self) -> bool {
        matches!(self, Operation::Collective(collective) if collective.rooted())
    }

    /// Whether it moves data.
    pub(crate) fn has_data(self) -> bool {
        self != Operation::Collective(Collective::Barrier)
    }

    /// Whether send and receive buffers may be one.
    pub(crate) fn has_in_place(self) -> bool {
        matches!(self, Operation::Collective(_)) && self.has_data()
    }

    /// The fewest ranks it makes sense for.
    pub(crate) fn min_ranks(self) -> u32 {
        if self == Operation::PingPong { 2 } else { 1 }
    }

    /// Calls that one reported time covers: a ping-pong is two messages one after the other.
    pub(crate) fn messages_per_call(self) -> f64 {
        if self == Operation::PingPong { 2.0 } else { 1.0 }
    }

    /// Bus bandwidth ÷ algorithm bandwidth.
    pub(crate) fn bus_factor(self, n: u32) -> f64 {
        let n = f64::from(n);
        match self {
            Operation::Collective(Collective::AllReduce) => 2.0 * (n - 1.0) / n,
            _ if self.in_blocks() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    /// Takes our names, the peers' (`allreduce`), the test programs' (`all_reduce_perf`) and `bcast`.
    fn from_str(text: &str) -> Result<Operation, String> {
        let wanted = plain(text);
        let wanted = wanted.strip_suffix("perf").unwrap_or(&wanted);
        let wanted = if wanted == "bcast" { "broadcast" } else { wanted };
        let known = Operation::all().into_iter().find(|operation| plain(operation.name()) == wanted);
        known.ok_or_else(|| {
            let names: Vec<_> = Operation::all().into_iter().map(Operation::name).collect();
            format!("expected all or some of {}, found `{text}`", names.join(", "))
        })
    }
}

/// The letters of a name.
fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphabetic).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_understood() {
        for operation in Operation::all() {
            assert_eq!(operation.name().parse(), Ok(operation));
            assert_eq!(operation.peer_name().parse(), Ok(operation));
            assert_eq!(format!("{}_perf", operation.name()).parse(), Ok(operation));
        }
        assert_eq!("bcast".parse(), Ok(Operation::Collective(Collective::Broadcast)));
        assert_eq!("ALL-REDUCE".parse(), Ok(Operation::Collective(Collective::AllReduce)));
        assert!("allreduced".parse::<Operation>().is_err());
        assert!("send".parse::<Operation>().is_err());
    }

    #[test]
    fn bus_factors_are_those_of_the_reference() {
        let factor = |name: &str, n| name.parse::<Operation>().unwrap().bus_factor(n);
        assert_eq!(factor("all_reduce", 4), 1.5);
        for name in ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "all_to_all_v"] {
            assert_eq!(factor(name, 4), 0.75, "{name}");
        }
        for name in ["broadcast", "reduce", "sendrecv", "pingpong"] {
            assert_eq!(factor(name, 4), 1.0, "{name}");
        }
        assert_eq!(factor("all_reduce", 1), 0.0);
    }
}
