//! Scenarios: questions to the simulator, as a file that people write.
//!
//! ```
//! use ccl_sim::Scenario;
//!
//! let scenario = Scenario::parse(
//!     r#"
//!     collective = "all_reduce"
//!     algorithms = ["ring", "double_tree"]
//!     ranks = [96, 768]
//!     bytes = [8]
//!     machine = "summit"
//!     "#,
//! )
//! .unwrap();
//! let points: Vec<_> = scenario.questions().iter().map(|q| q.answer().unwrap()).collect();
//! assert_eq!(points.len(), 4);
//! assert!(points.iter().all(|point| point.time_us > 0.0));
//! ```

mod file;

use ccl_plan::cost::{Make, Multicast, Rates, cost, cost_by_nodes, sends_to_all};
use ccl_plan::machine::{Buffers, Case};
use ccl_plan::{Algorithm, Channel, Collective, Place, Plan, Rank, Shape, algorithms};

pub use self::file::Engine;
use self::file::{File, SeriesFile};
use crate::bootstrap::Bootstrap;
use crate::error::{Error, Result};
use crate::fluid::fluid_by_switch;
use crate::formula::{Constants, Protocol, Scheme};
use crate::host::{self, Host};
use crate::job::Job;
use crate::machine::{Fault, Machine};
use crate::network::Network;
use crate::sweep::{Clocks, Costs, sweep};

/// What is asked, and what is known already.
#[derive(Clone, Debug)]
pub struct Scenario {
    title: String,
    questions: Vec<Question>,
    measured: Vec<Point>,
}

/// One point to work out.
#[derive(Clone, Debug)]
pub struct Question {
    label: String,
    ranks: u32,
    bytes: u64,
    how: How,
}

/// A time.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Which line it is on.
    pub series: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Bytes of the vector, or of all blocks.
    pub bytes: u64,
    /// When the last rank is done.
    pub time_us: f64,
    /// Bus bandwidth in 10⁹ bytes per second; 0 where nothing is moved.
    pub bus_gb_per_s: f64,
    /// Steps whose time was worked out; 0 for formulas and measurements.
    pub steps: u64,
}

#[derive(Clone, Debug)]
enum How {
    Bootstrap { costs: Bootstrap, ranks_per_root: u32 },
    Nccl { scheme: Scheme, constants: Constants, machine: Machine },
    Plan(Box<Setting>),
}

/// What the engines that know plans need.
#[derive(Clone, Debug)]
struct Setting {
    engine: Engine,
    collective: Collective,
    algorithm: Algorithm,
    machine: Machine,
    faults: Vec<Fault>,
    element_bytes: usize,
    channels: u16,
    slots: usize,
    chunk_bytes: u64,
    root: Rank,
    /// Where all ranks are on one host and share its cores.
    host: Option<Host>,
}

impl Scenario {
    /// The scenario that a TOML text describes.
    ///
    /// Fails on unknown keys and on values that make no sense, and says what to write instead.
    pub fn parse(text: &str) -> Result<Scenario> {
        let file = file::parse(text)?;
        let asks = Asks::new(&file)?;
        let mut questions = asks.bootstrap();
        for series in asks.series() {
            for ranks in file.ranks.iter().copied() {
                for bytes in asks.bytes(ranks)? {
                    questions.push(asks.question(&series, ranks, bytes)?);
                }
            }
        }
        if questions.is_empty() {
            return Err(Error::usage(
                "expected something to work out, found no algorithms, ranks or bytes",
                "give collective, algorithms, ranks, and bytes or block_bytes; or a table [bootstrap]",
            ));
        }
        let collective = asks.collective;
        let measured = file.measured.iter().map(|m| {
            let (bytes, time_us) = (m.bytes.bytes()?, positive("time_us", m.time_us)?);
            let bus_gb_per_s = collective.map_or(0.0, |c| bus_gb_per_s(c, m.ranks, bytes, time_us));
            Ok(Point { series: m.label.clone(), ranks: m.ranks, bytes, time_us, bus_gb_per_s, steps: 0 })
        });
        Ok(Scenario { measured: measured.collect::<Result<_>>()?, title: file.title, questions })
    }

    /// What it is about.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What is to be worked out, in the order in which it is to be shown.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// What the file says was measured.
    pub fn measured(&self) -> &[Point] {
        &self.measured
    }
}

