//! A scenario as it is written.

use serde::Deserialize;
use toml::{Table, Value};

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Result};
use crate::formula::Protocol;
use crate::machine::{Fault, Machine};

/// The file, key by key. What each means is in the manual, `docs/manual/simulator.md`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) engine: Engine,
    pub(super) collective: Option<String>,
    #[serde(default)]
    pub(super) algorithms: Vec<String>,
    #[serde(default)]
    pub(super) series: Vec<SeriesFile>,
    #[serde(default)]
    pub(super) bytes: Vec<Size>,
    #[serde(default)]
    pub(super) block_bytes: Vec<Size>,
    pub(super) ranks: Vec<u32>,
    pub(super) machine: Option<Value>,
    #[serde(default = "four")]
    pub(super) element_bytes: usize,
    #[serde(default = "one")]
    pub(super) channels: u16,
    #[serde(default = "eight")]
    pub(super) slots: usize,
    #[serde(default = "half_a_mebibyte")]
    pub(super) chunk_bytes: Size,
    #[serde(default)]
    pub(super) root: u32,
    #[serde(default)]
    pub(super) fault: Vec<Fault>,
    #[serde(default)]
    pub(super) measured: Vec<MeasuredFile>,
    pub(super) bootstrap: Option<BootstrapFile>,
}

/// How times are worked out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Engine {
    /// Closed formulas of the library's cost model, at the rates of the longest way.
    Formula,
    /// NCCL's model with its constants; knows `ring`, `tree` and `pat`.
    Nccl,
    /// The programs, on links of their own.
    #[default]
    Sweep,
    /// The programs, on shared links.
    Fluid,
}

/// One line of the plot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesFile {
    pub(super) algorithm: String,
    pub(super) label: Option<String>,
    pub(super) engine: Option<Engine>,
    pub(super) protocol: Option<Protocol>,
    pub(super) local_us: Option<f64>,
    pub(super) network_us: Option<f64>,
    pub(super) launch_us: Option<f64>,
}

/// What somebody has measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeasuredFile {
    #[serde(default = "measured")]
    pub(super) label: String,
    pub(super) ranks: u32,
    pub(super) bytes: Size,
    pub(super) time_us: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BootstrapFile {
    /// For each line, the ranks that a root serves; 0 is all.
    pub(super) ranks_per_root: Vec<u32>,
    #[serde(default)]
    pub(super) costs: Bootstrap,
}

/// A number of bytes: `8`, or `"64K"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Size {
    Number(u64),
    Text(String),
}

impl Size {
    pub(super) fn bytes(&self) -> Result<u64> {
        let text = match self {
            Size::Number(bytes) => return Ok(*bytes),
            Size::Text(text) => text,
        };
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let shift = match text[split..].trim().trim_end_matches("iB").trim_end_matches('B') {
            "" => Some(0),
            "K" => Some(10),
            "M" => Some(20),
            "G" => Some(30),
            _ => None,
        };
        let bytes = shift.and_then(|shift| text[..split].parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes.filter(|bytes| *bytes <= MOST_BYTES).ok_or_else(|| {
            Error::usage(
                format!("expected a size such as 8 or \"64K\", found \"{text}\""),
                "K, M and G are binary multiples",
            )
        })
    }
}

/// The machine that a name, or a table with all numbers or with those that differ from a named one, says.
pub(super) fn machine(value: &Value) -> Result<Machine> {
    let named = |name: &str| {
        Machine::named(name).ok_or_else(|| {
            let names: Vec<&str> = Machine::names().collect();
            Error::usage(
                format!("expected a machine ({}), found \"{name}\"", names.join(", ")),
                "or write a table [machine] with its numbers",
            )
        })
    };
    let table = match value {
        Value::String(name) => return named(name),
        Value::Table(table) => table.clone(),
        other => {
            return Err(Error::usage(
                format!("expected a machine's name or table, found {other}"),
                "as in machine = \"summit\"",
            ));
        }
    };
    let mut whole = match table.get("like") {
        Some(Value::String(name)) => Table::try_from(named(name)?).unwrap_or_default(),
        _ => Table::new(),
    };
    whole.extend(table.into_iter().filter(|(key, _)| key != "like"));
    let wrong = |error: toml::de::Error| {
        Error::usage(
            format!("[machine]: {}", error.message()),
            "name a machine to start from with like = \"summit\", or give all its numbers",
        )
    };
    whole.try_into().map_err(wrong)
}

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<File> {
    let wrong = |error: toml::de::Error| {
        Error::usage(
            format!("expected a scenario, found this:\n{error}"),
            "the manual's chapter on the simulator has all keys",
        )
    };
    toml::from_str(text).map_err(wrong)
}

fn measured() -> String {
    "measured".to_owned()
}

fn half_a_mebibyte() -> Size {
    Size::Number(512 << 10)
}

fn one() -> u16 {
    1
}

fn four() -> usize {
    4
}

fn eight() -> usize {
    8
}

/// More than any call moves, and exact as a float.
const MOST_BYTES: u64 = 1 << 50;
