//! A scenario as it is written.

use ccl_plan::cost::Rates;
use serde::Deserialize;
use toml::{Table, Value};

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Result};
use crate::formula::Protocol;
use crate::host::{Carried, Host};
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
    pub(super) host: Option<HostFile>,
    #[serde(default = "four")]
    pub(super) element_bytes: usize,
    #[serde(default = "one")]
    pub(super) channels: u16,
    #[serde(default = "eight")]
    pub(super) slots: usize,
    pub(super) chunk_bytes: Option<Size>,
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

/// One host whose cores the ranks share; what is left out is as the library assumes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostFile {
    pub(super) cores: u32,
    #[serde(default)]
    pub(super) links: Links,
    #[serde(default)]
    carried: Carried,
    alpha_ns: Option<f64>,
    switch_ns: Option<f64>,
    message_ns: Option<f64>,
    move_ns: Option<f64>,
    call_ns: Option<f64>,
    read_ns: Option<f64>,
    slot_ns_per_byte: Option<f64>,
    first_ns: Option<f64>,
    first_bytes: Option<f64>,
    beta_ns_per_byte: Option<f64>,
    gamma_ns_per_byte: Option<f64>,
    far: Option<f64>,
    far_bytes: Option<f64>,
}

/// How the ranks of a host reach each other.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Links {
    Memory,
    #[default]
    MemoryDirect,
    Loopback,
}

impl HostFile {
    pub(super) fn host(&self) -> Result<Host> {
        let mut host = Host::new(match self.links {
            Links::Memory => Rates::SHARED_MEMORY,
            Links::MemoryDirect => Rates::SHARED_MEMORY_DIRECT,
            Links::Loopback => Rates::LOOPBACK,
        });
        (host.carried, host.rates.cores) = (self.carried, self.cores);
        let rates = &mut host.rates;
        for (value, own) in [
            (self.alpha_ns, &mut rates.alpha_ns),
            (self.switch_ns, &mut rates.switch_ns),
            (self.message_ns, &mut rates.message_ns),
            (self.move_ns, &mut rates.move_ns),
            (self.call_ns, &mut host.call_ns),
            (self.read_ns, &mut host.read_ns),
            (self.slot_ns_per_byte, &mut host.slot_ns_per_byte),
            (self.first_ns, &mut host.first_ns),
            (self.first_bytes, &mut host.first_bytes),
            (self.beta_ns_per_byte, &mut rates.beta_ns_per_byte),
            (self.gamma_ns_per_byte, &mut rates.gamma_ns_per_byte),
            (self.far, &mut rates.far),
            (self.far_bytes, &mut rates.far_bytes),
        ] {
            match value {
                // Written so that what is no number is refused too.
                Some(value) if !(0.0..1e12).contains(&value) => {
                    return Err(Error::usage(
                        format!("expected numbers from 0 on in [host], found {value}"),
                        "times are in nanoseconds",
                    ));
                }
                Some(value) => *own = value,
                None => {}
            }
        }
        Ok(host)
    }
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
            Size::Number(bytes) => return within(*bytes),
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

/// Refuses more bytes than are exact.
pub(super) fn within(bytes: u64) -> Result<u64> {
    if bytes <= MOST_BYTES {
        return Ok(bytes);
    }
    Err(Error::usage(
        format!("expected at most {MOST_BYTES} bytes, of all blocks together, found {bytes}"),
        "no call moves as much",
    ))
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