impl Question {
    /// Works it out.
    pub fn answer(&self) -> Result<Point> {
        let Question { label, ranks, bytes, how } = self;
        let (mut bus_gb, mut steps) = (0.0, 0);
        let time_us = match how {
            How::Bootstrap { costs, ranks_per_root } => {
                let roots = if *ranks_per_root == 0 { 1 } else { ranks.div_ceil(*ranks_per_root) };
                costs.time_us(*ranks, roots)
            }
            How::Nccl { scheme, constants, machine } => {
                constants.latency_us(*scheme, machine.nodes, machine.devices_per_node)
            }
            How::Plan(setting) => {
                let (time_ns, all_steps) = setting.time_ns(*ranks, *bytes)?;
                let time_us = time_ns / 1e3 + setting.machine.launch_us;
                bus_gb = bus_gb_per_s(setting.collective, *ranks, *bytes, time_us);
                steps = all_steps;
                time_us
            }
        };
        let (ranks, bytes) = (*ranks, *bytes);
        Ok(Point { series: label.clone(), ranks, bytes, time_us, bus_gb_per_s: bus_gb, steps })
    }
}

impl Setting {
    /// The time of a call, and the steps that were swept.
    fn time_ns(&self, n: u32, bytes: u64) -> Result<(f64, u64)> {
        if let Some(host) = &self.host {
            let swept = host::time(&self.job(n, bytes)?, host)?;
            return Ok((swept.finish_ns, swept.steps));
        }
        let network = Network::new(&self.machine, &self.faults, self.channels)?;
        let gamma = 1.0 / self.machine.fold_gb_per_s;
        let copies = self.machine.multicast && self.machine.nodes == 1;
        if self.engine == Engine::Formula {
            let link = network.link(Rank(0), Rank(n.saturating_sub(1)), Channel(0));
            let rates = Rates {
                alpha_ns: link.alpha_ns,
                move_ns: 0.0,
                beta_ns_per_byte: link.beta_ns_per_byte / f64::from(self.channels),
                channel_beta_ns_per_byte: link.beta_ns_per_byte,
                gamma_ns_per_byte: gamma,
                workers: self.channels,
                chunk_bytes: self.chunk_bytes,
                least_channel_bytes: 0,
                switch_ns: 0.0,
                turn_ns: 0.0,
                message_ns: 0.0,
                far: 0.0,
                far_bytes: 1.0,
                cores: 0,
                pulls: false,
                shares: false,
                multicast: if copies { Multicast::from_bytes_on(0) } else { Multicast::NONE },
                make: Make::Other,
            };
            let cost = match self.goes_by_nodes(n) {
                true => {
                    let nodes = (n, self.machine.devices_per_node);
                    cost_by_nodes(self.algorithm, nodes, bytes, &rates, self.channels)
                }
                false => cost(self.collective, self.algorithm, n, bytes, &rates, self.channels),
            };
            return Ok((rates.time_ns(&cost, self.channels), 0));
        }
        let copies = copies && sends_to_all(self.collective, self.algorithm, n);
        let job = self.job(n, bytes)?;
        let swept = match self.engine {
            Engine::Fluid => {
                let route = |from, to, channel| network.route(from, to, channel);
                let to_all = |from, channel| network.route_to_all(from, channel).filter(|_| copies);
                fluid_by_switch(&job, (route, to_all), gamma, &network.gb_per_s())?
            }
            _ if copies => {
                return Err(Error::usage(
                    format!(
                        "expected the engine fluid for {}.{} by a switch that copies, found sweep",
                        self.collective, self.algorithm
                    ),
                    "what a switch copies shares the links of its receivers, which a sweep does not know; or set \
                     multicast = false",
                ));
            }
            _ => {
                let link = |from, to, channel| network.link(from, to, channel);
                sweep(&job, &Costs { link, gamma_ns_per_byte: gamma }, Clocks::Shared)?
            }
        };
        Ok((swept.finish_ns, swept.steps))
    }

    /// Whether the plan is that for the machine's nodes.
    fn goes_by_nodes(&self, n: u32) -> bool {
        self.algorithm.is_two_level() && self.host.is_none() && n > self.machine.devices_per_node
    }

