//! The part of the command line that is about workloads.

use std::path::Path;

use ccl::{Dtype, Error, ReduceOp, Result};

use super::model::Model;
use super::{Workload, buckets};
use crate::perf::options::{Checking, Format};
use crate::size::parse_bytes;

/// Options of `ccl perf --workload`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Training steps")]
#[group(skip)]
pub(crate) struct Args {
    /// Measure the all-reduces of a training step instead: of resnet50, bert-large or gpt2 in the
    /// buckets of PyTorch, or of a FILE with a size on each line
    #[arg(long, value_name = "MODEL|FILE", conflicts_with_all = OTHERS)]
    workload: Option<String>,
    /// How many all-reduces of a step may be under way at a time [default: all]
    #[arg(long, value_name = "COUNT", requires = "workload", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,
    /// Print the bytes of each all-reduce of the step and do nothing else
    #[arg(long, requires = "workload")]
    pub(crate) list: bool,
}

/// What a workload shares with other measurements.
pub(crate) struct Common {
    pub(crate) dtypes: Vec<Dtype>,
    pub(crate) reduces: Vec<ReduceOp>,
    pub(crate) warm_up: u64,
    pub(crate) iterations: Option<u64>,
    pub(crate) checking: Checking,
    pub(crate) format: Format,
}

impl Args {
    /// Whether a workload is what is measured.
    pub(crate) fn is_given(&self) -> bool {
        self.workload.is_some()
    }

    /// The workload, if one is asked for.
    ///
    /// Reads the file, if it is one. Errors: neither a model nor a file of sizes; more than one dtype or
    /// reduce op; no iteration.
    pub(crate) fn workload(&self, common: Common) -> Result<Option<Workload>> {
        let Some(name) = &self.workload else { return Ok(None) };
        let (dtype, reduce) = only(&common.dtypes, &common.reduces)?;
        let iterations = common.iterations.unwrap_or(DEFAULT_ITERATIONS);
        if iterations == 0 {
            let advice = "leave out --iterations, or give it a number from 1 on";
            return Err(Error::usage("expected iterations to time, found 0", advice));
        }
        let bytes = match name.parse::<Model>() {
            Ok(model) => buckets::by_arrival(&model.parameter_counts(), dtype.size_bytes()),
            Err(()) => read(Path::new(name))?,
        };
        let counts: Vec<_> = bytes.iter().map(|bytes| *bytes as usize / dtype.size_bytes()).collect();
        Ok(Some(Workload {
            name: name.clone(),
            dtype,
            reduce,
            in_flight: self.in_flight.map_or(counts.len(), |count| count as usize).max(1),
            counts,
            warm_up: common.warm_up,
            iterations,
            checking: common.checking,
            format: common.format,
        }))
    }
}

/// The only dtype and reduce op. Errors: there are several.
pub(crate) fn only(dtypes: &[Dtype], reduces: &[ReduceOp]) -> Result<(Dtype, ReduceOp)> {
    match (dtypes, reduces) {
        ([dtype], [reduce]) => Ok((*dtype, *reduce)),
        _ => Err(Error::usage(
            format!("expected one dtype and one reduce op, found {} and {}", dtypes.len(), reduces.len()),
            "measure one after the other",
        )),
    }
}

/// Sizes, one on each line; empty lines and what follows a `#` do not count.
fn read(path: &Path) -> Result<Vec<u64>> {
    let wrong = |cause: String| {
        Error::usage(
            cause,
            "name resnet50, bert-large or gpt2, or a file with a size such as 25M on each line",
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        wrong(format!("expected a model or a file to read, found `{}`: {error}", path.display()))
    })?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let sizes = lines.filter(|line| !line.is_empty()).map(parse_bytes).collect::<Result<Vec<_>, _>>();
    match sizes {
        Ok(sizes) if sizes.is_empty() => {
            Err(wrong(format!("expected sizes in {}, found none", path.display())))
        }
        Ok(sizes) => Ok(sizes),
        Err(cause) => Err(wrong(format!("{}: {cause}", path.display()))),
    }
}

const DEFAULT_ITERATIONS: u64 = 10;
/// Options that have no meaning for a workload.
const OTHERS: [&str; 12] = [
    "operations",
    "coll",
    "minbytes",
    "maxbytes",
    "stepbytes",
    "stepfactor",
    "counts",
    "time",
    "placement",
    "plot",
    "group",
    "root",
];
