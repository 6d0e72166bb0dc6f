//! The command line of `ccl perf`.

use std::path::PathBuf;
use std::time::Duration;

use ccl::{Collective, Dtype, Error, Rank, ReduceOp, Result};

use super::geometry::Amount;
use super::measure::Pace;
use super::operation::Operation;
use super::options::{Checking, Format, MemoryKind, Options, Placements, Roots};
use super::overlap::Overlap;
use super::point::{Point, Sizes};
use super::workload::{self, Workload};
use crate::size::{Growth, parse_bytes, range};

/// Measure collectives and messages, and check every element of their results.
///
/// Starts ranks on this machine (-n), or joins those that torchrun, mpirun or srun started. Prints
/// nccl-tests' table or JSON lines. Ends with status 1 if a result was wrong.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// What to measure: all_reduce, all_gather, ..., sendrecv, pingpong, or all
    #[arg(value_name = "OPERATION", value_delimiter = ',')]
    operations: Vec<String>,
    /// The same, as the drivers of other libraries take it
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    coll: Vec<String>,

    /// Ranks to start on this machine; not with a launcher [default: 2]
    #[arg(short, long, visible_alias = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nranks: Option<u32>,
    /// What the ranks are
    #[arg(long, value_name = "WHAT", default_value = "processes")]
    pub(crate) ranks_as: RanksAs,
    /// Do not bind ranks to CPUs; never done where some would have less of a CPU than others
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Start ranks even inside a launcher's job
    #[arg(long, requires = "nranks")]
    pub(crate) no_launcher: bool,

    /// Sizes: the smallest, or the only ones (8,64K,1M) [default: 8]
    #[arg(short = 'b', long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_bytes)]
    minbytes: Vec<u64>,
    /// The largest size; the default if no sizes are given is 64M
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse_bytes)]
    maxbytes: Option<u64>,
    /// Each size is the one before plus this
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "stepfactor")]
    stepbytes: Option<u64>,
    /// Each size is the one before times this [default: 2]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = parse_factor)]
    stepfactor: Option<f64>,
    /// Exact counts of elements instead of sizes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count,
          conflicts_with_all = ["minbytes", "maxbytes", "stepbytes", "stepfactor"])]
    counts: Vec<usize>,

    /// Element types, or all
    #[arg(
        short,
        long,
        visible_alias = "datatype",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "float"
    )]
    dtype: Vec<String>,
    /// Reduce operations, or all
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "sum")]
    op: Vec<String>,
    /// The root, or all
    #[arg(short, long, value_name = "RANK", default_value = "0", value_parser = parse_roots)]
    root: Roots,

    /// Length of the timed loop in seconds [default: 0.1]
    #[arg(short, long, value_name = "SECONDS", value_parser = crate::args::seconds, conflicts_with = "iters")]
    time: Option<Duration>,
    /// Calls in the timed loop; 0 times the one verified call
    #[arg(long, visible_alias = "iterations", value_name = "COUNT")]
    iters: Option<u64>,
    /// Calls before the timed loop
    #[arg(short, long, visible_alias = "warmup_iters", value_name = "COUNT", default_value_t = 5)]
    warmup: u64,
    /// Calls launched together as a group, each on buffers of its own
    #[arg(short = 'G', long, visible_alias = "agg_iters", value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    group: u64,
    /// Check results (1) or not (0)
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Where results go [default: both; with --json: out]
    #[arg(long, value_name = "WHERE")]
    placement: Option<Placements>,
    /// What buffers are made of
    #[arg(long, value_name = "KIND", default_value = "ordinary")]
    pub(crate) memory: MemoryKind,
    /// Put so many calls into a CUDA graph and time its replays; needs --memory device on every rank
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u64).range(1..=1024))]
    graph: Option<u64>,
    /// Suspend the communicator and resume it before each line, which gives device memory back and takes it again
    #[arg(long, conflicts_with_all = ["graph", "workload", "overlap", "levels"])]
    suspend: bool,
    /// What ranks work on: host memory, a CUDA device each (cuda), or all the same one (cuda:K)
    #[arg(long, value_name = "WHERE", default_value = "host")]
    pub(crate) device: Place,
    /// Measure what each level of determinism costs, all in turn on one communicator
    #[arg(long, conflicts_with_all = ["workload", "overlap", "placement", "plot", "group", "memory", "check", "graph"])]
    pub(crate) levels: bool,
    /// The deadline of every wait, in seconds, in place of CCL_TIMEOUT
    #[arg(long, value_name = "SECONDS", value_parser = crate::args::seconds)]
    pub(crate) timeout: Option<Duration>,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Write a plot of bandwidth and time over size
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) workload: workload::Args,
    /// Measure how much slower rank 0 computes while an all-reduce (of 64M, or -b) is under way
    #[arg(long, help_heading = "Training steps", conflicts_with_all = ["workload", "operations", "coll", "maxbytes",
          "counts", "time", "placement", "plot", "group", "root", "warmup"])]
    pub(crate) overlap: bool,
    /// Bytes that the computation goes round in
    #[arg(long, help_heading = "Training steps", value_name = "SIZE", default_value = "32K", value_parser = parse_bytes,
          requires = "overlap")]
    working_set: u64,
}