    fn job(&self, n: u32, bytes: u64) -> Result<Job> {
        let Setting { collective, algorithm, .. } = *self;
        let plan = Plan::new(collective, algorithm, n).ok_or_else(|| {
            let most = algorithm.most_ranks(collective);
            Error::usage(
                format!("expected 1 to {most} ranks for {collective}.{algorithm}, found {n}"),
                "take fewer ranks or another algorithm",
            )
        })?;
        let per_node = self.machine.devices_per_node;
        let plan =
            if self.goes_by_nodes(n) { plan.clone().with_bundle(per_node).unwrap_or(plan) } else { plan };
        let role = plan.role(Place(n / 2), Place(self.root.0));
        let widest = plan.program_of(role).check(n).map_or(1, |program| program.widest());
        let elements = bytes as usize / self.element_bytes;
        let blocks = collective.input() != Shape::Whole && collective != Collective::Barrier;
        let case = Case {
            n,
            count: if blocks { (elements / n as usize).max(1) } else { elements },
            channels: self.channels,
            chunk_count: (self.chunk_bytes as usize / self.element_bytes / widest).max(1),
            grain_count: (GRAIN_BYTES / self.element_bytes).max(1),
            slots: self.slots,
            root: self.root,
            buffers: Buffers::Apart,
            blocks: None,
        };
        Job::new(&plan, &case, self.element_bytes)
    }
}

/// A file that has been looked over.
struct Asks<'a> {
    file: &'a File,
    collective: Option<Collective>,
    machine: Option<Machine>,
    host: Option<Host>,
    sizes: Vec<u64>,
    chunk_bytes: Option<u64>,
}

impl<'a> Asks<'a> {
    fn new(file: &'a File) -> Result<Asks<'a>> {
        let sizes = if file.bytes.is_empty() { &file.block_bytes } else { &file.bytes };
        if !file.bytes.is_empty() && !file.block_bytes.is_empty() {
            return Err(Error::usage("expected bytes or block_bytes, found both", "leave one out"));
        }
        let counts = [file.element_bytes, usize::from(file.channels), file.slots];
        if counts.contains(&0) || file.ranks.contains(&0) {
            return Err(Error::usage(
                "expected 1 or more for ranks, element_bytes, channels and slots, found 0",
                "leave out what should have its default",
            ));
        }
        let collective = file.collective.as_deref().map(|name| {
            let names = Collective::ALL.map(Collective::name).join(", ");
            let wrong = || {
                Error::usage(
                    format!("expected a collective ({names}), found \"{name}\""),
                    "choose one of these",
                )
            };
            name.parse::<Collective>().map_err(|_| wrong())
        });
        Ok(Asks {
            collective: collective.transpose()?,
            machine: file.machine.as_ref().map(file::machine).transpose()?,
            sizes: sizes.iter().map(file::Size::bytes).collect::<Result<_>>()?,
            host: file.host.as_ref().map(file::HostFile::host).transpose()?,
            chunk_bytes: file.chunk_bytes.as_ref().map(file::Size::bytes).transpose()?,
            file,
        })
    }

    /// The lines, one for each algorithm where the file has only names.
    fn series(&self) -> Vec<SeriesFile> {
        let plain = |algorithm: &String| SeriesFile {
            algorithm: algorithm.clone(),
            label: None,
            engine: None,
            protocol: None,
            local_us: None,
            network_us: None,
            launch_us: None,
        };
        self.file.algorithms.iter().map(plain).chain(self.file.series.iter().cloned()).collect()
    }

    fn bytes(&self, ranks: u32) -> Result<Vec<u64>> {
        let times = if self.file.bytes.is_empty() { u64::from(ranks) } else { 1 };
        self.sizes.iter().map(|bytes| file::within(bytes.saturating_mul(times))).collect()
    }

    fn bootstrap(&self) -> Vec<Question> {
        let Some(bootstrap) = &self.file.bootstrap else { return Vec::new() };
        let lines = bootstrap.ranks_per_root.iter().flat_map(|per_root| {
            let label = match per_root {
                0 => "one root".to_owned(),
                per_root => format!("a root for {per_root} ranks"),
            };
            let how = How::Bootstrap { costs: bootstrap.costs, ranks_per_root: *per_root };
            self.file.ranks.iter().map(move |ranks| Question {
                label: label.clone(),
                ranks: *ranks,
                bytes: 0,
                how: how.clone(),
            })
        });
        lines.collect()
    }

    fn question(&self, series: &SeriesFile, ranks: u32, bytes: u64) -> Result<Question> {
        let label = series.label.clone().unwrap_or_else(|| series.algorithm.clone());
        let machine = self.machine_of(series, ranks)?;
        let engine = series.engine.unwrap_or(self.file.engine);
        if self.host.is_some()
            && (self.machine.is_some() || engine != Engine::Sweep || !self.file.fault.is_empty())
        {
            return Err(Error::usage(
                "expected nothing beside [host], found a machine, faults or another engine",
                "ranks that share cores are swept, on one host",
            ));
        }
        let how = if engine == Engine::Nccl {
            let scheme = match series.algorithm.as_str() {
                "ring" => Scheme::Ring,
                "tree" => Scheme::Tree,
                "pat" => Scheme::Pat,
                other => {
                    return Err(Error::usage(
                        format!("expected ring, tree or pat for the engine nccl, found \"{other}\""),
                        "take another engine for the library's own algorithms",
                    ));
                }
            };
            let constants = Constants::nccl(scheme, series.protocol.unwrap_or(Protocol::Ll));
            How::Nccl { scheme, constants: series.constants(constants), machine }
        } else {
            How::Plan(Box::new(self.setting(series, engine, machine)?))
        };
        Ok(Question { label, ranks, bytes, how })
    }

    fn setting(&self, series: &SeriesFile, engine: Engine, machine: Machine) -> Result<Setting> {
        let Some(collective) = self.collective else {
            return Err(Error::usage(
                "expected a collective, found none",
                "add a line such as collective = \"all_reduce\"",
            ));
        };
        let known = algorithms(collective);
        let algorithm = series.algorithm.parse().ok().filter(|algorithm| known.contains(algorithm));
        let algorithm = algorithm.ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|algorithm| algorithm.name()).collect();
            Error::usage(
                format!(
                    "expected an algorithm for {collective} ({}), found \"{}\"",
                    names.join(", "),
                    series.algorithm
                ),
                "choose one of these",
            )
        })?;
        let own_chunk = self.host.map(|host| host.rates.chunk_bytes);
        let root = Rank(self.file.root);
        if root.0 >= machine.ranks() {
            return Err(Error::usage(
                format!("expected a root below {}, found {root}", machine.ranks()),
                "ranks are numbered from 0",
            ));
        }
        Ok(Setting {
            engine,
            collective,
            algorithm,
            machine,
            faults: self.file.fault.clone(),
            element_bytes: self.file.element_bytes,
            channels: self.file.channels,
            slots: self.file.slots,
            chunk_bytes: self.chunk_bytes.or(own_chunk).unwrap_or(HALF_A_MEBIBYTE),
            root,
            host: self.host,
        })
    }

    /// The machine with so many ranks, and with what the line says of its latencies.
    fn machine_of(&self, series: &SeriesFile, ranks: u32) -> Result<Machine> {
        let own = self.host.map(|_| Machine::one_node(ranks));
        let Some(machine) = self.machine.as_ref().or(own.as_ref()) else {
            return Err(Error::usage(
                "expected a machine, found none",
                "add a line such as machine = \"summit\", or a table [host]",
            ));
        };
        let mut machine = machine.with_ranks(ranks).ok_or_else(|| {
            Error::usage(
                format!(
                    "expected whole nodes of {} ranks, or less than one, found {ranks} ranks",
                    machine.devices_per_node
                ),
                "give multiples in ranks, or set devices_per_node in [machine]",
            )
        })?;
        for (value, own) in [
            (series.local_us, &mut machine.local.latency_us),
            (series.network_us, &mut machine.network.latency_us),
            (series.launch_us, &mut machine.launch_us),
        ] {
            if let Some(value) = value {
                *own = positive("a latency", value)?;
            }
        }
        Ok(machine)
    }
}

