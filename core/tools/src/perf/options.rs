//! What to measure, resolved: no option left open, nothing that depends on text.

use std::path::PathBuf;
use std::time::Duration;

use ccl::{Dtype, Rank, ReduceOp};

use super::measure::Pace;
use super::operation::Operation;
use super::point::{Axes, Sizes};

/// A run of `ccl perf`, the same on every rank.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// What to measure, in order.
    pub(crate) operations: Vec<Operation>,
    /// How much.
    pub(crate) sizes: Sizes,
    /// Element types.
    pub(crate) dtypes: Vec<Dtype>,
    /// Reduce operations.
    pub(crate) reduces: Vec<ReduceOp>,
    /// Roots.
    pub(crate) roots: Roots,
    /// Out of place, in place, or both.
    pub(crate) placements: Placements,
    /// Whether results are checked.
    pub(crate) checking: Checking,
    /// How long to measure.
    pub(crate) pace: Pace,
    /// Calls before the timed ones.
    pub(crate) warm_up: u64,
    /// Calls launched together.
    pub(crate) lanes: usize,
    /// What buffers are made of.
    pub(crate) memory: MemoryKind,
    /// Calls in a graph that is replayed, if one is.
    pub(crate) graph: Option<u64>,
    /// Whether the communicator is suspended and resumed before each row.
    pub(crate) suspends: bool,
    /// What is printed.
    pub(crate) format: Format,
    /// Where the plot goes.
    pub(crate) plot: Option<PathBuf>,
}

/// Which ranks are root in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// One.
    One(Rank),
    /// Every rank.
    All,
}

/// Which placements are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placements {
    /// Out of place only
    #[value(name = "out")]
    OutOfPlace,
    /// In place only, where there is such a thing
    #[value(name = "in")]
    InPlace,
    /// Both
    Both,
}

/// What buffers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MemoryKind {
    /// Any memory of the process
    Ordinary,
    /// The library's, registered so that the other ranks map it
    Mapped,
    /// The rank's device's; calls are put on a stream
    Device,
    /// The same, registered so that all ranks reach it
    Window,
    /// The same, mapped in pieces of 2 MiB or so, as allocators whose segments grow do it
    Pieces,
}

/// Whether results are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checking {
    /// Every element.
    On,
    /// Nothing.
    Off,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// nccl-tests' table.
    Table,
    /// A JSON object per line.
    Json,
}

impl MemoryKind {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MemoryKind::Ordinary => "ordinary",
            MemoryKind::Mapped => "mapped",
            MemoryKind::Device => "device",
            MemoryKind::Window => "window",
            MemoryKind::Pieces => "pieces",
        }
    }

    /// Whether it is a device's.
    pub(crate) fn is_on_device(self) -> bool {
        self == MemoryKind::Device || self.is_registered_by_all()
    }

    /// Whether all ranks register it together.
    pub(crate) fn is_registered_by_all(self) -> bool {
        matches!(self, MemoryKind::Window | MemoryKind::Pieces)
    }
}

impl Options {
    /// The axes of the run among n ranks.
    pub(crate) fn axes(&self, n: u32) -> Axes {
        let roots = match self.roots {
            Roots::One(root) => vec![root],
            Roots::All => (0..n).map(Rank).collect(),
        };
        Axes { dtypes: self.dtypes.clone(), reduces: self.reduces.clone(), roots, sizes: self.sizes.clone() }
    }

    /// How many points there are among n ranks.
    pub(crate) fn point_count(&self, n: u32) -> usize {
        let axes = self.axes(n);
        self.operations(n).iter().map(|operation| axes.points(*operation, n).len()).sum()
    }

    /// The parameters in a line.
    pub(crate) fn describe(&self, n: u32) -> String {
        let (first, last) = self.sizes.ends();
        let pace = match self.pace {
            Pace::Iterations(iterations) => format!("iters: {iterations}"),
            Pace::Time(time) => format!("time: {} s", Duration::as_secs_f64(&time)),
        };
        let validation = u8::from(self.checking == Checking::On);
        format!(
            "nRanks {n} {} {first} {} {last} warmup iters: {} {pace} agg iters: {} validation: {validation} memory: {}{}",
            self.sizes.names().0,
            self.sizes.names().1,
            self.warm_up,
            self.lanes,
            self.memory.name(),
            self.graph.map_or(String::new(), |calls| format!(" graph: {calls}")),
        )
    }
}