/// What local ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RanksAs {
    /// Processes of their own
    Processes,
    /// Threads of this process
    Threads,
}

/// What ranks work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// What CCL_DEVICE says: host memory if nothing.
    Host,
    /// A CUDA device each, around the end of them.
    Devices,
    /// One CUDA device for all.
    Device(u32),
}

impl Place {
    /// As CCL_DEVICE has it; nothing leaves that as it is.
    pub(crate) fn setting(self) -> Option<String> {
        match self {
            Place::Host => None,
            Place::Devices => Some("local".to_owned()),
            Place::Device(ordinal) => Some(ordinal.to_string()),
        }
    }
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text.split_once(':') {
            None if text == "host" => Ok(Place::Host),
            None if text == "cuda" => Ok(Place::Devices),
            Some(("cuda", ordinal)) if ordinal.parse::<u32>().is_ok() => {
                Ok(Place::Device(ordinal.parse().unwrap_or_default()))
            }
            _ => Err(format!("expected host, cuda or cuda:K, found `{text}`")),
        }
    }
}

impl Args {
    /// The workload to measure, if one is asked for.
    pub(crate) fn workload(&self) -> Result<Option<Workload>> {
        if !self.workload.is_given() {
            return Ok(None);
        }
        self.workload.workload(workload::Common {
            dtypes: self.dtypes()?,
            reduces: self.reduces()?,
            warm_up: self.warmup,
            iterations: self.iters,
            checking: self.checking(),
            format: self.format(),
        })
    }

    /// The overlap to measure, if it is asked for.
    pub(crate) fn overlap(&self) -> Result<Option<Overlap>> {
        if !self.overlap {
            return Ok(None);
        }
        let (dtype, reduce) = workload::only(&self.dtypes()?, &self.reduces()?)?;
        let operation = Operation::Collective(Collective::AllReduce);
        let bytes = self.minbytes.first().copied().unwrap_or(DEFAULT_MAX_BYTES);
        let amount = Amount::of_bytes(operation, bytes, 1, dtype);
        Ok(Some(Overlap {
            point: Point { operation, dtype, reduce, root: Rank(0), amount },
            working_set_bytes: self.working_set as usize,
            rounds: self.iters.unwrap_or(DEFAULT_ROUNDS).max(1),
            format: self.format(),
        }))
    }

    /// What to measure.
    pub(crate) fn options(&self) -> Result<Options> {
        let default_placements = if self.json { Placements::OutOfPlace } else { Placements::Both };
        Ok(Options {
            operations: self.operations()?,
            sizes: self.sizes()?,
            dtypes: self.dtypes()?,
            reduces: self.reduces()?,
            roots: self.root,
            placements: self.placement.unwrap_or(default_placements),
            checking: self.checking(),
            pace: match (self.iters, self.time) {
                (Some(iterations), _) => Pace::Iterations(iterations),
                (None, time) => Pace::Time(time.unwrap_or(DEFAULT_TIME)),
            },
            warm_up: self.warmup,
            lanes: self.group as usize,
            memory: self.memory,
            graph: self.graph_calls()?,
            suspends: self.suspend,
            format: self.format(),
            plot: self.plot.clone(),
        })
    }

    fn graph_calls(&self) -> Result<Option<u64>> {
        match (self.graph, self.memory) {
            (Some(_), memory) if !memory.is_on_device() => Err(Error::usage(
                format!("expected --memory device beside --graph, found {}", self.memory.name()),
                "graphs hold calls on device memory: add --memory device",
            )),
            (graph, _) => Ok(graph),
        }
    }

    fn dtypes(&self) -> Result<Vec<Dtype>> {
        each(&self.dtype, &Dtype::ALL, dtype, Dtype::name)
    }

    fn reduces(&self) -> Result<Vec<ReduceOp>> {
        each(&self.op, &ReduceOp::ALL, reduce_op, ReduceOp::name)
    }

    fn checking(&self) -> Checking {
        if self.check == 0 { Checking::Off } else { Checking::On }
    }

    fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Table }
    }

    fn operations(&self) -> Result<Vec<Operation>> {
        let names: Vec<_> = self.operations.iter().chain(&self.coll).cloned().collect();
        if names.is_empty() {
            return Err(Error::usage(
                "expected something to measure, found nothing",
                "name it: `ccl perf all_reduce`, `ccl perf -c allreduce,sendrecv`, `ccl perf all`, `ccl perf --workload resnet50`",
            ));
        }
        each(&names, &Operation::all(), |name| name.parse().ok(), Operation::name)
    }

    fn sizes(&self) -> Result<Sizes> {
        if !self.counts.is_empty() {
            return Ok(Sizes::Counts(self.counts.clone()));
        }
        let grows = self.stepbytes.is_some() || self.stepfactor.is_some();
        let is_list = self.minbytes.len() > 1 || (self.minbytes.len() == 1 && self.maxbytes.is_none());
        if is_list && (grows || self.maxbytes.is_some()) {
            return Err(Error::usage(
                format!(
                    "expected all sizes in -b, or one with -e and the growth behind it, found {} in -b",
                    self.minbytes.len()
                ),
                "leave out -e, -f and -i beside a list; give -e to have a range",
            ));
        }
        let growth = match (self.stepbytes, self.stepfactor) {
            (Some(step), _) => Growth::Step(step),
            (None, factor) => Growth::Factor(factor.unwrap_or(2.0)),
        };
        let sizes = match (&self.minbytes[..], self.maxbytes) {
            ([], None) => range(DEFAULT_MIN_BYTES, DEFAULT_MAX_BYTES, growth),
            ([], Some(last)) => range(DEFAULT_MIN_BYTES.min(last), last, growth),
            ([first], Some(last)) => range(*first, last, growth),
            (list, _) => list.to_vec(),
        };
        Ok(Sizes::Bytes(sizes))
    }
}

/// Every item of a list of names; `all` stands for all there are.
fn each<T: Copy>(
    names: &[String],
    all: &[T],
    parse: impl Fn(&str) -> Option<T>,
    shown: impl Fn(T) -> &'static str,
) -> Result<Vec<T>> {
    let mut items = Vec::new();
    for name in names {
        match parse(name) {
            Some(item) => items.push(item),
            None if name == "all" => items.extend_from_slice(all),
            None => {
                let known: Vec<_> = all.iter().copied().map(&shown).collect();
                let cause = format!("expected one of {}, or all, found `{name}`", known.join(", "));
                return Err(Error::usage(cause, "correct the name; lists take commas without spaces"));
            }
        }
    }
    Ok(items)
}

/// A dtype by our name, nccl-tests', or that of a numeric library.
fn dtype(name: &str) -> Option<Dtype> {
    let known = match name.to_ascii_lowercase().as_str() {
        "i8" | "char" => Dtype::I8,
        "u8" | "byte" => Dtype::U8,
        "i32" | "int" => Dtype::I32,
        "u32" => Dtype::U32,
        "i64" => Dtype::I64,
        "u64" => Dtype::U64,
        "f16" | "fp16" | "float16" => Dtype::F16,
        "f32" | "fp32" | "float32" => Dtype::F32,
        "f64" | "fp64" | "float64" => Dtype::F64,
        "bf16" => Dtype::Bf16,
        "fp8_e4m3" | "e4m3" => Dtype::F8E4m3,
        "fp8_e5m2" | "e5m2" => Dtype::F8E5m2,
        other => return other.parse().ok(),
    };
    Some(known)
}

fn reduce_op(name: &str) -> Option<ReduceOp> {
    match name {
        "product" => Some(ReduceOp::Product),
        "average" => Some(ReduceOp::Average),
        other => other.parse().ok(),
    }
}

fn parse_roots(text: &str) -> Result<Roots, String> {
    match text {
        "all" => Ok(Roots::All),
        number => number
            .parse()
            .map(|rank| Roots::One(Rank(rank)))
            .map_err(|_| format!("expected a rank or `all`, found `{text}`")),
    }
}

/// A factor by which sizes grow.
fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 1.0);
    factor.ok_or_else(|| format!("expected a factor above 1, found `{text}`"))
}

/// A count: a number, K and M being binary multiples, plus a number, as in `1M+3`.
fn parse_count(text: &str) -> Result<usize, String> {
    let (base, more) = text.split_once('+').unwrap_or((text, "0"));
    let more: u64 =
        more.parse().map_err(|_| format!("expected a count such as 7, 64K or 1M+3, found `{text}`"))?;
    Ok((parse_bytes(base)? + more) as usize)
}

const DEFAULT_TIME: Duration = Duration::from_millis(100);
const DEFAULT_ROUNDS: u64 = 10;
const DEFAULT_MIN_BYTES: u64 = 8;
const DEFAULT_MAX_BYTES: u64 = 64 << 20;