impl SeriesFile {
    fn constants(&self, nccl: Constants) -> Constants {
        Constants {
            base_us: self.launch_us.unwrap_or(nccl.base_us),
            local_us: self.local_us.unwrap_or(nccl.local_us),
            network_us: self.network_us.unwrap_or(nccl.network_us),
        }
    }
}

/// Bus bandwidth in 10⁹ bytes per second.
fn bus_gb_per_s(collective: Collective, n: u32, bytes: u64, time_us: f64) -> f64 {
    let shared = f64::from(n.saturating_sub(1)) / f64::from(n.max(1));
    let factor = match collective {
        Collective::AllReduce => 2.0 * shared,
        Collective::Broadcast | Collective::Reduce => 1.0,
        Collective::Barrier => 0.0,
        _ => shared,
    };
    if time_us > 0.0 { bytes as f64 / time_us / 1e3 * factor } else { 0.0 }
}

fn positive(what: &str, value: f64) -> Result<f64> {
    // Written so that what is no number is refused too.
    if value >= 0.0 {
        Ok(value)
    } else {
        Err(Error::usage(format!("expected {what} from 0 on, found {value}"), "times are in microseconds"))
    }
}

/// What a Move takes at most where nobody says otherwise.
const HALF_A_MEBIBYTE: u64 = 512 << 10;
/// Boundaries between chunks are rounded to this.
const GRAIN_BYTES: usize = 16;