const AFTER_HELP: &str = "\
Operations: all_reduce reduce broadcast all_gather reduce_scatter all_to_all gather scatter all_gather_v
  reduce_scatter_v all_to_all_v gather_v scatter_v barrier sendrecv pingpong
Types: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2
Reduce operations: sum prod max min avg mulsum
Sizes take K, M, G (binary multiples). In nccl-tests -n is the number of iterations; here it is that of
ranks, as for mpirun, and --iters is that of iterations.

A training step of ResNet-50 on 4 ranks, with up to 2 all-reduces under way, 20 times:
  ccl perf --workload resnet50 -n 4 --in-flight 2 --iterations 20";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Perf {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Options> {
        Perf::try_parse_from(["perf"].into_iter().chain(line.split_whitespace())).unwrap().args.options()
    }

    fn refuses(line: &str) -> bool {
        Perf::try_parse_from(["perf"].into_iter().chain(line.split_whitespace()))
            .map_or(true, |perf| perf.args.options().is_err())
    }

    #[test]
    fn sizes_are_lists_or_ranges() {
        let sizes = |line: &str| parse(&format!("all_reduce {line}")).unwrap().sizes;
        assert_eq!(sizes("-b 8,4K,1M"), Sizes::Bytes(vec![8, 4096, 1 << 20]));
        assert_eq!(sizes("-b 64"), Sizes::Bytes(vec![64]));
        assert_eq!(sizes("-b 8 -e 64 -f 4"), Sizes::Bytes(vec![8, 32]));
        assert_eq!(sizes("-b 1K -e 3K -i 1K"), Sizes::Bytes(vec![1024, 2048, 3072]));
        assert_eq!(sizes("--counts 0,1,1M+3"), Sizes::Counts(vec![0, 1, (1 << 20) + 3]));
        let Sizes::Bytes(default) = sizes("") else { panic!() };
        assert_eq!((default[0], default[23], default.len()), (8, 64 << 20, 24));
    }

    #[test]
    fn the_peers_command_line_is_understood() {
        let options = parse("-c allreduce,pingpong -n 2 -b 8,65536 --json -t 0.3").unwrap();
        assert_eq!(options.operations.len(), 2);
        assert_eq!((options.format, options.placements), (Format::Json, Placements::OutOfPlace));
        assert_eq!(options.pace, Pace::Time(Duration::from_millis(300)));
    }

    #[test]
    fn all_means_all() {
        let options = parse("all -d all -o all -r all --iters 1 -w 0 --check 0").unwrap();
        assert_eq!((options.operations.len(), options.dtypes.len(), options.reduces.len()), (16, 12, 6));
        assert_eq!((options.roots, options.checking), (Roots::All, Checking::Off));
        assert_eq!(options.axes(5).roots.len(), 5);
    }

    #[test]
    fn types_have_their_usual_names() {
        let names = "int8,char,bf16,fp16,float32,f64,e4m3,f8e5m2,uint64";
        assert_eq!(parse(&format!("all_reduce -d {names} -o sum,product,avg")).unwrap().dtypes.len(), 9);
    }

    #[test]
    fn ranks_work_on_the_host_or_on_devices() {
        let options = parse("all_reduce --memory device --graph 4").unwrap();
        assert_eq!((options.memory, options.graph), (MemoryKind::Device, Some(4)));
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("host").unwrap().setting(), None);
        assert_eq!(place("cuda").unwrap().setting().as_deref(), Some("local"));
        assert_eq!(place("cuda:3").unwrap().setting().as_deref(), Some("3"));
        for bad in ["gpu", "cuda:", "cuda:x", "host:1"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "",
            "all_reduced",
            "all_reduce -d float31",
            "all_reduce -o mean",
            "all_reduce -n 0",
            "all_reduce -b 8 --counts 1",
            "all_reduce -b 8,64 -e 1M",
            "all_reduce -b 8,64 -f 4",
            "all_reduce -b 8,64 -i 8",
            "all_reduce -b 8 -f 4",
            "all_reduce -b 8 -e 64 -f 1",
            "all_reduce -b 8 -e 64 -f 0.5",
            "all_reduce -b 8 -e 64 -f nan",
            "all_reduce -b 8 -e 64 -f inf",
            "all_reduce -b 8 -e 64 -f -2",
            "all_reduce --iters 3 -t 1",
            "all_reduce -r -1",
            "all_reduce -G 0",
            "all_reduce --counts 1+x",
            "all_reduce --no-launcher",
            "all_reduce --workload gpt2",
            "--workload gpt2 -b 8",
            "--in-flight 2",
            "--overlap --workload gpt2",
            "--working-set 1M",
            "--list",
            "all_reduce --levels --overlap",
            "all_reduce --graph 1",
            "all_reduce --graph 0 --memory device",
        ] {
            assert!(refuses(line), "{line}");
        }
    }
}
